//! An engine and its steps.

use super::batch::{BatchEntry, EngineError, Wants};
use super::experts::ExpertSource;
use super::forward::{self, Pass};
use super::limits::{EnginePlan, Limits};
use super::linear::{FfnMask, LinearAdapter};
use super::scratch::{Order, SMALL_BATCH, Scratch, ScratchPlan};
use crate::kernels::table::Prefetch;
use crate::kernels::{FpEnv, KernelTable};
use crate::kv_cache::KvCache;
use crate::model::Model;
use crate::team::{Deadline, Meeting, Member, Shares, Stop, StopFlag, Team, WaitPolicy};
use crate::trace::EventRing;
use core::fmt;

/// A model with a KV cache and room to compute in.
#[derive(Debug)]
pub struct Engine<'m> {
    model: Model<'m>,
    table: &'static KernelTable,
    limits: Limits,
    kv: KvCache<'m>,
    scratch: Scratch<'m>,
    team: Team,
}

/// What a step needs from its surroundings.
#[derive(Clone, Copy)]
pub struct StepOptions<'s> {
    /// How workers wait for each other.
    pub wait: &'s dyn WaitPolicy,
    /// Asks the step to stop.
    pub stop: &'s StopFlag,
    /// When the step must stop.
    pub deadline: Option<Deadline<'s>>,
    /// Records what workers do.
    pub trace: Option<&'s EventRing<'s>>,
    /// Adapters that entries name by index.
    pub adapters: &'s [&'s dyn LinearAdapter],
    /// Where the weights of experts are; `None` if they are the model's.
    pub experts: Option<&'s dyn ExpertSource>,
    /// Neurons to leave out.
    pub ffn_mask: Option<&'s dyn FfnMask>,
    /// How far ahead products of few tokens ask for weights: only their time depends on it. Who
    /// has a clock can find out what is faster, as the hosted shell does.
    pub prefetch: Prefetch,
}

impl<'s> StepOptions<'s> {
    /// No deadline, no trace, no adapters, all neurons.
    pub const fn new(wait: &'s dyn WaitPolicy, stop: &'s StopFlag) -> Self {
        Self {
            wait,
            stop,
            deadline: None,
            trace: None,
            adapters: &[],
            experts: None,
            ffn_mask: None,
            prefetch: Prefetch::Near,
        }
    }
}

impl fmt::Debug for StepOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepOptions")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl<'m> Engine<'m> {
    /// An engine over the caller's memory, as large as [`EnginePlan`] says. Neither piece need
    /// be zeroed.
    ///
    /// # Errors
    /// Limits out of range, heads that are too long, memory that is misaligned or too small.
    pub fn new(
        model: Model<'m>,
        table: &'static KernelTable,
        limits: &Limits,
        kv_memory: &'m mut [u8],
        scratch_memory: &'m mut [u8],
    ) -> Result<Self, EngineError> {
        let model = model.for_context(limits.n_ctx);
        let config = model.config();
        EnginePlan::new(config, limits)?;
        let kv = KvCache::new(limits.kv_config(config), kv_memory)?;
        let scratch = Scratch::new(ScratchPlan::new(config, limits), scratch_memory)?;
        let team = Team::new(limits.n_workers);
        Ok(Self {
            model,
            table,
            limits: *limits,
            kv,
            scratch,
            team,
        })
    }

    /// The model.
    pub const fn model(&self) -> &Model<'m> {
        &self.model
    }

    /// The kernels in use.
    pub const fn table(&self) -> &'static KernelTable {
        self.table
    }

    /// The limits it was made with.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The KV cache, to read.
    pub const fn kv(&self) -> &KvCache<'m> {
        &self.kv
    }

    /// The KV cache, to fork, truncate, save and restore sequences. Where it is replaced by
    /// another, that one must have the same [`KvCache::config`].
    pub const fn kv_mut(&mut self) -> &mut KvCache<'m> {
        &mut self.kv
    }

    /// How the work of the steps to come is shared among the workers; `None`, as at first, is
    /// equally. Only times depend on it.
    ///
    /// # Errors
    /// The shares are for another number of workers.
    pub fn set_shares(&mut self, shares: Option<&Shares>) -> Result<(), EngineError> {
        let (name, n_workers) = ("shares", self.limits.n_workers);
        match shares {
            Some(shares) if shares.n_ranks() != n_workers => Err(EngineError::Limit {
                name,
                value: shares.n_ranks(),
                min: n_workers,
                max: n_workers,
            }),
            shares => {
                self.team.set_shares(shares.cloned());
                Ok(())
            }
        }
    }

    /// Removes a range of a sequence and moves what follows down (context shift).
    ///
    /// # Errors
    /// An unknown sequence, a range beyond its end, or too few pages to copy shared ones.
    pub fn remove(
        &mut self,
        sequence: u32,
        range: core::ops::Range<usize>,
    ) -> Result<(), EngineError> {
        let _env = FpEnv::enter();
        Ok(self.kv.remove(sequence, range, &self.model, self.table)?)
    }

    /// Prepares a forward pass over `batch`. Every rank then joins and runs it.
    ///
    /// # Errors
    /// A batch that is empty, too long, or wants too much; an entry with an unknown token,
    /// sequence or adapter or an unexpected position; a full KV cache. Nothing has changed then.
    pub fn step<'s>(
        &'s mut self,
        batch: &'s [BatchEntry],
        options: StepOptions<'s>,
    ) -> Result<Step<'s, 'm>, EngineError> {
        let n_outputs = self.check(batch, &options)?;
        if options.trace.is_some_and(|trace| !trace.take()) {
            return Err(EngineError::TraceInUse);
        }
        if let Err(error) = self.reserve(batch) {
            options.trace.inspect(|trace| trace.give_back());
            return Err(error);
        }
        let n_tiles = [Order::Batch, Order::OutputsFirst].map(|order| match order {
            Order::Batch => self.cut_tiles(batch, order, batch.len()),
            Order::OutputsFirst => self.cut_tiles(batch, order, n_outputs),
        });
        self.team.reset();
        Ok(Step {
            engine: self,
            batch,
            options,
            n_outputs,
            n_tiles,
            committed: false,
        })
    }

    /// Cuts the first `n` rows of a batch into tiles for attention: entries of one sequence that
    /// follow each other.
    fn cut_tiles(&self, batch: &[BatchEntry], order: Order, n: usize) -> usize {
        let (config, n_workers) = (self.model.config(), self.limits.n_workers);
        let most = self.scratch.plan.tile_entries;
        let len = if config.n_head_kv.is_multiple_of(n_workers) {
            most
        } else {
            // A few units for each worker: the smaller, the more evenly they divide.
            (n * config.n_head_kv / (4 * n_workers)).clamp(1, most)
        };
        // SAFETY: no step is running: `step` has the engine exclusively.
        let tiles = unsafe { self.scratch.tiles[order as usize].write(0..n + 1) };
        let (mut n_tiles, mut first) = (0, 0);
        for row in 1..=n {
            let goes_on = row < n && row - first < len && {
                let [before, entry] = [row - 1, row].map(|row| self.scratch.entry(order, row));
                entry == before + 1
                    && batch[entry].sequence == batch[before].sequence
                    && batch[entry].position == batch[before].position + 1
            };
            if !goes_on {
                tiles[n_tiles] = u32::try_from(first).expect("batches are below 2^24");
                n_tiles += 1;
                first = row;
            }
        }
        tiles[n_tiles] = u32::try_from(n).expect("batches are below 2^24");
        n_tiles
    }

    /// Checks a batch, lists its outputs and counts its tokens per sequence.
    fn check(&self, batch: &[BatchEntry], options: &StepOptions<'_>) -> Result<usize, EngineError> {
        let (n_entries, n_batch) = (batch.len(), self.limits.n_batch);
        if n_entries == 0 {
            return Err(EngineError::EmptyBatch);
        }
        if n_entries > n_batch {
            return Err(EngineError::BatchTooLong { n_entries, n_batch });
        }
        // Blocks of another shape would overlap, and workers write to them unasked.
        if *self.kv.config() != self.limits.kv_config(self.model.config()) {
            return Err(EngineError::ForeignKvCache);
        }
        if let Some(trace) = options.trace
            && trace.n_workers() < self.limits.n_workers
        {
            let rings = trace.n_workers();
            return Err(EngineError::TraceTooSmall {
                n_workers: self.limits.n_workers,
                rings,
            });
        }
        let wanted = batch
            .iter()
            .filter(|entry| entry.wants != Wants::Nothing)
            .count();
        if wanted > self.limits.n_outputs {
            let n_outputs = self.limits.n_outputs;
            return Err(EngineError::TooManyOutputs { wanted, n_outputs });
        }
        // SAFETY: no step is running: `step` has the engine exclusively.
        let pending = unsafe { self.scratch.pending.write(0..self.scratch.pending.len()) };
        // SAFETY: as above.
        let outputs_first = unsafe { self.scratch.outputs_first.write(0..n_entries) };
        pending.fill(0);
        let (mut outputs, mut others) = (0..wanted, wanted..n_entries);
        for (i, entry) in batch.iter().enumerate() {
            self.check_entry(i, entry, options, pending)?;
            let row = match entry.wants {
                Wants::Nothing => others.next(),
                Wants::Hidden | Wants::Logits => outputs.next(),
            };
            outputs_first[row.expect("as many as were counted")] =
                u32::try_from(i).expect("batches are below 2^24");
        }
        Ok(wanted)
    }

    fn check_entry(
        &self,
        i: usize,
        entry: &BatchEntry,
        options: &StepOptions<'_>,
        pending: &mut [u32],
    ) -> Result<(), EngineError> {
        let n_vocab = self.model.config().n_vocab;
        if entry.token as usize >= n_vocab {
            return Err(EngineError::UnknownToken {
                entry: i,
                token: entry.token,
                n_vocab,
            });
        }
        let n_seq = self.limits.n_seq;
        let sequence = entry.sequence;
        let unknown = crate::kv_cache::KvError::UnknownSequence { sequence, n_seq };
        let pending = pending.get_mut(sequence as usize).ok_or(unknown)?;
        if !self.model.config().is_causal && entry.wants == Wants::Logits {
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
        let expected = self.kv.len(sequence) + *pending as usize;
        if entry.position as usize != expected {
            let position = entry.position;
            return Err(EngineError::WrongPosition {
                entry: i,
                sequence,
                position,
                expected,
            });
        }
        *pending += 1;
        match entry.adapter {
            Some(adapter)
                if !self.limits.adapters || adapter as usize >= options.adapters.len() =>
            {
                Err(EngineError::UnknownAdapter { entry: i, adapter })
            }
            _ => Ok(()),
        }
    }

    /// Takes pages for the tokens of a batch, for all of its sequences or for none.
    fn reserve(&mut self, batch: &[BatchEntry]) -> Result<(), EngineError> {
        for (i, entry) in batch.iter().enumerate() {
            let n = self.pending(entry.sequence);
            if self.is_first(entry)
                && let Err(error) = self.kv.reserve(entry.sequence, n)
            {
                for entry in &batch[..i] {
                    if self.is_first(entry) {
                        let n = self.pending(entry.sequence);
                        self.kv.release_unused(entry.sequence, n);
                    }
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Whether a checked entry is its sequence's first in the batch: the one at its end.
    fn is_first(&self, entry: &BatchEntry) -> bool {
        entry.position as usize == self.kv.len(entry.sequence)
    }

    /// Tokens of a sequence in the batch that was checked last.
    fn pending(&self, sequence: u32) -> usize {
        let s = sequence as usize;
        // SAFETY: written only by `check`, which has returned.
        unsafe { self.scratch.pending.read(s..s + 1)[0] as usize }
    }
}

/// A forward pass in the making. Dropped or stopped, it leaves the KV cache as it was, but for
/// the last page of a fork: that may have been copied already. Leaked, it keeps the pages that
/// it reserved.
#[derive(Debug)]
pub struct Step<'s, 'm> {
    engine: &'s mut Engine<'m>,
    batch: &'s [BatchEntry],
    options: StepOptions<'s>,
    n_outputs: usize,
    n_tiles: [usize; 2],
    committed: bool,
}

impl<'s, 'm> Step<'s, 'm> {
    /// Ranks that must join.
    pub const fn n_workers(&self) -> usize {
        self.engine.limits.n_workers
    }

    /// Whether the last layer leaves out the rows that no output depends on: not in small
    /// batches, whose workers meet too seldom to move the others together, and not where an
    /// adapter wants to see all.
    fn leaves_out(&self) -> bool {
        self.batch.len() > SMALL_BATCH
            && self.n_outputs < self.batch.len()
            && !self
                .options
                .adapters
                .iter()
                .any(|adapter| adapter.sees_all())
    }

    /// Takes the place of rank `rank`, once: `None` if it is taken. All ranks must run at the
    /// same time, each on a thread (or core) of its own: they wait for each other.
    ///
    /// # Panics
    /// If `rank` is not below [`Self::n_workers`].
    pub fn join(&self, rank: usize) -> Option<Worker<'_, 's, 'm>> {
        self.engine.team.join(rank).then(|| {
            let meeting = Meeting {
                team: &self.engine.team,
                wait: self.options.wait,
                stop: self.options.stop,
                deadline: self.options.deadline,
            };
            Worker {
                step: self,
                member: Member::new(meeting, rank),
            }
        })
    }

    /// Ends the step: its tokens are in the KV cache, and outputs can be read.
    ///
    /// # Errors
    /// [`EngineError::Stopped`] if it was cancelled, ran out of time or a worker failed;
    /// [`EngineError::NotRun`] if not every rank has run. The KV cache is then as before.
    pub fn finish(mut self) -> Result<Outputs<'s>, EngineError> {
        if let Some(stop) = self.engine.team.stopped() {
            return Err(EngineError::Stopped(stop));
        }
        if !self.engine.team.all_finished() {
            return Err(EngineError::NotRun);
        }
        if self.engine.model.config().is_causal {
            self.for_each_sequence(|kv, sequence, n| kv.commit(sequence, n));
        } else {
            // Texts are read whole: nothing goes on from here.
            self.for_each_sequence(|kv, sequence, n| kv.release_unused(sequence, n));
        }
        self.committed = true;
        let (scratch, config) = (&self.engine.scratch, self.engine.model.config());
        let n_vocab = if config.is_causal { config.n_vocab } else { 0 };
        let n_embd = config.n_embd;
        Ok(Outputs {
            batch: self.batch,
            // SAFETY: every rank has finished; the engine stays borrowed while outputs live.
            entries: unsafe { scratch.outputs_first.read(0..self.n_outputs) },
            // SAFETY: as above.
            logits: unsafe { scratch.logits.read(0..self.n_outputs * n_vocab) },
            // SAFETY: as above.
            hidden: unsafe { scratch.hidden.read(0..self.n_outputs * n_embd) },
            n_vocab,
            n_embd,
        })
    }

    fn for_each_sequence(&mut self, mut act: impl FnMut(&mut KvCache<'m>, u32, usize)) {
        for entry in self.batch {
            // A commit moves the sequence's end past all of its entries here.
            if self.engine.is_first(entry) {
                let n = self.engine.pending(entry.sequence);
                act(&mut self.engine.kv, entry.sequence, n);
            }
        }
    }
}

impl Drop for Step<'_, '_> {
    fn drop(&mut self) {
        if !self.committed {
            self.for_each_sequence(|kv, sequence, n| kv.release_unused(sequence, n));
        }
        self.options.trace.inspect(|trace| trace.give_back());
    }
}

/// One rank of a step.
#[must_use = "the other ranks wait for this one: run it"]
pub struct Worker<'t, 's, 'm> {
    step: &'t Step<'s, 'm>,
    member: Member<'t>,
}

impl fmt::Debug for Worker<'_, '_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("rank", &self.member.rank())
            .finish_non_exhaustive()
    }
}

impl Worker<'_, '_, '_> {
    /// Runs this rank's part of the step. Sets this thread's floating-point environment to the
    /// numeric contract's, and back at the end.
    ///
    /// # Errors
    /// Why the step stopped; all ranks leave together.
    pub fn run(mut self) -> Result<(), Stop> {
        let _env = FpEnv::enter();
        let (step, engine) = (self.step, &*self.step.engine);
        let pass = Pass {
            model: &engine.model,
            table: engine.table,
            scratch: &engine.scratch,
            kv: engine.kv.view(),
            batch: step.batch,
            n_outputs: step.n_outputs,
            n_tiles: step.n_tiles,
            leaves_out: step.leaves_out(),
            options: &step.options,
        };
        let result = forward::run(&pass, &mut self.member);
        self.member.finish(result)
    }
}

/// What a step gave back.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'s> {
    batch: &'s [BatchEntry],
    entries: &'s [u32],
    logits: &'s [f32],
    hidden: &'s [f32],
    n_vocab: usize,
    n_embd: usize,
}

impl<'s> Outputs<'s> {
    /// Logits (n_vocab) of entry `entry` of the batch, if it wanted them.
    pub fn logits(&self, entry: usize) -> Option<&'s [f32]> {
        let i = self.find(entry, Wants::Logits)?;
        Some(&self.logits[i * self.n_vocab..(i + 1) * self.n_vocab])
    }

    /// The final hidden state (n_embd) of entry `entry`, if it wanted it.
    pub fn hidden(&self, entry: usize) -> Option<&'s [f32]> {
        let i = self.find(entry, Wants::Hidden)?;
        Some(&self.hidden[i * self.n_embd..(i + 1) * self.n_embd])
    }

    fn find(&self, entry: usize, wants: Wants) -> Option<usize> {
        let i = self
            .entries
            .binary_search(&u32::try_from(entry).ok()?)
            .ok()?;
        (self.batch[entry].wants == wants).then_some(i)
    }
}
