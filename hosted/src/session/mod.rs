//! A session: a model at work on several texts at once.
#![forbid(unsafe_code)]

mod entries;
mod error;
mod events;
mod hooks;
mod limits;
mod longrope;
mod pages;
mod speculation;
mod texts;

pub use error::{GenerateError, SessionError, StepError};
pub use events::TokenEvent;
pub use hooks::{StepHooks, StopHandle};
pub use limits::{Limits, StateSizes};
pub use pages::SavedText;
pub use texts::BatchStats;

use crate::adapter::AdapterBlend;
use crate::experts::ExpertStore;
use crate::host::isa::kernel_table;
use crate::host::memory::AlignedMemory;
use crate::host::pace::Pace;
use crate::host::profile::Profile;
use crate::model::Model;
use crate::owned::{Borrower, Owned};
use crate::sparse_modes::{SparseMode, SparsePlan};
use crate::speculate::Speculation;
use crate::team::Team;
use core::fmt;
use core::ops::Range;
use core::time::Duration;
use sluice_core::engine::{
    self, BatchEntry, Engine, EngineError, EnginePlan, Neurons, Outputs, Sparse, StepOptions,
};
use sluice_core::kernels::KernelTable;
use sluice_core::kernels::table::Prefetch;
use sluice_core::state::State;
use sluice_core::team::StopFlag;
use std::sync::Arc;
use std::time::Instant;

/// A model at work: its KV cache, room to compute in, and the current speed of memory.
/// It owns or shares all that it needs, and may move to another thread.
///
/// Texts are [`Sequence`](crate::Sequence)s: [`begin`](Self::begin) adds one, [`fork`](Self::fork) makes two of
/// one, and [`step`](Self::step) advances any of them together, prompts in pieces. A text depends
/// neither on the others nor on its place among them.
pub struct Session {
    engine: Owned<Engines, (Model, AlignedMemory, AlignedMemory)>,
    model: Model,
    team: Team,
    pace: Pace,
    sparse: SparseMode,
    /// Those of all steps.
    neurons: Neurons,
    stop: StopHandle,
    profile: Option<Profile>,
    pub(crate) adapter: Option<AdapterBlend>,
    speculation: Option<Box<Speculation>>,
    /// Maximum draft tokens of a text in a step.
    n_draft: usize,
    /// Whether samplers are shown hidden states.
    pub(crate) shows_hidden: bool,
    /// One for each sequence of the KV cache; a second owner marks the sequence as in use.
    claims: Vec<Arc<()>>,
    batch: Vec<BatchEntry>,
    /// For each sequence given to a step, where its entries begin and end in the batch.
    parts: Vec<(usize, usize)>,
}

impl Model {
    /// A session on the threads of this machine.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn session(&self, limits: Limits) -> Result<Session, SessionError> {
        let team = Team::of_machine().map_err(SessionError::Threads)?;
        self.session_on(&team, limits)
    }

    /// The mode of a session with [`Limits::sparse`]: what is asked for, else the model's own.
    ///
    /// # Errors
    /// The model is not by neuron, or was opened without this mode.
    pub fn sparse_mode(&self, asked: Option<SparseMode>) -> Result<SparseMode, SessionError> {
        let own = self.sparse_plan().map(SparsePlan::mode);
        match asked {
            Some(SparseMode::Exact) if !self.is_by_neuron() => Err(SessionError::NotByNeuron),
            Some(mode) if mode.is_approximate() && Some(mode) != own => {
                Err(SessionError::OtherMode(mode))
            }
            Some(mode) => Ok(mode),
            None if self.is_by_neuron() => Ok(own.unwrap_or(SparseMode::Exact)),
            None => Ok(own.unwrap_or(SparseMode::Off)),
        }
    }

    /// A session on the threads of `team`.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn session_on(&self, team: &Team, limits: Limits) -> Result<Session, SessionError> {
        Session::new(self, team, limits)
    }
}

impl Session {
    fn new(model: &Model, team: &Team, limits: Limits) -> Result<Self, SessionError> {
        let table = match limits.table {
            Some(table) => table,
            None => kernel_table(None)?,
        };
        let sparse = model.sparse_mode(limits.sparse)?;
        let n_draft = if model.embeds() { 0 } else { limits.n_draft };
        let limits = limits.resolved(model, team.count());
        let plan = EnginePlan::new(model.config(), &limits)?;
        let memory = |len| {
            let n_ctx = limits.n_ctx;
            AlignedMemory::zeroed(len).map_err(|error| SessionError::Memory { n_ctx, error })
        };
        let memory = (
            model.clone(),
            memory(plan.kv_bytes)?,
            memory(plan.scratch_bytes)?,
        );
        let engine = Owned::new(memory, |(model, kv, scratch)| {
            let mut engine = Engine::new(model.weights().clone(), table, &limits, kv, scratch)?;
            engine.set_shares(team.shares())?;
            Ok::<_, EngineError>(engine)
        })?;
        Ok(Self {
            engine,
            model: model.clone(),
            team: team.clone(),
            pace: Pace::new(),
            sparse,
            neurons: Neurons::default(),
            stop: Arc::new(StopFlag::new()).into(),
            profile: None,
            adapter: None,
            speculation: None,
            n_draft,
            shows_hidden: false,
            claims: (0..limits.n_seq).map(|_| Arc::new(())).collect(),
            batch: Vec::with_capacity(limits.n_batch),
            parts: Vec::with_capacity(limits.n_seq),
        })
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The threads.
    #[must_use]
    pub const fn team(&self) -> &Team {
        &self.team
    }

    /// The limits it was made with.
    #[must_use]
    pub fn limits(&self) -> &engine::EngineLimits {
        self.engine.get().limits()
    }

    /// The kernels in use.
    #[must_use]
    pub fn table(&self) -> &'static KernelTable {
        self.engine.get().table()
    }

    /// The state of sequences, read-only.
    #[must_use]
    pub fn state(&self) -> &State<'_> {
        self.engine.get().state()
    }

    /// The flag that stops its steps. Another thread may keep it.
    #[must_use]
    pub const fn stop(&self) -> &StopHandle {
        &self.stop
    }

    /// Stops its steps when `stop` is set.
    pub fn set_stop(&mut self, stop: impl Into<StopHandle>) {
        self.stop = stop.into();
    }

    /// Collects the time of steps by operator, from now on.
    pub fn set_profile(&mut self, profile: Option<Profile>) {
        self.profile = profile;
    }

    /// The time of steps by operator, if it is collected.
    #[must_use]
    pub const fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// Sets the adapters of texts begun from now on without their own
    /// ([`Settings::adapter`](crate::Settings)). A step refuses adapters that need a larger
    /// [`Limits::adapter_rank`](crate::Limits), or other `adapter_kinds`.
    pub fn set_adapter(&mut self, adapter: Option<AdapterBlend>) {
        self.adapter = adapter;
    }

    /// The adapters of texts without their own.
    #[must_use]
    pub const fn adapter(&self) -> Option<&AdapterBlend> {
        self.adapter.as_ref()
    }

    /// The adapter index of entries without a sequence.
    pub(crate) fn own_adapter(&self) -> Option<u32> {
        self.adapter.as_ref().map(|_| 0)
    }

    /// Fixes how products of few tokens prefetch weights. `None`, the default, uses what was faster in the
    /// steps before.
    pub const fn set_prefetch(&mut self, way: Option<Prefetch>) {
        self.pace.fix(way);
    }

    /// How the last step of few tokens prefetched weights.
    #[must_use]
    pub const fn prefetch(&self) -> Prefetch {
        self.pace.last()
    }

    /// Which neurons its steps leave unread, or out.
    #[must_use]
    pub const fn sparse(&self) -> SparseMode {
        self.sparse
    }

    /// Neurons of all steps so far: how many could be left unread, and how many were.
    #[must_use]
    pub const fn neurons(&self) -> Neurons {
        self.neurons
    }

    /// Runs one step over `batch`, whose sequences and positions the caller keeps track of, and hands its
    /// outputs to `read` with the time it took. Allocates nothing.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn run<R>(
        &mut self,
        batch: &[BatchEntry],
        hooks: &StepHooks<'_>,
        read: impl FnOnce(&Outputs<'_>, Duration) -> R,
    ) -> Result<R, StepError> {
        self.run_all_or(None, batch, hooks, read)
    }

    /// Runs some layers over the caller's residual stream, (entries, n_embd), as
    /// [`Engine::step_layers`](sluice_core::engine::Engine::step_layers): the sequences are unchanged.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn run_layers<R>(
        &mut self,
        layers: Range<usize>,
        stream: &[f32],
        batch: &[BatchEntry],
        hooks: &StepHooks<'_>,
        read: impl FnOnce(&Outputs<'_>) -> R,
    ) -> Result<R, StepError> {
        self.run_all_or(Some((layers, stream)), batch, hooks, |outputs, _| {
            read(outputs)
        })
    }

    fn run_all_or<R>(
        &mut self,
        layers: Option<(Range<usize>, &[f32])>,
        batch: &[BatchEntry],
        hooks: &StepHooks<'_>,
        read: impl FnOnce(&Outputs<'_>, Duration) -> R,
    ) -> Result<R, StepError> {
        let (team, prefetch) = (&self.team, self.pace.next(batch.len()));
        let own = self.adapter.as_ref().map(AdapterBlend::parts);
        let adapters = match hooks.adapters {
            [] => own.as_slice(),
            given => given,
        };
        let sparse = hooks
            .sparse
            .unwrap_or(match (self.sparse, self.model.sparse_plan()) {
                (SparseMode::Off, _) => Sparse::Off,
                (SparseMode::Approximate(..), Some(plan)) => plan.sparse(),
                _ => Sparse::Exact,
            });
        let (wait, stop, profile) = (team.wait_policy(), &*self.stop, self.profile.as_ref());
        // Waiting for another session is not part of a step's time.
        let (store, source) = (self.model.experts(), self.model.expert_source());
        let turn = store.map(ExpertStore::turn);
        let mut workers = team.workers();
        let start = Instant::now();
        let stepped = self.engine.with_mut(|engine| {
            let options = StepOptions {
                deadline: hooks.deadline,
                trace: hooks.trace.or_else(|| profile.map(Profile::ring)),
                adapters,
                observer: hooks.observer,
                experts: hooks.experts.or(source),
                selector: hooks.selector,
                sparse,
                neurons: hooks.neurons,
                hidden: hooks.hidden,
                prefetch,
                ..StepOptions::new(&wait, stop)
            };
            let step = match layers {
                Some((layers, stream)) => engine.step_layers(layers, stream, batch, options),
                None => engine.step(batch, options),
            };
            let step = step.map_err(StepError::Engine)?;
            let outcome = workers.run(|rank| {
                if let Some(worker) = step.join(rank) {
                    // `finish` returns why it stopped, the same for all ranks.
                    let _stopped = worker.run();
                }
            });
            outcome.map_err(StepError::Panicked)?;
            let finished = step.finish().map_err(|error| StepError::of(error, store));
            drop(turn);
            let outputs = finished?;
            let time = start.elapsed();
            drop(workers);
            let neurons = outputs.report().neurons;
            Ok((read(&outputs, time), time, neurons))
        });
        if let Some(profile) = &mut self.profile {
            profile.collect();
        }
        let (value, time, neurons) = stepped?;
        self.neurons += neurons;
        self.pace.note(batch.len(), time);
        Ok(value)
    }

    /// Calls `f` with the state of sequences: to save, restore and measure them by their number.
    pub fn with_state<R>(&mut self, f: impl for<'a> FnOnce(&mut State<'a>) -> R) -> R {
        self.engine.with_mut(|engine| f(engine.state_mut()))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("model", &self.model.name())
            .field("limits", self.limits())
            .finish_non_exhaustive()
    }
}

/// Engines.
struct Engines;

impl Borrower for Engines {
    type Of<'a> = Engine<'a>;

    fn shorten<'s, 'a: 's>(value: &'s Engine<'a>) -> &'s Engine<'s> {
        value
    }
}
