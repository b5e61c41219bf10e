//! State of texts that a host keeps beyond their end: pages of keys and values, and recurrent states. Prefix caches
//! are made of these.

use super::{GenerateError, Session};
use crate::identity::{self, Identity};
use crate::sequence::{Choose, OtherAdapters, Sequence, Settings};
use core::borrow::Borrow;
use sluice_core::engine::EngineError;
use sluice_core::state::{HeldPage, SnapshotError, StateError};
use std::sync::Arc;

impl Session {
    /// Holds the full page `index` of a sequence without it; [`sluice_core::state::State::release`] gives it back.
    ///
    /// # Errors
    /// Another session's sequence, or a page that is not full.
    pub fn retain(&mut self, sequence: &Sequence, index: usize) -> Result<HeldPage, GenerateError> {
        self.check(sequence)?;
        let held = self.with_state(|state| state.retain(sequence.slot, index));
        Ok(held.map_err(EngineError::from)?)
    }

    /// Names the recurrent state at the end of a sequence; nothing happens in a model of attention alone.
    ///
    /// # Errors
    /// Another session's sequence, an empty one, a name that is taken, or no room.
    pub fn checkpoint(&mut self, sequence: &Sequence, name: u32) -> Result<(), GenerateError> {
        self.check(sequence)?;
        let named = self.with_state(|state| state.checkpoint(sequence.slot, name));
        Ok(named.map_err(EngineError::from)?)
    }

    /// Makes an empty sequence begin with `tokens`, whose keys and values are in `pages`, and in the named
    /// `state` where the model is recurrent.
    ///
    /// # Errors
    /// Another session's sequence, one that is not empty, or parts that do not fit together.
    pub fn attach(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        pages: &[impl Borrow<HeldPage>],
        state: Option<u32>,
    ) -> Result<(), GenerateError> {
        self.check(sequence)?;
        let attached = self.with_state(|known| known.attach(sequence.slot, pages, state));
        attached.map_err(EngineError::from)?;
        sequence.tokens.clear();
        sequence.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// As [`Self::fork`], for another choice with a sampler of its own. Settings without adapters use `sequence`'s
    /// adapters.
    ///
    /// # Errors
    /// As [`Self::fork`]; adapters other than those its tokens were computed with.
    pub fn fork_with(
        &mut self,
        sequence: &Sequence,
        settings: &Settings,
        sampler: Box<dyn Choose + Send>,
    ) -> Result<Sequence, GenerateError> {
        self.check(sequence)?;
        let mut fork = self.add_with(settings, sampler)?;
        if settings.adapter.is_none() {
            fork.set_adapter(sequence.adapter.clone())?;
        }
        if !sequence.tokens.is_empty() && !fork.has_adapters_of(sequence) {
            return Err(OtherAdapters.into());
        }
        let (from, to) = (sequence.slot, fork.slot);
        self.with_state(|state| state.fork(from, to))
            .map_err(EngineError::from)?;
        fork.tokens.clone_from(&sequence.tokens);
        fork.queue.clone_from(&sequence.queue);
        fork.n_wanted = sequence.n_wanted;
        (fork.n_shifted, fork.n_kept) = (sequence.n_shifted, sequence.n_kept);
        fork.detokenizer = sequence.detokenizer.clone();
        Ok(fork)
    }

    /// How many more sequences may be added.
    #[must_use]
    pub fn n_free_sequences(&self) -> usize {
        let claims = self.claims.iter();
        claims.filter(|claim| Arc::strong_count(claim) == 1).count()
    }

    /// A new text in place of one that has ended: its tokens stay in the KV cache.
    ///
    /// # Errors
    /// Another session's sequence; adapters other than those its tokens were computed with.
    pub fn restart(
        &mut self,
        ended: Sequence,
        settings: &Settings,
        sampler: Box<dyn Choose + Send>,
    ) -> Result<Sequence, GenerateError> {
        self.check(&ended)?;
        let is_empty = ended.tokens.is_empty();
        let mut sequence = self.begun(ended.slot, Arc::clone(&ended.claim), settings, sampler);
        if !is_empty && !sequence.has_adapters_of(&ended) {
            return Err(OtherAdapters.into());
        }
        sequence.tokens = ended.tokens;
        (sequence.n_shifted, sequence.n_kept) = (ended.n_shifted, ended.n_kept);
        Ok(sequence)
    }

    /// Frees the memory and the place of a sequence that otherwise stays as it is: sampler, stops, tokens left to
    /// write. The caller must remember its tokens and its queue. Until [`Self::readmit`] it belongs to no session.
    ///
    /// # Errors
    /// Another session's sequence.
    pub fn suspend(&mut self, sequence: &mut Sequence) -> Result<(), GenerateError> {
        self.check(sequence)?;
        let cleared = self.with_state(|state| state.clear(sequence.slot));
        cleared.map_err(EngineError::from)?;
        sequence.claim = Arc::new(());
        sequence.tokens.clear();
        sequence.queue.clear();
        sequence.n_wanted = 0;
        Ok(())
    }

    /// Gives a suspended sequence a place: its former one, or else any. It may have been another session's with the
    /// same model.
    ///
    /// # Errors
    /// [`GenerateError::NoSequence`].
    pub fn readmit(&mut self, sequence: &mut Sequence) -> Result<(), GenerateError> {
        (sequence.slot, sequence.claim) = match self.claim_at(sequence.slot) {
            Ok(claim) => (sequence.slot, claim),
            Err(_) => self.claim()?,
        };
        Ok(())
    }

    /// What the state of a sequence is marked with when it is saved: the model's identity, and its adapters'.
    #[must_use]
    pub fn identity(&self, sequence: &Sequence) -> Identity {
        self.identity_at(sequence.slot, sequence.adapter_identity())
    }

    /// As [`Self::identity`], for a sequence by its number in the KV cache.
    #[must_use]
    pub fn identity_at(&self, slot: u32, adapter: Option<Identity>) -> Identity {
        let model = self.model.identity().current();
        identity::of_state(model, self.state().is_long(slot), adapter)
    }

    /// Restores what [`sluice_core::state::State::save`] wrote for this model and these adapters, whether the model's hash
    /// was known then or not.
    ///
    /// # Errors
    /// As [`sluice_core::state::State::restore`].
    pub fn restore_state(
        &mut self,
        slot: u32,
        adapter: Option<Identity>,
        bytes: &[u8],
    ) -> Result<(), StateError> {
        let known = self.model.identity().clone();
        let mut restored = Err(StateError::Snapshot(SnapshotError::OtherModel));
        let marks = known
            .all()
            .flat_map(|model| [(model, false), (model, true)]);
        for (model, is_long) in marks {
            let identity = identity::of_state(model, is_long, adapter);
            restored = self.with_state(|state| {
                state.set_long(slot, is_long)?;
                state.restore(slot, &identity, bytes)
            });
            if restored != Err(StateError::Snapshot(SnapshotError::OtherModel)) {
                break;
            }
        }
        restored
    }

    /// What a sequence has read, as a text that needs no memory of the session.
    ///
    /// # Errors
    /// Another session's sequence.
    pub fn save(&self, sequence: &Sequence) -> Result<SavedText, GenerateError> {
        self.check(sequence)?;
        let (known, identity) = (self.state(), self.identity(sequence));
        let mut state = vec![0; known.saved_bytes(sequence.slot)];
        let saved = known.save(sequence.slot, &identity, &mut state);
        saved.map_err(EngineError::from)?;
        let tokens = sequence.tokens.clone();
        Ok(SavedText { tokens, state })
    }

    /// The reverse of [`Self::save`], for a sequence that has read nothing. Its queue stays.
    ///
    /// # Errors
    /// Another session's sequence; a text of another model, of other settings or longer than the context; no room.
    pub fn restore(
        &mut self,
        sequence: &mut Sequence,
        text: &SavedText,
    ) -> Result<(), GenerateError> {
        self.check(sequence)?;
        let (n_tokens, n_ctx) = (text.tokens.len(), self.limits().n_ctx);
        if n_tokens > n_ctx {
            return Err(GenerateError::TooLong { n_tokens, n_ctx });
        }
        let (slot, adapter) = (sequence.slot, sequence.adapter_identity());
        let mut restored = self.restore_state(slot, adapter, &text.state);
        if restored.is_ok() && self.state().len(slot) != n_tokens {
            let damaged = Err(StateError::Snapshot(SnapshotError::Checksum));
            restored = self.with_state(|state| state.clear(slot)).and(damaged);
        }
        restored.map_err(EngineError::from)?;
        sequence.tokens.clone_from(&text.tokens);
        Ok(())
    }
}

/// A text outside of a session: tokens, and their keys and values. Where it is restored it continues with the same bits.
#[derive(Clone, Debug)]
pub struct SavedText {
    pub(crate) tokens: Vec<u32>,
    /// As core saves a sequence, with the identities of the model and the adapters.
    pub(crate) state: Vec<u8>,
}

impl SavedText {
    /// The text's tokens.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}
