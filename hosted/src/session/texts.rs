//! The texts of a session: added, forked, advanced together.

use super::entries::Blends;
use super::{GenerateError, Session, StepHooks};
use crate::adapter::AdapterBlend;
use crate::sequence::{Choose, EndReason, PlainSampler, Sequence, Settings};
use crate::team::Team;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use sluice_core::engine::{EngineError, Neurons, Outputs};
use sluice_core::state::StateError;
use sluice_core::tokenizer::Tokenizer;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Statistics of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchStats {
    /// Tokens that were read.
    pub n_tokens: usize,
    /// Sum over the tokens of the positions at or before theirs.
    pub n_positions: usize,
    /// Neurons that could be left unread, and that were.
    pub neurons: Neurons,
    /// Time of the step.
    pub step: Duration,
    /// Draft tokens among them.
    pub n_draft: usize,
    /// Draft tokens that were right.
    pub n_accepted: usize,
    /// Time of drafting before the step.
    pub drafting: Duration,
    /// Tokens chosen.
    pub n_chosen: usize,
    /// Time of choosing.
    pub choosing: Duration,
}

impl Session {
    /// An empty sequence.
    ///
    /// # Errors
    /// [`GenerateError::NoSequence`], or a setting that is out of range.
    pub fn add(&mut self, settings: &Settings) -> Result<Sequence, GenerateError> {
        let n_ctx = self.limits().n_ctx;
        let sampler = PlainSampler::new(settings.sampler, self.model.tokenizer(), n_ctx)?;
        self.add_with(settings, Box::new(sampler))
    }

    /// An empty sequence whose tokens `sampler` chooses.
    ///
    /// # Errors
    /// [`GenerateError::NoSequence`].
    pub fn add_with(
        &mut self,
        settings: &Settings,
        sampler: Box<dyn Choose + Send>,
    ) -> Result<Sequence, GenerateError> {
        let (slot, claim) = self.claim()?;
        Ok(self.begun(slot, claim, settings, sampler))
    }

    /// An empty sequence at this place, with the session's adapters if the settings have none.
    pub(super) fn begun(
        &self,
        slot: u32,
        claim: Arc<()>,
        settings: &Settings,
        sampler: Box<dyn Choose + Send>,
    ) -> Sequence {
        let mut sequence = Sequence::new(slot, claim, settings, sampler);
        if sequence.adapter.is_none() {
            sequence.adapter.clone_from(&self.adapter);
            sequence.adapter_identity = self.adapter.as_ref().map(AdapterBlend::identity);
        }
        sequence
    }

    /// A sequence that will continue `prompt`.
    ///
    /// # Errors
    /// As [`Self::add`]; a prompt that is empty, too long, or cannot be made into tokens.
    pub fn begin(&mut self, prompt: &str, settings: &Settings) -> Result<Sequence, GenerateError> {
        let mut sequence = self.add(settings)?;
        let mut tokens = self.model.encode(prompt, settings.parse_special)?;
        if tokens.is_empty() {
            let bos = self.model.tokenizer().bos();
            tokens.push(bos.ok_or(GenerateError::EmptyPrompt)?);
        }
        let (n_tokens, n_ctx) = (tokens.len(), self.limits().n_ctx);
        if n_tokens > n_ctx {
            return Err(GenerateError::TooLong { n_tokens, n_ctx });
        }
        if settings.n_predict == Some(0) {
            sequence.end(EndReason::Length);
        } else {
            sequence.push(&tokens, 1);
        }
        Ok(sequence)
    }

    /// Another sequence with the same text so far. Keys and values are shared as far as they are the
    /// same.
    ///
    /// # Errors
    /// As [`Self::add`]; another session's sequence.
    pub fn fork(
        &mut self,
        sequence: &Sequence,
        settings: &Settings,
    ) -> Result<Sequence, GenerateError> {
        let n_ctx = self.limits().n_ctx;
        let sampler = PlainSampler::new(settings.sampler, self.model.tokenizer(), n_ctx)?;
        self.fork_with(sequence, settings, Box::new(sampler))
    }

    /// Removes a sequence; its memory is free at once.
    ///
    /// # Errors
    /// Another session's sequence.
    pub fn remove(&mut self, sequence: Sequence) -> Result<(), GenerateError> {
        self.check(&sequence)?;
        let slot = sequence.slot;
        Ok(self
            .with_state(|state| state.clear(slot))
            .map_err(EngineError::from)?)
    }

    /// Keeps the first `len` tokens of a sequence and nothing of its queue. If it had ended, it
    /// continues. Returns how many it keeps: fewer, where the model's state after `len` is not stored.
    ///
    /// # Errors
    /// It has fewer tokens, or belongs to another session.
    pub fn truncate(
        &mut self,
        sequence: &mut Sequence,
        len: usize,
    ) -> Result<usize, GenerateError> {
        self.check(sequence)?;
        let slot = sequence.slot;
        let len = self
            .with_state(|state| match state.rewind(slot, len) {
                Err(StateError::CannotRewind { nearest, .. }) => {
                    state.rewind(slot, nearest).map(|()| nearest)
                }
                result => result.map(|()| len),
            })
            .map_err(EngineError::from)?;
        sequence.tokens.truncate(len);
        sequence.queue.clear();
        sequence.n_wanted = 0;
        sequence.ended = None;
        if len <= sequence.n_kept {
            sequence.n_shifted = 0;
        }
        Ok(len)
    }

    /// Whether [`Self::shift`] can make room: not in every model (`ModelConfig::can_remove`), nor if pages are given
    /// back.
    #[must_use]
    pub fn can_shift(&self) -> bool {
        self.model.config().can_remove() && !self.limits().windows_give_back
    }

    /// Removes the older half of the tokens after the first `n_keep`, and moves the rest up (context
    /// shift). Returns the number of tokens removed: 0, where the model's state does not allow it.
    ///
    /// # Errors
    /// Too few pages to copy shared ones, another session's sequence, or one that cannot be shifted
    /// ([`Self::can_shift`]).
    pub fn shift(
        &mut self,
        sequence: &mut Sequence,
        n_keep: usize,
    ) -> Result<usize, GenerateError> {
        self.check(sequence)?;
        let n_gone = sequence.tokens.len().saturating_sub(n_keep) / 2;
        if n_gone > 0 {
            let (slot, range) = (sequence.slot, n_keep..n_keep + n_gone);
            let removed = self
                .engine
                .with_mut(|engine| engine.remove(slot, range.clone()));
            if removed == Err(EngineError::State(StateError::CannotRemove)) {
                return Ok(0);
            }
            removed?;
            sequence.tokens.drain(range);
            sequence.n_kept = match sequence.n_shifted {
                0 => n_keep,
                _ => sequence.n_kept.min(n_keep),
            };
            sequence.n_shifted += n_gone;
        }
        Ok(n_gone)
    }

    /// Reads as much of the queues as fits, and chooses the wanted tokens.
    pub(crate) fn enter(
        &mut self,
        sequences: &mut [&mut Sequence],
        hooks: &StepHooks<'_>,
    ) -> Result<BatchStats, GenerateError> {
        for sequence in sequences.iter_mut() {
            self.fit_queue(sequence)?;
        }
        let drafting = Instant::now();
        self.draft_for_step(sequences, hooks);
        let drafting = drafting.elapsed();
        let mut batch = core::mem::take(&mut self.batch);
        let mut parts = core::mem::take(&mut self.parts);
        let blends = Blends::of(sequences);
        let adapters: Vec<_> = blends.all.iter().map(AdapterBlend::parts).collect();
        let before: Vec<_> = sequences.iter().map(|text| text.tokens.len()).collect();
        let mut speculation = None;
        let filled = self.fill(sequences, &blends, hooks.shares, &mut batch, &mut parts);
        let entered = filled.and_then(|()| {
            if batch.is_empty() {
                return Ok(BatchStats::default());
            }
            let (team, model) = (self.team.clone(), self.model.clone());
            speculation = self.speculation.take();
            let mut reader = speculation.as_mut().filter(|all| all.reads_hidden());
            let hooks = StepHooks {
                adapters: &adapters,
                ..*hooks
            };
            let entered = self.run(&batch, &hooks, |outputs, step| {
                let start = Instant::now();
                let n_chosen = take(&team, model.tokenizer(), sequences, &parts, outputs);
                if let Some(reader) = &mut reader {
                    for ((sequence, part), n) in sequences.iter().zip(&parts).zip(&before) {
                        reader.note_read(sequence, *n, part.0, outputs);
                    }
                }
                BatchStats {
                    n_tokens: batch.len(),
                    n_positions: outputs.report().n_positions,
                    neurons: outputs.report().neurons,
                    step,
                    drafting,
                    n_draft: 0,
                    n_accepted: 0,
                    n_chosen,
                    choosing: start.elapsed(),
                }
            });
            Ok(entered?)
        });
        (self.batch, self.parts) = (batch, parts);
        self.speculation = speculation.or(self.speculation.take());
        let mut entered = entered?;
        self.settle(sequences, &mut entered)?;
        Ok(entered)
    }

    /// Frees the memory of sequences that were dropped.
    pub(crate) fn sweep(&mut self) -> Result<(), GenerateError> {
        let claims = &self.claims;
        self.engine.with_mut(|engine| {
            for (slot, claim) in (0u32..).zip(claims) {
                if Arc::strong_count(claim) == 1 && !engine.state().is_empty(slot) {
                    engine.state_mut().clear(slot).map_err(EngineError::from)?;
                }
            }
            Ok(())
        })
    }

    /// An empty sequence with this number.
    ///
    /// # Errors
    /// As [`Self::add`]; the number is in use, or out of range.
    pub fn add_at(&mut self, slot: u32, settings: &Settings) -> Result<Sequence, GenerateError> {
        let claim = self.claim_at(slot)?;
        let n_ctx = self.limits().n_ctx;
        let sampler = PlainSampler::new(settings.sampler, self.model.tokenizer(), n_ctx)?;
        Ok(self.begun(slot, claim, settings, Box::new(sampler)))
    }

    /// The place in the KV cache with this number, if it is free.
    pub(super) fn claim_at(&mut self, slot: u32) -> Result<Arc<()>, GenerateError> {
        let n_seq = self.claims.len();
        let claim = self.claims.get(slot as usize);
        let free = claim.filter(|claim| Arc::strong_count(claim) == 1);
        let claim = Arc::clone(free.ok_or(GenerateError::NoSequence { n_seq })?);
        self.with_state(|state| state.clear(slot))
            .map_err(EngineError::from)?;
        Ok(claim)
    }

    /// A free place in the KV cache.
    pub(crate) fn claim(&mut self) -> Result<(u32, Arc<()>), GenerateError> {
        let n_seq = self.claims.len();
        let free = self
            .claims
            .iter()
            .position(|claim| Arc::strong_count(claim) == 1);
        let index = free.ok_or(GenerateError::NoSequence { n_seq })?;
        let slot = u32::try_from(index).expect("sequences are at most 2^16");
        self.with_state(|state| state.clear(slot))
            .map_err(EngineError::from)?;
        Ok((slot, Arc::clone(&self.claims[index])))
    }

    /// Whether a sequence belongs to this session.
    pub(crate) fn check(&self, sequence: &Sequence) -> Result<(), GenerateError> {
        let own = self.claims.get(sequence.slot as usize);
        if own.is_some_and(|claim| Arc::ptr_eq(claim, &sequence.claim)) {
            return Ok(());
        }
        Err(GenerateError::ForeignSequence)
    }
}

/// Moves the read tokens from the queues into the texts, and chooses the wanted tokens after them; returns how
/// many. Several texts choose on all threads of the team, independently of each other.
fn take(
    team: &Team,
    tokenizer: &Tokenizer<'_>,
    sequences: &mut [&mut Sequence],
    parts: &[(usize, usize)],
    outputs: &Outputs<'_>,
) -> usize {
    let has_logits =
        |(start, end): (usize, usize)| (start..end).any(|entry| outputs.logits(entry).is_some());
    let n_choosing = parts.iter().filter(|part| has_logits(**part)).count();
    if n_choosing > 1 && team.count() > 1 {
        let jobs: Vec<_> = sequences
            .iter_mut()
            .zip(parts)
            .map(|job| Mutex::new(Some(job)))
            .collect();
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let job = job.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some((sequence, &part)) = job {
                    sequence.take(part.0..part.1, outputs, tokenizer);
                }
            }
        };
        // Without the team, as in the child of a fork, this thread does all of it.
        let _outcome = team.run(|_| work());
        work();
    } else {
        for (sequence, &part) in sequences.iter_mut().zip(parts) {
            sequence.take(part.0..part.1, outputs, tokenizer);
        }
    }
    sequences.iter().map(|sequence| sequence.chosen.len()).sum()
}
