//! The memory texts are computed in: the session's sequences and pages, and what earlier texts left in them. Texts
//! start from idle sequences, the prefix cache and its disk, which also give up memory when texts need it.

mod backing;
mod disk;
mod idle;
mod pages;
mod prefix;
mod slots;
mod text;

pub(super) use backing::Backing;
pub(super) use disk::{DiskCache, StoredFile};
pub(super) use prefix::{Chain, Key};
pub(super) use text::Text;

use super::job::Choice;
use super::request::{PendingChoice, Request};
use super::view::SlotView;
use crate::Log;
use idle::IdleTexts;
use prefix::PrefixCache;
use sha2::{Digest as _, Sha256};
use sluice::generate::prompt_cache::CacheSalt;
use sluice::session::{BatchStats, GenerateError, StepHooks, TokenEvent};
use sluice::speculate::Speculation;
use sluice::{Sequence, Session};
use sluice_core::kernels::contract::CONTRACT_VERSION;
use sluice_core::state::{Identity, PAGE_TOKENS, PAGE_VERSION};
use std::rc::Rc;
use std::sync::Arc;

/// A model's session, and the cached parts of earlier texts.
pub(super) struct Pool {
    session: Session,
    idle: IdleTexts,
    cache: PrefixCache,
    backing: Option<Backing>,
    /// What pages are marked with.
    identity: Identity,
    /// Everything that keys depend on except tokens, adapters and domains.
    base: Key,
    /// Total number of pages.
    n_pages: usize,
    checkpoint_every: usize,
    log: Log,
}

impl Pool {
    pub(super) fn new(
        session: Session,
        backing: Option<Backing>,
        checkpoint_every: usize,
        log: Log,
    ) -> Self {
        let limits = *session.limits();
        let is_recurrent = session.model().config().is_recurrent();
        let owner = backing.as_ref().map(Backing::owner);
        let owner = owner.unwrap_or_else(|| session.model().identity().at_load());
        // The keys of pages tell apart those that were computed with the long divisors of a longrope model.
        let identity = owner;
        let mut hash = Sha256::new();
        hash.update(b"sluice prefix");
        hash.update(PAGE_VERSION.to_le_bytes());
        hash.update(CONTRACT_VERSION.to_le_bytes());
        hash.update(identity.0);
        hash.update(format!("{:?} {:?}", limits.type_k, limits.type_v));
        hash.update([u8::from(limits.kv_rotation)]);
        Self {
            idle: IdleTexts::default(),
            cache: PrefixCache::new(
                limits.n_held / PAGE_TOKENS,
                limits.n_checkpoints,
                is_recurrent,
            ),
            backing,
            identity,
            base: hash.finalize().into(),
            n_pages: session.state().free_pages(),
            checkpoint_every: checkpoint_every.max(PAGE_TOKENS) / PAGE_TOKENS * PAGE_TOKENS,
            session,
            log,
        }
    }

    pub(super) const fn session(&self) -> &Session {
        &self.session
    }

    /// The slots of ended texts.
    pub(super) fn idle(&self) -> impl Iterator<Item = SlotView> {
        self.idle.texts().map(|idle| SlotView {
            id: idle.sequence.slot(),
            group: Some(Arc::clone(&idle.group)),
            n_past: idle.sequence.tokens().len(),
            ..SlotView::default()
        })
    }

    /// Pages in the prefix cache.
    pub(super) fn cached_pages(&self) -> usize {
        self.cache.len()
    }

    /// Maximum number of pages in the prefix cache.
    pub(super) const fn cache_pages_max(&self) -> usize {
        self.cache.n_pages_max()
    }

    /// Everything that the keys of pages depend on except tokens, adapters and domains.
    pub(super) const fn base(&self) -> &Key {
        &self.base
    }

    /// Maximum number of texts at once.
    pub(super) fn n_sequences(&self) -> usize {
        self.session.limits().n_seq
    }

    /// Whether a text of `n_tokens` fits in addition to `n_taken` pages.
    pub(super) const fn fits(&self, n_taken: usize, n_tokens: usize) -> bool {
        n_taken + n_pages(n_tokens) < self.n_pages
    }

    /// A text for a choice: in the slot `pinned`, which no text is running in; or else in the idle sequence that shares the
    /// longest prefix with its prompt, in a free one, or in the one whose text ended longest ago. [`Self::enter_prompt`] sets
    /// its prompt.
    pub(super) fn open(
        &mut self,
        request: &Rc<Request>,
        pinned: Option<u32>,
        choice: Choice,
        mut chain: Chain,
    ) -> Result<Text, GenerateError> {
        let settings = request.settings(&choice);
        let shows_special = choice.shows_special;
        let reused = self
            .reusable(request, pinned, &mut chain)
            .and_then(|slot| self.idle.take(slot));
        let mut sequence = match (reused, pinned) {
            (Some(idle), _) => self.session.restart(idle, &settings, choice.sampler)?,
            (None, Some(slot)) => {
                self.free_slot(slot);
                let mut sequence = self.session.add_at(slot, &settings)?;
                sequence.set_sampler(choice.sampler);
                sequence
            }
            (None, None) => {
                self.free_sequence()?;
                self.session.add_with(&settings, choice.sampler)?
            }
        };
        if shows_special {
            sequence.show_special();
        }
        if let Some(text) = request.take_unfinished() {
            sequence.continue_text(text);
        }
        Ok(Text::new(Rc::clone(request), pinned, sequence, chain))
    }

    /// A text for another choice, which continues from the end of `leader`'s.
    pub(super) fn fork(
        &mut self,
        leader: &Text,
        pending: PendingChoice,
    ) -> Result<Text, GenerateError> {
        let choice = pending.choice;
        self.free_sequence()?;
        let settings = leader.request().settings(&choice);
        let forked = self
            .session
            .fork_with(leader.sequence(), &settings, choice.sampler);
        let mut sequence = forked?;
        if choice.shows_special {
            sequence.show_special();
        }
        Ok(leader.fork(sequence))
    }

    /// Removes the idle text in a slot.
    fn free_slot(&mut self, slot: u32) {
        if let Some(idle) = self.idle.take(slot) {
            self.remove(idle);
        }
    }

    /// Removes the least recently used idle text if no sequence is free.
    fn free_sequence(&mut self) -> Result<(), GenerateError> {
        if self.session.n_free_sequences() == 0
            && let Some(idle) = self.idle.pop()
        {
            self.session.remove(idle)?;
        }
        Ok(())
    }

    /// The slot of an idle text that saves more reading than the cached pages do.
    fn reusable(&self, request: &Request, pinned: Option<u32>, chain: &mut Chain) -> Option<u32> {
        if !request.uses_cache {
            return None;
        }
        let prompt = request.head();
        let is_recurrent = self.session.model().config().is_recurrent();
        let is_long = self.session.is_long_at(request.prompt.len());
        chain.fit(is_long);
        let best = self.idle.best(request, pinned, is_recurrent, |idle| {
            self.session.is_long(idle) == is_long
        })?;
        let in_cache = self.cache.n_usable(chain.of(prompt)) * PAGE_TOKENS;
        (best.n_saved > in_cache).then_some(best.slot)
    }

    /// Takes the sequence of an ended text, from which the next turn of a conversation may continue.
    pub(super) fn close(&mut self, text: Text) {
        if text.is_parked {
            return;
        }
        let request = Rc::clone(text.request());
        let is_kept = request.uses_cache;
        let mut sequence = text.into_sequence();
        if is_kept && sequence.n_shifted() == 0 && !sequence.tokens().is_empty() {
            // The next request sets its own adapter.
            sequence.release_adapter();
            let domain = request.domain.clone();
            self.idle
                .push(sequence, domain.group, CacheSalt::Plain(domain.salt));
        } else {
            self.remove(sequence);
        }
    }

    fn remove(&mut self, sequence: Sequence) {
        if let Err(error) = self.session.remove(sequence) {
            (self.log)(&format!("{error}"));
        }
    }

    /// Takes the place and the state of a text until [`Self::resume`]. Its full pages stay in the cache, if they fit.
    pub(super) fn park(&mut self, text: &mut Text) -> Result<(), GenerateError> {
        let tokens = text.sequence().tokens().to_vec();
        let queue = text.sequence().queue().to_vec();
        let is_shifted = text.sequence().n_shifted() > 0;
        if is_shifted {
            text.saved = Some(self.session.save(text.sequence())?);
        }
        self.session.suspend(text.sequence_mut())?;
        if !is_shifted {
            text.sequence_mut().push(&tokens, 0);
        }
        let n_wanted = text.n_wanted();
        text.sequence_mut().push(&queue, n_wanted);
        text.is_parked = true;
        Ok(())
    }

    /// Restores a parked text: from its saved state, or with pages of the cache and by queueing its other tokens to be
    /// read again.
    pub(super) fn resume(&mut self, text: &mut Text) -> Result<(), GenerateError> {
        match text.pinned {
            Some(slot) => self.free_slot(slot),
            None => self.free_sequence()?,
        }
        self.session.readmit(text.sequence_mut())?;
        text.is_parked = false;
        if let Some(saved) = text.saved.take() {
            self.ensure_free(n_pages(saved.tokens().len()) + 1);
            return self.session.restore(text.sequence_mut(), &saved);
        }
        let tokens = text.sequence().queue().to_vec();
        text.n_kept = 0;
        self.enter(text, &tokens).map(drop)
    }

    /// Shifts a text whose context is full; 0 if that is not possible.
    pub(super) fn shift(&mut self, text: &mut Text, n_keep: usize) -> Result<usize, GenerateError> {
        let n_ctx = self.session.limits().n_ctx;
        // Shared pages are copied before they are changed.
        self.ensure_free(n_pages(n_ctx));
        self.session
            .shift(text.sequence_mut(), n_keep.min(n_ctx / 2))
    }

    /// Drafts continuations of these texts, for a step that also has `n_beside` prompt tokens. Returns the number of
    /// draft tokens.
    pub(super) fn draft(&mut self, sequences: &mut [&mut Sequence], n_beside: usize) -> usize {
        // Draft tokens may need a page for each text, which is returned at once.
        let n_max = self.session.speculation();
        let n_max = 1 + n_max.map_or(0, |speculation| speculation.options().n_max);
        let state = self.session.state();
        let slots = sequences.iter().map(|sequence| sequence.slot());
        let needed: usize = slots.map(|slot| state.pages_needed(slot, n_max)).sum();
        self.ensure_free(needed + 1);
        let n_draft = self.session.draft(sequences, n_beside);
        let speculation = self.session.speculation_mut();
        if let Some(failure) = speculation.and_then(Speculation::failure) {
            (self.log)(&format!("drafting stopped: {failure}"));
        }
        n_draft
    }

    /// Computes a step of these texts, each with its number of tokens.
    pub(super) fn step(
        &mut self,
        sequences: &mut [&mut Sequence],
        shares: &[usize],
    ) -> Result<(Vec<TokenEvent>, BatchStats), GenerateError> {
        let hooks = StepHooks {
            shares: Some(shares),
            ..StepHooks::default()
        };
        self.session.step_with(sequences, &hooks)
    }

    /// The number of free pages.
    pub(super) fn n_free_pages(&self) -> usize {
        self.session.state().free_pages()
    }

    /// Frees pages until `n` are free: first the pages of ended texts, then the least recently used cached ones.
    /// Returns the number of free pages.
    pub(super) fn ensure_free(&mut self, n: usize) -> usize {
        loop {
            let free = self.n_free_pages();
            if free >= n {
                return free;
            }
            if let Some(idle) = self.idle.pop() {
                self.remove(idle);
            } else if !self.cache.evict(&mut self.session) {
                return free;
            }
        }
    }
}

/// The number of pages of `n_tokens` tokens.
pub(super) const fn n_pages(n_tokens: usize) -> usize {
    n_tokens.div_ceil(PAGE_TOKENS)
}
