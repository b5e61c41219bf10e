//! Whether any team of this process works.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::LazyLock;
use std::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);
static RUNNING: AtomicUsize = AtomicUsize::new(0);
static N_RUNS: AtomicU64 = AtomicU64::new(0);
/// Microseconds from [`START`] to the end of the last run.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Counts as a run as long as it lives.
pub(super) struct Run(());

impl Run {
    pub(super) fn begin() -> Self {
        RUNNING.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let since = u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX);
        ENDED.fetch_max(since, Ordering::Relaxed);
        N_RUNS.fetch_add(1, Ordering::Relaxed);
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Number of runs that have ended.
pub(crate) fn n_runs() -> u64 {
    N_RUNS.load(Ordering::Relaxed)
}

/// How long ago the last run ended; `None` while one runs.
pub(crate) fn quiet_for() -> Option<Duration> {
    let is_quiet = RUNNING.load(Ordering::Relaxed) == 0;
    let ended = Duration::from_micros(ENDED.load(Ordering::Relaxed));
    is_quiet.then(|| START.elapsed().saturating_sub(ended))
}
