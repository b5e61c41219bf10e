//! Checks of a batch, before resources are reserved for it.

use super::batch::{BatchEntry, EngineError, Wants};
use super::limits::EngineLimits;
use super::pass::{Asked, NO_ENTRY, Wanted};
use super::rows::SMALL_BATCH;
use super::sites::{Blend, ExpertSource, Observer, Sparse, StepOptions, Unit};
use super::step::Engine;
use crate::model::Predictor;
use crate::state::StateError;

impl Engine<'_> {
    /// Checks a batch, lists its outputs and counts its tokens per sequence.
    pub(super) fn check(
        &self,
        batch: &[BatchEntry],
        options: &StepOptions<'_>,
    ) -> Result<Wanted, EngineError> {
        let (n_entries, n_batch) = (batch.len(), self.limits.n_batch);
        if n_entries == 0 {
            return Err(EngineError::EmptyBatch);
        }
        if n_entries > n_batch {
            return Err(EngineError::BatchTooLong { n_entries, n_batch });
        }
        // Blocks of another shape would overlap, and several workers would write to them.
        if self.state.config().layout_fingerprint() != self.state_fingerprint {
            return Err(EngineError::ForeignState);
        }
        self.check_options(options)?;
        let wanted = self.count(batch)?;
        let common = &self.scratch.common;
        // SAFETY: no step is running: `step` has the engine exclusively.
        let pending = unsafe { common.pending.write(0..common.pending.len()) };
        // SAFETY: as above.
        let outputs_first = unsafe { common.outputs_first.write(0..n_entries) };
        pending.fill(0);
        let Wanted {
            n_logits,
            n_outputs,
        } = wanted;
        let (mut logits, mut hidden) = (0..n_logits, n_logits..n_outputs);
        let mut others = n_outputs..n_entries;
        for (i, entry) in batch.iter().enumerate() {
            self.check_entry(i, entry, options, pending)?;
            let row = match entry.wants {
                Wants::Nothing => others.next(),
                Wants::Hidden => hidden.next(),
                Wants::Logits | Wants::LogitsAndHidden => logits.next(),
            };
            outputs_first[row.expect("as many as were counted")] =
                u32::try_from(i).expect("batches are below 2^24");
        }
        self.link(batch);
        Ok(wanted)
    }

    /// Counts the outputs of a batch, for which there must be room.
    fn count(&self, batch: &[BatchEntry]) -> Result<Wanted, EngineError> {
        let count = |is_one: fn(Wants) -> bool| batch.iter().filter(|e| is_one(e.wants)).count();
        let wanted = Wanted {
            n_logits: count(Wants::has_logits),
            n_outputs: count(|wants| wants != Wants::Nothing),
        };
        let EngineLimits {
            n_outputs,
            n_hidden,
            ..
        } = self.limits;
        for (wanted, n_outputs) in [
            (wanted.n_logits, n_outputs),
            (wanted.n_outputs, n_outputs + n_hidden),
        ] {
            if wanted > n_outputs {
                return Err(EngineError::TooManyOutputs { wanted, n_outputs });
            }
        }
        Ok(wanted)
    }

    /// Checks that a head has hidden states, and that other models have none. With the caller's stream,
    /// nothing reads them.
    pub(super) fn check_hidden(
        &self,
        batch: &[BatchEntry],
        has_stream: bool,
        options: &StepOptions<'_>,
    ) -> Result<(), EngineError> {
        let config = self.model.config();
        let is_head = config.next_token.is_some();
        if is_head && let Some(entry) = batch.iter().position(|entry| entry.adapter.is_some()) {
            return Err(EngineError::HeadAdapted { entry });
        }
        let (expected, found) = match options.hidden {
            Some(_) if !is_head || has_stream => return Err(EngineError::HiddenUnwanted),
            None if !is_head || has_stream => return Ok(()),
            hidden => (batch.len() * config.n_embd, hidden.map_or(0, <[f32]>::len)),
        };
        match expected == found {
            true => Ok(()),
            false => Err(EngineError::HiddenLength { expected, found }),
        }
    }

    /// Checks that there is room for everything that the options ask for.
    fn check_options(&self, options: &StepOptions<'_>) -> Result<(), EngineError> {
        if let Some(trace) = options.trace
            && trace.n_workers() < self.limits.n_workers
        {
            let rings = trace.n_workers();
            return Err(EngineError::TraceTooSmall {
                n_workers: self.limits.n_workers,
                rings,
            });
        }
        let limits = &self.limits;
        let rank = options.adapters.iter().map(Blend::rank).max();
        let rank = rank.unwrap_or(0);
        if rank > limits.adapter_rank {
            return Err(EngineError::AdapterRank {
                rank,
                max: limits.adapter_rank,
            });
        }
        if let Sparse::Approximate(asked) = &options.sparse {
            let source = options.experts.unwrap_or(&self.model);
            asked.check(self.model.config(), limits, source.is_resident())?;
        }
        let lends_neurons = |source: &&dyn ExpertSource| {
            (0..self.model.config().n_layer()).any(|layer| source.hot_neurons(layer).is_some())
        };
        let has_cold = !limits.cold_neurons && options.experts.as_ref().is_some_and(lends_neurons);
        let has_experts = options.experts.is_some() || self.model.has_experts();
        let has_kinds = |blend: &Blend<'_>| limits.adapter_kinds.contains(blend.kinds());
        let missing = [
            ("adapter_kinds", !options.adapters.iter().all(has_kinds)),
            ("observes", options.observer.is_some() && !limits.observes),
            ("selects", options.selector.is_some() && !limits.selects),
            (
                "predictor",
                options
                    .sparse
                    .predictor()
                    .is_some_and(|it| !self.has_room_for(it)),
            ),
            ("cold_neurons", has_cold),
            ("experts", !has_experts && self.model.config().has_experts()),
        ];
        match missing.into_iter().find(|(_, is_missing)| *is_missing) {
            Some((what, _)) => Err(EngineError::NotMadeFor { what }),
            None => Ok(()),
        }
    }

    /// Asks the sites of a step for their settings. Rows that no output depends on are not dropped in small batches,
    /// whose workers meet too seldom to move the others together, and not where an observer wants to
    /// see all.
    pub(super) fn ask(
        &self,
        batch: &[BatchEntry],
        wanted: Wanted,
        options: &StepOptions<'_>,
    ) -> Asked {
        let observes = |of: fn(&dyn Observer) -> bool| options.observer.is_some_and(of);
        let sees_all = observes(|observer| observer.sees_all());
        let source = options.experts.unwrap_or(&self.model);
        // Attention rows are ordered by position; with logits first among outputs they would not be.
        let Wanted {
            n_logits,
            n_outputs,
        } = wanted;
        let is_alike = n_logits == 0 || n_logits == n_outputs;
        let is_in_order = is_alike && n_outputs < batch.len();
        Asked {
            leaves_out: batch.len() > SMALL_BATCH && is_in_order && !sees_all,
            experts_are_resident: source.is_resident(),
            adapts: batch.iter().any(|entry| entry.adapter.is_some()),
            unit: match options.selector {
                Some(selector) => selector.unit(),
                None => Unit::Neuron,
            },
            shows_choices: observes(|observer| observer.sees_choices()),
            shows_products: observes(|observer| observer.sees_products()),
        }
    }

    /// Whether a predictor is of such a model, and within the limits.
    fn has_room_for(&self, predictor: &Predictor<'_>) -> bool {
        let (needed, limits) = (predictor.limits(), &self.limits.predictor);
        let fits = needed.rank <= limits.rank && limits.kinds.contains(needed.kinds);
        fits && predictor.fits(self.model.config())
    }

    fn check_entry(
        &self,
        i: usize,
        entry: &BatchEntry,
        options: &StepOptions<'_>,
        pending: &mut [u32],
    ) -> Result<(), EngineError> {
        let config = self.model.config();
        if entry.token as usize >= config.n_vocab {
            return Err(EngineError::UnknownToken {
                entry: i,
                token: entry.token,
                n_vocab: config.n_vocab,
            });
        }
        let n_seq = self.limits.n_seq;
        let sequence = entry.sequence;
        let unknown = StateError::UnknownSequence { sequence, n_seq };
        let pending = pending.get_mut(sequence as usize).ok_or(unknown)?;
        if !config.is_causal && entry.wants.has_logits() {
            return Err(EngineError::NoLogits { entry: i });
        }
        if let Some(n_positions) = self.model.n_positions()
            && entry.position as usize >= n_positions
        {
            let position = entry.position;
            return Err(EngineError::PositionWithoutEmbedding {
                entry: i,
                position,
                n_positions,
            });
        }
        let expected = self.state.len(sequence) + *pending as usize;
        if entry.position as usize != expected {
            let position = entry.position;
            return Err(EngineError::WrongPosition {
                entry: i,
                sequence,
                position,
                expected,
            });
        }
        if self.model.is_long_at(expected + 1) && !self.state.is_long(sequence) {
            return Err(EngineError::NotFitted { entry: i, sequence });
        }
        *pending += 1;
        match entry.adapter {
            Some(adapter) if adapter as usize >= options.adapters.len() => {
                Err(EngineError::UnknownAdapter { entry: i, adapter })
            }
            _ => Ok(()),
        }
    }

    /// For a recurrent model, records for each entry the previous one of its sequence.
    fn link(&self, batch: &[BatchEntry]) {
        let common = &self.scratch.common;
        if common.before.len() == 0 {
            return;
        }
        // SAFETY: no step is running: `step` has the engine exclusively.
        let before = unsafe { common.before.write(0..batch.len()) };
        for (i, entry) in batch.iter().enumerate() {
            // Usually the neighbouring entry.
            let earlier = batch[..i]
                .iter()
                .rposition(|other| other.sequence == entry.sequence);
            before[i] = earlier.map_or(NO_ENTRY, |at| {
                u32::try_from(at).expect("batches are below 2^24")
            });
        }
    }
}
