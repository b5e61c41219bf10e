//! An engine and its steps.

use super::batch::{BatchEntry, EngineError};
use super::forward;
use super::limits::EngineLimits;
use super::neurons::{Counting, NeuronCounts};
use super::output::{Outputs, StepReport};
use super::pass::{Asked, Pass, Wanted};
use super::plan::{EnginePlan, Scratch};
use super::rows::Order;
use super::sites::StepOptions;
use crate::kernels::{FpEnv, KernelTable};
use crate::model::ModelWeights;
use crate::state::State;
use crate::team::{Meeting, Member, Ranks, Shares, Stop};
use core::fmt;
use core::ops::Range;

/// A model with the state of sequences and room to compute in.
#[derive(Debug)]
pub struct Engine<'m> {
    pub(super) model: ModelWeights<'m>,
    table: &'static KernelTable,
    pub(super) limits: EngineLimits,
    pub(super) state: State<'m>,
    /// The fingerprint that a replacement of the state must have.
    pub(super) state_fingerprint: u64,
    pub(super) scratch: Scratch<'m>,
    team: Ranks,
}

impl<'m> Engine<'m> {
    /// Builds an engine in the caller's memory, of the sizes in [`EnginePlan`]. The memory need not be
    /// zeroed.
    ///
    /// # Errors
    /// Limits out of range, heads that are too long, memory that is misaligned or too small.
    pub fn new(
        model: ModelWeights<'m>,
        table: &'static KernelTable,
        limits: &EngineLimits,
        kv_memory: &'m mut [u8],
        scratch_memory: &'m mut [u8],
    ) -> Result<Self, EngineError> {
        // Before the frame that holds an engine's parts: it has one of its own.
        EnginePlan::new(model.config(), limits)?;
        Self::build(model, table, limits, kv_memory, scratch_memory)
    }

    /// [`Self::new`] within limits that are sound.
    #[inline(never)]
    fn build(
        model: ModelWeights<'m>,
        table: &'static KernelTable,
        limits: &EngineLimits,
        kv_memory: &'m mut [u8],
        scratch_memory: &'m mut [u8],
    ) -> Result<Self, EngineError> {
        let model = model.with_longrope(limits.longrope);
        let config = model.config();
        let mut state = State::new(limits.state_config(config), kv_memory)?;
        for sequence in (0..limits.n_seq).filter_map(|s| u32::try_from(s).ok()) {
            state.set_long(sequence, model.is_long_at(0))?;
        }
        let scratch = Scratch::new(config, limits, scratch_memory)?;
        Ok(Self {
            state_fingerprint: state.config().layout_fingerprint(),
            model,
            table,
            limits: *limits,
            state,
            scratch,
            team: Ranks::new(limits.n_workers),
        })
    }

    /// The model.
    pub const fn model(&self) -> &ModelWeights<'m> {
        &self.model
    }

    /// The kernels in use.
    pub const fn table(&self) -> &'static KernelTable {
        self.table
    }

    /// The limits it was made with.
    pub const fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// The state of sequences, to read.
    pub const fn state(&self) -> &State<'m> {
        &self.state
    }

    /// The state of sequences, to fork, rewind, save and restore them. If it is replaced by
    /// another, that one must have the same [`State::config`].
    pub const fn state_mut(&mut self) -> &mut State<'m> {
        &mut self.state
    }

    /// Sets how the work of later steps is shared among the workers; `None`, the default, shares it
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

    /// Prepares a sequence for a text of `n_tokens` in all, before they are read. A longrope model computes a text
    /// that is longer than its original context with other divisors than a shorter one
    /// ([`crate::model::LongRope`]): tokens that were computed with the others are removed, and have to be read again.
    /// Returns whether there were some.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn fit(&mut self, sequence: u32, n_tokens: usize) -> Result<bool, EngineError> {
        let is_long = self.model.is_long_at(n_tokens);
        if is_long == self.state.is_long(sequence) {
            return Ok(false);
        }
        let had_tokens = !self.state.is_empty(sequence);
        self.state.clear(sequence)?;
        self.state.set_long(sequence, is_long)?;
        Ok(had_tokens)
    }

    /// Removes a range of a sequence and moves the tokens after it down (context shift).
    ///
    /// # Errors
    /// An unknown sequence, a range beyond its end, a model whose state does not allow it, or too few pages to
    /// copy shared ones.
    pub fn remove(&mut self, sequence: u32, range: Range<usize>) -> Result<(), EngineError> {
        let _env = FpEnv::enter();
        let (model, table) = (&self.model, self.table);
        Ok(self.state.remove(sequence, range, model, table)?)
    }

    /// Prepares a forward pass over `batch`. Every rank then joins and runs it.
    ///
    /// # Errors
    /// A batch that is empty, too long, or wants too much; an entry with an unknown token,
    /// sequence or adapter or an unexpected position; a head without hidden states, or another model with
    /// some; a full KV cache. Nothing has changed then.
    pub fn step<'s>(
        &'s mut self,
        batch: &'s [BatchEntry],
        options: StepOptions<'s>,
    ) -> Result<Step<'s, 'm>, EngineError> {
        let layers = 0..self.model.config().n_layer();
        self.prepare(batch, layers, None, options)
    }

    /// Prepares a pass of some layers only, over the caller's residual stream, (entries, n_embd). Every entry
    /// has to want its hidden state: the stream after the last of these layers. Nothing is kept: the
    /// sequences are unchanged, and entries see those before them in the batch and in their sequence, whose
    /// keys must be there. Recurrent states before a sequence's end may be evicted.
    ///
    /// # Errors
    /// As [`Self::step`]; layers that the model does not have, a stream of another length, an entry that does
    /// not want its hidden state alone.
    pub fn step_layers<'s>(
        &'s mut self,
        layers: Range<usize>,
        input: &'s [f32],
        batch: &'s [BatchEntry],
        options: StepOptions<'s>,
    ) -> Result<Step<'s, 'm>, EngineError> {
        let config = self.model.config();
        let (n_layer, n_embd) = (config.n_layer(), config.n_embd);
        if layers.is_empty() || layers.end > n_layer {
            return Err(EngineError::UnknownLayers {
                end: layers.end,
                n_layer,
            });
        }
        let expected = batch.len() * n_embd;
        if input.len() != expected {
            return Err(EngineError::StreamLength {
                expected,
                found: input.len(),
            });
        }
        let other = batch
            .iter()
            .position(|entry| entry.wants != super::Wants::Hidden);
        if let Some(entry) = other {
            return Err(EngineError::StreamUnwanted { entry });
        }
        self.prepare(batch, layers, Some(input), options)
    }

    fn prepare<'s>(
        &'s mut self,
        batch: &'s [BatchEntry],
        layers: Range<usize>,
        input: Option<&'s [f32]>,
        options: StepOptions<'s>,
    ) -> Result<Step<'s, 'm>, EngineError> {
        let start_ticks = options.clock.map_or(0, |clock| clock());
        self.check_hidden(batch, input.is_some(), &options)?;
        let wanted = self.check(batch, &options)?;
        if options.trace.is_some_and(|trace| !trace.take()) {
            return Err(EngineError::TraceInUse);
        }
        if let Err(error) = self.reserve(batch) {
            options.trace.inspect(|trace| trace.give_back());
            return Err(error);
        }
        let attention = &self.scratch.rooms.attention;
        let rows = [
            (Order::Batch, batch.len()),
            (Order::OutputsFirst, wanted.n_outputs),
        ];
        // SAFETY: no step is running: this one has the engine exclusively.
        let cut = |(order, n)| unsafe {
            let common = &self.scratch.common;
            attention.tiler.cut(attention, common, batch, order, n)
        };
        let n_tiles = rows.map(cut);
        self.team.reset();
        let asked = self.ask(batch, wanted, &options);
        Ok(Step {
            engine: self,
            batch,
            layers,
            input,
            options,
            wanted,
            n_tiles,
            asked,
            neurons: NeuronCounts::default(),
            start_ticks,
            committed: false,
        })
    }

    /// Takes room for the tokens of a batch, for all of its sequences or for none.
    fn reserve(&mut self, batch: &[BatchEntry]) -> Result<(), EngineError> {
        for (i, entry) in batch.iter().enumerate() {
            let n = self.pending(entry.sequence);
            if self.is_first(entry)
                && let Err(error) = self.state.reserve(entry.sequence, n)
            {
                for entry in &batch[..i] {
                    if self.is_first(entry) {
                        let n = self.pending(entry.sequence);
                        self.state.release_unused(entry.sequence, n);
                    }
                }
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Whether a checked entry is the first of its sequence in the batch: the one at the sequence's end.
    fn is_first(&self, entry: &BatchEntry) -> bool {
        entry.position as usize == self.state.len(entry.sequence)
    }

    /// Number of tokens of a sequence in the batch that was checked last.
    fn pending(&self, sequence: u32) -> usize {
        let s = sequence as usize;
        // SAFETY: written only by `check`, which has returned.
        unsafe { self.scratch.common.pending.read(s..s + 1)[0] as usize }
    }
}

/// A forward pass in progress. Dropped or stopped, it leaves the state of sequences as it was, except for
/// the last page of a fork, which may have been copied already, and recurrent states before a sequence's
/// end, which may have been evicted. Leaked, it keeps the room that it reserved.
#[derive(Debug)]
pub struct Step<'s, 'm> {
    engine: &'s mut Engine<'m>,
    batch: &'s [BatchEntry],
    layers: Range<usize>,
    input: Option<&'s [f32]>,
    options: StepOptions<'s>,
    wanted: Wanted,
    n_tiles: [usize; 2],
    asked: Asked,
    neurons: NeuronCounts,
    start_ticks: u64,
    committed: bool,
}

impl<'s, 'm> Step<'s, 'm> {
    /// Ranks that must join.
    pub const fn n_workers(&self) -> usize {
        self.engine.limits.n_workers
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

    /// Ends the step: its tokens belong to their sequences, and outputs can be read.
    ///
    /// # Errors
    /// [`EngineError::Stopped`] if it was cancelled, ran out of time or a worker failed;
    /// [`EngineError::NotRun`] if not every rank has run. The state is then as before.
    pub fn finish(mut self) -> Result<Outputs<'s>, EngineError> {
        if let Some(stop) = self.engine.team.stopped() {
            return Err(EngineError::Stopped(stop));
        }
        if !self.engine.team.all_finished() {
            return Err(EngineError::NotRun);
        }
        // Encoders read whole texts, and a pass of some layers is not a step: neither is committed.
        if self.engine.model.config().is_causal && self.input.is_none() {
            self.for_each_sequence(|state, sequence, n| state.commit(sequence, n));
        } else {
            self.for_each_sequence(|state, sequence, n| state.release_unused(sequence, n));
        }
        self.committed = true;
        let (scratch, batch) = (&self.engine.scratch, self.batch);
        // SAFETY: every rank has finished; the engine stays borrowed while outputs live.
        let entries = unsafe { scratch.common.outputs_first.read(0..self.wanted.n_outputs) };
        let n_logits = self.wanted.n_logits;
        // SAFETY: as above.
        Ok(unsafe {
            scratch
                .output
                .outputs(batch, entries, n_logits, self.report())
        })
    }

    fn report(&self) -> StepReport {
        let positions = self.batch.iter().map(|entry| entry.position as usize + 1);
        let now = self.options.clock.map_or(0, |clock| clock());
        StepReport {
            n_rows: self.batch.len(),
            n_outputs: self.wanted.n_outputs,
            n_positions: positions.sum(),
            neurons: self.neurons.get(),
            ticks: now.saturating_sub(self.start_ticks),
        }
    }

    fn for_each_sequence(&mut self, mut act: impl FnMut(&mut State<'m>, u32, usize)) {
        for entry in self.batch {
            // A commit moves the sequence's end past all of its entries here.
            if self.engine.is_first(entry) {
                let n = self.engine.pending(entry.sequence);
                act(&mut self.engine.state, entry.sequence, n);
            }
        }
    }
}

impl Drop for Step<'_, '_> {
    fn drop(&mut self) {
        if !self.committed {
            self.for_each_sequence(|state, sequence, n| state.release_unused(sequence, n));
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
    /// Runs this rank's part of the step. Sets this thread's floating-point environment to the numeric
    /// contract's, and restores it at the end.
    ///
    /// # Errors
    /// Why the step stopped; all ranks leave together.
    pub fn run(mut self) -> Result<(), Stop> {
        let _env = FpEnv::enter();
        let (step, engine) = (self.step, &*self.step.engine);
        let scratch = &engine.scratch;
        let pass = Pass {
            model: &engine.model,
            table: engine.table,
            common: &scratch.common,
            state: engine.state.view(),
            batch: step.batch,
            wanted: step.wanted,
            n_tiles: step.n_tiles,
            asked: step.asked,
            neurons: Counting {
                all: &step.neurons,
                layers: step.options.neurons,
            },
            layers: step.layers.clone(),
            input: step.input,
            options: &step.options,
            limits: &engine.limits,
        };
        let result = forward::run(&pass, &scratch.rooms, &scratch.output, &mut self.member);
        self.member.finish(result)
    }
}
