//! A team of threads that sessions use in turn.

use crate::host::futex::FutexWait;
use crate::host::measures::HostMeasure;
use crate::host::placement::WorkerOptions;
use crate::host::topology::Cores;
use crate::host::workers::{WorkerPanicked, Workers};
use core::fmt;
use sluice_core::team::Shares;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Threads, placed and waiting, that run one job at a time. A clone is the same team: several
/// models, a draft and embeddings can share one, and simultaneous jobs run one after the other.
/// The threads end with the last clone.
///
/// Rank 0 is the calling thread. A job must not use its own team: it would wait for itself.
#[derive(Clone)]
pub struct Team(Arc<Shared>);

struct Shared {
    workers: Mutex<Workers>,
    count: usize,
    wait: FutexWait,
    shares: Option<Shares>,
}

/// The team of [`Team::of_machine`], while it is in use.
static OF_MACHINE: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

impl Team {
    /// The team of this process: a thread for each physical core it may use. All callers get the
    /// same one.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn of_machine() -> io::Result<Self> {
        let mut known = OF_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shared) = known.upgrade() {
            return Ok(Self(shared));
        }
        let cores = Cores::detect();
        let team = Self::new(cores.default_workers(), &cores)?;
        *known = Arc::downgrade(&team.0);
        Ok(team)
    }

    /// A team of `n` ranks on the cores in `cores`, each on a CPU of its own as far as they go.
    ///
    /// # Errors
    /// A thread could not be started.
    ///
    /// # Panics
    /// If `n` is not `1..=`[`WORKERS_MAX`](crate::host::workers::WORKERS_MAX).
    pub fn new(n: usize, cores: &Cores) -> io::Result<Self> {
        Self::with_options(n, cores, WorkerOptions::default())
    }

    /// As [`Self::new`], with placement and waiting from `options`.
    ///
    /// # Errors
    /// As [`Self::new`].
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn with_options(n: usize, cores: &Cores, options: WorkerOptions) -> io::Result<Self> {
        Ok(Workers::with_options(n, cores, options)?.into())
    }

    /// Ranks, the calling thread among them.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count
    }

    /// How ranks should wait for each other in a job.
    #[must_use]
    pub fn wait_policy(&self) -> FutexWait {
        self.0.wait
    }

    /// Calls `job` with every rank, each on its thread, and waits for all, as [`Workers::run`].
    ///
    /// # Errors
    /// [`WorkerPanicked`] for the first rank that did.
    pub fn run<F: Fn(usize) + Sync>(&self, job: F) -> Result<(), WorkerPanicked> {
        self.workers().run(job)
    }

    /// How its ranks share the work of steps; `None` is equally.
    #[must_use]
    pub fn shares(&self) -> Option<&Shares> {
        self.0.shares.as_ref()
    }

    /// Ranks that run on a CPU of their own.
    #[must_use]
    pub fn pinned_count(&self) -> usize {
        self.workers().pinned_count()
    }

    /// CPUs for threads that the caller starts outside of the team: [`Workers::cpus_before`].
    #[must_use]
    pub fn cpus_before(&self) -> Vec<usize> {
        self.workers().cpus_before().to_vec()
    }

    /// Requests to the kernel for every rank, and their results.
    #[must_use]
    pub fn measures(&self) -> Vec<HostMeasure> {
        self.workers().measures().to_vec()
    }

    /// The threads, for one user at a time.
    pub(crate) fn workers(&self) -> MutexGuard<'_, Workers> {
        // A panic of a job stays in it; one of its user leaves the threads idle.
        self.0
            .workers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Workers> for Team {
    fn from(workers: Workers) -> Self {
        Self(Arc::new(Shared {
            count: workers.count(),
            wait: *workers.wait_policy(),
            shares: workers.shares().cloned(),
            workers: Mutex::new(workers),
        }))
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Team")
            .field("count", &self.0.count)
            .finish_non_exhaustive()
    }
}
