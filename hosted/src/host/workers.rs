//! A team of threads that run one job together.
//!
//! The threads are made once; a job is a closure that every rank calls with its rank. Handing
//! one over allocates nothing. Rank 0 is the thread that calls [`Workers::run`]; the others wait
//! for work by spinning a moment and then sleeping.

use crate::host::activity::Run;
use crate::host::cpus::CpuList;
use crate::host::futex::{FutexWait, Signal};
use crate::host::measures::HostMeasure;
use crate::host::placement::{Bind, WorkerOptions};
use crate::host::topology::{Cores, bind_current_thread, current_affinity, current_cpus};
use core::any::Any;
use core::cell::UnsafeCell;
use core::error::Error;
use core::fmt;
use core::hint::black_box;
use core::mem::ManuallyDrop;
use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use sluice_core::kernels::KernelTable;
use sluice_core::kernels::probe::{Peak, Probe};
use sluice_core::team::Shares;
use std::io;
use std::panic::catch_unwind;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

pub use sluice_core::team::WORKERS_MAX;

/// Threads for ranks 1 and up; rank 0 is the caller of [`Self::run`], whose affinity is left
/// alone. A program that wants it pinned as well does so with
/// [`pin_current_thread`](crate::host::topology::pin_current_thread) (see [`Self::first_cpu`]).
#[derive(Debug)]
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    placement: Vec<Option<usize>>,
    /// All CPUs of the team.
    cpus: Vec<usize>,
    options: WorkerOptions,
    measures: Vec<HostMeasure>,
    caller_placed: bool,
    /// Where the caller could run before it was placed.
    cpus_before: Vec<usize>,
    /// Why ranks that were to be pinned are not, with the rank.
    refusals: Vec<(usize, io::Error)>,
    wait: FutexWait,
    /// Number of threads.
    others: u32,
    /// How work is shared; `None` is equally.
    shares: Option<Shares>,
    /// The process that has the threads: after a fork, its child does not have them.
    process: u32,
}

/// A rank's job panicked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerPanicked {
    /// The rank that failed first.
    pub rank: usize,
    /// The panic's message.
    pub message: String,
}

impl fmt::Display for WorkerPanicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, message } = self;
        write!(f, "worker {rank} failed: {message}")
    }
}

impl Error for WorkerPanicked {}

impl Workers {
    /// A team of `n` ranks on the cores in `cores`, each on a CPU of its own as far as they go.
    /// A refused pin does not fail the call: see [`Self::refusals`].
    ///
    /// # Errors
    /// A thread could not be started.
    ///
    /// # Panics
    /// If `n` is not `1..=`[`WORKERS_MAX`].
    pub fn new(n: usize, cores: &Cores) -> io::Result<Self> {
        Self::with_options(n, cores, WorkerOptions::default())
    }

    /// As [`Self::new`], with placement and waiting from `options`.
    ///
    /// # Errors
    /// A thread could not be started.
    ///
    /// # Panics
    /// If `n` is not `1..=`[`WORKERS_MAX`].
    pub fn with_options(n: usize, cores: &Cores, options: WorkerOptions) -> io::Result<Self> {
        assert!((1..=WORKERS_MAX).contains(&n), "{n} workers");
        let placement = cores.placement(n);
        // More workers than CPUs: one that waits should leave the CPU to another at once.
        let wait = if placement.iter().all(Option::is_some) {
            FutexWait::with_poll(options.poll)
        } else {
            FutexWait::YIELDING
        };
        let shared = Arc::new(Shared {
            run: Signal::new(0, wait),
            busy: Signal::new(0, wait),
            job: UnsafeCell::new(None),
            panicked: Mutex::new(None),
        });
        // Threads started so far are stopped by the drop, should a later one not start.
        let mut workers = Self {
            shared,
            threads: Vec::with_capacity(n - 1),
            placement,
            cpus: cores.cpus(),
            options,
            measures: Vec::new(),
            caller_placed: false,
            cpus_before: Vec::new(),
            refusals: Vec::new(),
            wait,
            others: 0,
            shares: None,
            process: std::process::id(),
        };
        let (report, reports) = channel();
        for rank in 1..n {
            workers.spawn(rank, report.clone())?;
        }
        drop(report);
        let mut found: Vec<Applied> = reports.into_iter().collect();
        found.sort_by_key(|applied| applied.rank);
        for applied in found {
            workers.measures.extend(applied.measures);
            let refusal = applied.refusal.map(|error| (applied.rank, error));
            workers.refusals.extend(refusal);
        }
        Ok(workers)
    }

    fn spawn(&mut self, rank: usize, report: Sender<Applied>) -> io::Result<()> {
        let (shared, request) = (Arc::clone(&self.shared), self.request(rank));
        let name = format!("sluice-{rank}");
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            // The receiver lives until every sender is gone.
            let _received = report.send(request.apply());
            drop(report);
            shared.serve(rank);
        })?;
        self.threads.push(thread);
        self.others += 1;
        Ok(())
    }

    /// The requests of a rank's thread.
    fn request(&self, rank: usize) -> Request {
        let cpus = match (self.placement[rank], self.options.bind) {
            (Some(cpu), Bind::Own) => vec![cpu],
            (_, Bind::Together) => self.cpus.clone(),
            (None, Bind::Own) => Vec::new(),
        };
        Request {
            rank,
            cpus,
            options: self.options,
        }
    }

    /// Places the calling thread, which is rank 0, like the other ranks. A program that owns the
    /// thread calls this once; [`Self::measures`] then includes all ranks.
    pub fn place_caller(&mut self) {
        if !self.caller_placed {
            self.cpus_before = current_cpus().unwrap_or_default();
        }
        self.caller_placed = true;
        let applied = self.request(0).apply();
        let refusal = applied.refusal.map(|error| (0, error));
        self.refusals.extend(refusal);
        self.measures.splice(0..0, applied.measures);
    }

    /// The CPUs that the calling thread could run on before [`Self::place_caller`]: for threads that it starts outside
    /// of the team, which would otherwise inherit its placement. Empty if it was not placed.
    pub fn cpus_before(&self) -> &[usize] {
        &self.cpus_before
    }

    /// Requests to the kernel for every rank, and their results.
    pub fn measures(&self) -> &[HostMeasure] {
        &self.measures
    }

    /// Calls `job` with every rank, each on its thread, and waits for all.
    ///
    /// A panic stays within the call: the process continues and the team can be used again. The
    /// other ranks are waited for, so a job whose ranks wait for each other must notice that one
    /// is gone; the engine's jobs do.
    ///
    /// # Errors
    /// [`WorkerPanicked`] with the first rank that panicked, or with rank 0 in a child created by
    /// fork, as the other ranks' threads are in the parent.
    pub fn run<F: Fn(usize) + Sync>(&mut self, job: F) -> Result<(), WorkerPanicked> {
        if self.is_elsewhere() {
            let message = "the process was forked from the one that has the threads".to_owned();
            return Err(WorkerPanicked { rank: 0, message });
        }
        let _run = Run::begin();
        let shared = &*self.shared;
        let erased = Job {
            data: (&raw const job).cast(),
            call: call::<F>,
        };
        // SAFETY: `&mut self` and every rank idle (the last run waited for them): no other thread
        // accesses the cell until `run` is updated.
        unsafe { *shared.job.get() = Some(erased) };
        shared.busy.update(|_| self.others);
        shared.run.update(|run| run.wrapping_add(1));
        // From here on the others use `job`, so this frame must not be left before they are
        // done, whatever happens.
        let everyone = WaitForAll(shared);
        shared.attempt(0, || job(0));
        drop(everyone);
        let mut panicked = shared
            .panicked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        panicked.take().map_or(Ok(()), Err)
    }

    /// Whether the threads belong to another process.
    fn is_elsewhere(&self) -> bool {
        self.others > 0 && self.process != std::process::id()
    }

    /// Measures how fast each rank computes, all at the same time, and shares the work of steps
    /// accordingly from now on; returns the speeds, the fastest 1. It takes 40 ms. For teams on
    /// cores of two kinds: tokens do not depend on it.
    ///
    /// # Errors
    /// [`WorkerPanicked`].
    pub fn share_by_speed(&mut self, table: &KernelTable) -> Result<Vec<f32>, WorkerPanicked> {
        let speeds: Vec<AtomicU64> = (0..self.count()).map(|_| AtomicU64::new(0)).collect();
        let probe = Probe::of(table);
        self.run(|rank| {
            // The first run only raises the clock and wakes wide units.
            for _ in 0..2 {
                let (start, mut rounds) = (Instant::now(), 0u32);
                while start.elapsed() < SPEED_TIME {
                    black_box(probe.compute(Peak::Int8, SPEED_ROUNDS));
                    rounds += SPEED_ROUNDS;
                }
                let speed = f64::from(rounds) / start.elapsed().as_secs_f64();
                speeds[rank].store(speed.to_bits(), Ordering::Relaxed);
            }
        })?;
        let speeds = speeds.into_iter().map(AtomicU64::into_inner);
        let speeds: Vec<f64> = speeds.map(f64::from_bits).collect();
        let fastest = speeds.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        #[expect(clippy::cast_possible_truncation, reason = "at most 1")]
        let speeds: Vec<f32> = speeds
            .iter()
            .map(|speed| (speed / fastest) as f32)
            .collect();
        self.shares = Shares::by_speed(&speeds);
        Ok(speeds)
    }

    /// How steps share work; `None`, as at first, is equally.
    pub const fn shares(&self) -> Option<&Shares> {
        self.shares.as_ref()
    }

    /// Ranks in the team.
    pub fn count(&self) -> usize {
        self.threads.len() + 1
    }

    /// How ranks should wait for each other in a job.
    pub const fn wait_policy(&self) -> &FutexWait {
        &self.wait
    }

    /// The CPU that rank 0, the caller, would be pinned to.
    pub fn first_cpu(&self) -> Option<usize> {
        self.placement[0]
    }

    /// Ranks that run on a CPU of their own; rank 0 once [`Self::place_caller`] has run.
    pub fn pinned_count(&self) -> usize {
        let own = |rank: usize| self.options.bind == Bind::Own && self.placement[rank].is_some();
        let first = usize::from(!self.caller_placed);
        let wanted = (first..self.count()).filter(|&rank| own(rank)).count();
        wanted.saturating_sub(self.refusals.len())
    }

    /// Ranks that the kernel would not pin, and why.
    pub fn refusals(&self) -> &[(usize, io::Error)] {
        &self.refusals
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if self.is_elsewhere() {
            // There is nothing to join, and a thread that does not exist must not be detached.
            let _handles = ManuallyDrop::new(core::mem::take(&mut self.threads));
            return;
        }
        // SAFETY: as in `run`: every rank is idle.
        unsafe { *self.shared.job.get() = None };
        self.shared.run.update(|run| run.wrapping_add(1));
        for thread in self.threads.drain(..) {
            // A thread catches its job's panics; its own end is not ours to report in a drop.
            let _ended = thread.join();
        }
    }
}

/// How long each of the two runs of [`Workers::share_by_speed`] takes.
const SPEED_TIME: Duration = Duration::from_millis(20);
/// Rounds between two looks at the clock, some 20 µs.
const SPEED_ROUNDS: u32 = 200;

/// Requests of a rank's thread to the kernel.
#[derive(Debug)]
struct Request {
    rank: usize,
    /// CPUs to bind to; empty leaves the thread where it is.
    cpus: Vec<usize>,
    options: WorkerOptions,
}

/// Results of a request.
#[derive(Debug)]
struct Applied {
    rank: usize,
    measures: Vec<HostMeasure>,
    /// Why the thread is not bound.
    refusal: Option<io::Error>,
}

impl Request {
    fn apply(self) -> Applied {
        let Self {
            rank,
            cpus,
            options,
        } = self;
        let (mut measures, mut refusal) = (Vec::new(), None);
        if !cpus.is_empty() {
            let name = format!("affinity of thread {rank}");
            let bound = bind_current_thread(&cpus);
            let requested = format!("CPU {}", CpuList(cpus));
            let found = current_affinity();
            measures.push(match bound {
                Ok(()) => HostMeasure::held(name, requested, found),
                Err(error) => {
                    let measure = HostMeasure::refused(name, requested, found, &error);
                    refusal = Some(error);
                    measure.with_remedy("taskset or a cgroup cpuset that has these CPUs")
                }
            });
        }
        measures.extend(options.priority.apply(format_args!("thread {rank}")));
        Applied {
            rank,
            measures,
            refusal,
        }
    }
}

#[derive(Debug)]
struct Shared {
    /// Number of the latest run.
    run: Signal,
    /// Ranks other than 0 that have not finished it.
    busy: Signal,
    /// The latest run's job; none ends the threads. Written by rank 0 while all others are idle,
    /// read by them after they saw `run` change.
    job: UnsafeCell<Option<Job>>,
    /// The first panic of the latest run.
    panicked: Mutex<Option<WorkerPanicked>>,
}

// SAFETY: `job` is the only part that is not Sync, and its comment says who accesses it when;
// `run` and `busy` order the accesses.
unsafe impl Sync for Shared {}
// SAFETY: a job's closure is Sync, so it may be called from any thread.
unsafe impl Send for Shared {}

/// A closure without its type.
#[derive(Clone, Copy, Debug)]
struct Job {
    data: *const (),
    /// Calls the closure at `data` with a rank.
    call: unsafe fn(*const (), usize),
}

/// # Safety
/// - `data` points to an `F` that lives until the call returns.
unsafe fn call<F: Fn(usize) + Sync>(data: *const (), rank: usize) {
    // SAFETY: by the caller.
    let job = unsafe { &*data.cast::<F>() };
    job(rank);
}

impl Shared {
    /// The loop of a rank's thread: runs every job until rank 0 sets none.
    fn serve(&self, rank: usize) {
        let mut seen = 0;
        loop {
            seen = self.run.wait_while(|run| run == seen);
            // SAFETY: `run` has changed, so rank 0 has written the job and does not touch it
            // again before this rank counts itself out of `busy`.
            let Some(job) = (unsafe { *self.job.get() }) else {
                return;
            };
            // SAFETY: rank 0 keeps the closure alive until `busy` is 0.
            self.attempt(rank, || unsafe { (job.call)(job.data, rank) });
            self.busy.update(|busy| busy - 1);
        }
    }

    /// Runs `work` and keeps the message of the first panic.
    fn attempt(&self, rank: usize, work: impl FnOnce()) {
        // What the job shares between ranks is its business, as with any thread.
        let Err(payload) = catch_unwind(AssertUnwindSafe(work)) else {
            return;
        };
        let message = panic_message(&*payload).to_owned();
        drop_payload(payload);
        let mut panicked = self.panicked.lock().unwrap_or_else(PoisonError::into_inner);
        panicked.get_or_insert(WorkerPanicked { rank, message });
    }
}

/// Waits for the other ranks when dropped.
struct WaitForAll<'s>(&'s Shared);

impl Drop for WaitForAll<'_> {
    fn drop(&mut self) {
        self.0.busy.wait_while(|busy| busy > 0);
    }
}

/// Drops the payload of a panic. The drop may panic, and the payload of that panic is leaked.
pub fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        let _left = ManuallyDrop::new(another);
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests;
