//! Experts on disk: some in memory, the others read as layers need them.
//!
//! ```text
//! worker 0     announce(layer, experts) ─▶ need ─▶ reads ─▶ device
//! last worker  expect(layer + 1, …)     ─▶ ahead ┘             │ its thread
//! workers      lend(expert, part) ◀── slots ◀── completed ◀────┘
//! ```
//!
//! Workers read slots without a lock. Needs, evictions and reads under way are behind a lock ([`State`]), which is held
//! for microseconds.

mod ahead;
mod check;
mod fetch;
mod governor;
mod head;
mod need;
mod open;
mod order;
mod slots;
mod stats;
mod trouble;

pub(crate) use head::HeadExperts;
pub use stats::{ExpertStats, READ_TIMES};

use super::cold::Home;
use super::device::Device;
use super::error::ExpertError;
use super::places::Places;
use super::policy::{EvictionPolicy, Worth};
use super::trace::TraceWriter;
use crate::host::futex::FutexWait;
use crate::host::measures::HostMeasure;
use crate::host::placement::pages;
use ahead::Ahead;
use check::Checks;
use core::cell::Cell;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use fetch::Flights;
use need::Need;
use order::Order;
use slots::{Progress, Slots};
use sluice_core::engine::{ExpertPart, ExpertSource, Loan, NeededExperts};
use sluice_core::team::WaitPolicy as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// A model's experts, read from disk as its layers need them.
pub struct ExpertStore {
    shared: Arc<Shared>,
    notes: Vec<String>,
    /// The process that opened it.
    process: u32,
    /// The drives' NUMA nodes; empty if they are unknown.
    nodes: Vec<usize>,
    /// Layer number of the experts of a head that predicts a token further.
    head_layer: Option<usize>,
}

/// Shared by workers and the device's threads.
struct Shared {
    places: Places,
    /// Where neurons have their places, instead of slots.
    home: Option<Home>,
    slots: Slots,
    /// By number in the layer at work, how many workers have yet to be lent the part.
    to_read: [Box<[AtomicU32]>; 2],
    /// The layer at work plus 1; 0 for none.
    layer: AtomicUsize,
    arrivals: AtomicU32,
    /// Workers wait for room: the worker that gives back an expert wakes them.
    is_short: AtomicBool,
    /// An expert and the arrivals at which it was last refused room.
    refused: AtomicU64,
    stall_ns: AtomicU64,
    checks: Option<Checks>,
    state: Mutex<State>,
    device: OnceLock<Box<dyn Device>>,
    is_closing: AtomicBool,
    looks_ahead: AtomicBool,
    /// A step at work.
    turn: Mutex<()>,
}

/// State behind the lock.
struct State {
    worth: Worth,
    /// By slot.
    info: Box<[Info]>,
    /// Slots without an expert.
    free: Vec<usize>,
    /// Occupied slots, except those with guesses for a layer to come.
    order: Order,
    /// Slots with guesses for a layer to come.
    guessed: Vec<usize>,
    need: Need,
    flights: Flights,
    ahead: Ahead,
    stats: ExpertStats,
    error: Option<ExpertError>,
    /// The error that a step reported: as long as its read is under way, it is the next step's reason, too.
    told: Option<ExpertError>,
    trace: Option<Tracing>,
}

/// A slot, as the filling side sees it.
#[derive(Clone, Copy, Debug, Default)]
struct Info {
    /// Reads of each part that are under way.
    n_reading: [u8; 2],
    /// The place in its guess, of an expert that was guessed for a layer to come.
    guess: Option<u8>,
}

struct Tracing {
    writer: TraceWriter,
    path: PathBuf,
    /// Steps so far.
    n_steps: u64,
    hits: Vec<bool>,
    experts: Vec<u32>,
}

impl ExpertStore {
    /// How experts are read, in words.
    #[must_use]
    pub fn io_name(&self) -> &'static str {
        self.shared
            .device
            .get()
            .map_or("none", |device| device.name())
    }

    /// Which expert is evicted for another.
    #[must_use]
    pub fn policy(&self) -> EvictionPolicy {
        self.shared.lock().worth.policy()
    }

    /// Shortcomings to report to the user.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether it has neurons of a dense model, in clusters of 64, instead of experts.
    #[must_use]
    pub fn lends_neurons(&self) -> bool {
        self.shared.home.is_some()
    }

    /// What it lends, in the plural.
    #[must_use]
    pub fn noun(&self) -> &'static str {
        match self.lends_neurons() {
            true => "clusters of neurons",
            false => "experts",
        }
    }

    /// Maximum number of bytes that experts or clusters in memory take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let slots = self.shared.slots.len() * self.shared.places.slot_bytes;
        match self.lends_neurons() {
            // A slot is as large as the largest cluster, but has no memory of its own.
            true => slots.min(usize::try_from(self.total_bytes()).unwrap_or(slots)),
            false => slots,
        }
    }

    /// Bytes of all experts, in memory or not.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.shared.places.total_bytes
    }

    /// The memory's placement, if the drives' NUMA nodes are known.
    #[must_use]
    pub fn placement(&self) -> Option<HostMeasure> {
        let memory = self.shared.slots.memory();
        let is_bound = !self.nodes.is_empty() && !memory.is_empty();
        is_bound.then(|| pages::report("experts", memory, &self.nodes))
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> ExpertStats {
        let state = self.shared.lock();
        ExpertStats {
            stall: Duration::from_nanos(self.shared.stall_ns.load(Ordering::Relaxed)),
            n_reading: state.flights.len(),
            enters: self
                .shared
                .device
                .get()
                .map_or(0, |device| device.n_enters()),
            ..state.stats
        }
    }

    /// The last error, once.
    #[must_use]
    pub fn take_error(&self) -> Option<ExpertError> {
        self.shared.lock().error.take()
    }

    /// Why a step had no experts: the last error, even if it was reported before.
    pub(crate) fn step_error(&self) -> Option<ExpertError> {
        let mut state = self.shared.lock();
        let told = state.error.take();
        state.told = told.or(state.told.take());
        state.told.clone()
    }

    /// A step's turn: steps that share a store run one after the other.
    pub(crate) fn turn(&self) -> Turn<'_> {
        Turn {
            shared: &self.shared,
            _guard: self
                .shared
                .turn
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// A step that holds the store.
pub(crate) struct Turn<'s> {
    shared: &'s Shared,
    _guard: MutexGuard<'s, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.shared.end_step();
    }
}

impl Drop for ExpertStore {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // In a child of a fork: the threads are its parent's, which continues to use the memory.
            return;
        }
        self.shared.is_closing.store(true, Ordering::SeqCst);
        if let Some(device) = self.shared.device.get() {
            device.close();
        }
    }
}

impl fmt::Debug for ExpertStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpertStore")
            .field("io", &self.io_name())
            .field("n_slots", &self.shared.slots.len())
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// Since when this thread waits for an expert.
    static WAITS_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

impl ExpertSource for ExpertStore {
    fn announce(&self, needed: &NeededExperts<'_>) {
        self.shared.announce(needed);
    }

    fn looks_ahead(&self) -> Option<usize> {
        let looks = self.shared.looks_ahead.load(Ordering::Relaxed);
        looks.then_some(ahead::N_MORE)
    }

    fn expect(&self, layer: usize, experts: &[u32]) {
        self.shared.expect(layer, experts);
    }

    fn hot_neurons(&self, layer: usize) -> Option<usize> {
        let places = self.shared.places.layers.get(layer)?;
        places.as_ref()?.n_hot
    }

    fn lend(&self, layer: usize, expert: u32, part: ExpertPart) -> Loan<'_> {
        let shared = &*self.shared;
        let Some(places) = shared.places.layers[layer].as_ref() else {
            return Loan::Failed;
        };
        let lent = match shared.layer.load(Ordering::Acquire) == layer + 1 {
            true => shared.lend(places.first_id + expert, part),
            false => Err(Progress::Coming),
        };
        match lent {
            Ok(slot) => {
                WAITS_SINCE.with(|since| {
                    if let Some(since) = since.take() {
                        let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                        shared.stall_ns.fetch_add(ns, Ordering::Relaxed);
                    }
                });
                // SAFETY: the part is ready, and lent until it is given back.
                Loan::Ready(unsafe { shared.slots.weights(slot, &places.matrices, part) })
            }
            Err(Progress::Failed) => Loan::Failed,
            Err(_) => {
                WAITS_SINCE.with(|since| {
                    if since.get().is_none() {
                        since.set(Some(Instant::now()));
                    }
                });
                Loan::OnItsWay
            }
        }
    }

    fn give_back(&self, layer: usize, expert: u32, part: ExpertPart) {
        let shared = &*self.shared;
        let places = shared.places.layers[layer].as_ref();
        let id = places.map_or(0, |places| places.first_id + expert);
        if let Some(slot) = shared.slots.of(id) {
            shared.slots.give_back(slot);
        }
        shared.to_read[part as usize][expert as usize].fetch_sub(1, Ordering::SeqCst);
        if shared.is_short.load(Ordering::SeqCst) && shared.is_short.swap(false, Ordering::SeqCst) {
            shared.wake();
        }
    }

    fn arrivals(&self) -> Option<&AtomicU32> {
        Some(&self.shared.arrivals)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot that holds the part, which is then lent.
    fn lend(&self, id: u32, part: ExpertPart) -> Result<usize, Progress> {
        match self.slots.lend(id, part) {
            Err(Progress::Empty) => {}
            result => return result,
        }
        let arrivals = self.arrivals.load(Ordering::SeqCst);
        let key = u64::from(id) << 32 | u64::from(arrivals);
        if self.refused.load(Ordering::Relaxed) == key {
            return Err(Progress::Coming);
        }
        self.is_short.store(true, Ordering::SeqCst);
        let mut state = self.lock();
        if !self.ask(&mut state, id, part) {
            self.refused.store(key, Ordering::Relaxed);
        }
        drop(state);
        Err(Progress::Coming)
    }

    /// A read is done, or room has become free.
    fn wake(&self) {
        self.arrivals.fetch_add(1, Ordering::SeqCst);
        FutexWait::YIELDING.wake(&self.arrivals);
    }

    /// Marks that no layer is at work any more.
    fn end_step(&self) {
        self.layer.store(0, Ordering::SeqCst);
        let mut state = self.lock();
        state.need.end();
        state.need.next = self.next_with_experts(0);
        self.drop_guesses(&mut state, None);
        state.ahead.governor.end_step();
        if let Some(tracing) = &mut state.trace {
            tracing.n_steps += 1;
            let flushed = tracing.writer.flush().map_err(|error| error.to_string());
            let lost = match tracing.writer.n_lost() {
                0 => Ok(()),
                n => Err(format!(
                    "{n} layers of a step were dropped: more than fit in the buffer between tokens"
                )),
            };
            if let Err(reason) = flushed.and(lost) {
                let path = tracing.path.clone();
                state
                    .error
                    .get_or_insert(ExpertError::Trace { path, reason });
                state.trace = None;
            }
        }
    }
}
