//! Why a step ends early, and how to request it.

use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

/// Why a step ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// [`StopFlag::stop`] was called.
    Cancelled,
    /// The step's deadline passed.
    DeadlinePassed,
    /// A worker left without finishing (it panicked, or was dropped).
    WorkerFailed {
        /// The worker's rank.
        rank: usize,
    },
    /// The weights of an expert could not be loaded ([`crate::engine::Loan::Failed`]).
    SourceFailed,
}

impl Stop {
    /// The reason that ranks agreed on at a barrier.
    pub(super) const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            0 => None,
            bits if bits & CANCELLED != 0 => Some(Self::Cancelled),
            bits if bits & SOURCE_FAILED != 0 => Some(Self::SourceFailed),
            _ => Some(Self::DeadlinePassed),
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("cancelled"),
            Self::DeadlinePassed => f.write_str("the deadline has passed"),
            Self::WorkerFailed { rank } => write!(f, "worker {rank} failed"),
            Self::SourceFailed => f.write_str("the weights of an expert could not be had"),
        }
    }
}

impl core::error::Error for Stop {}

/// A request to stop, to be shared with a signal handler or another thread.
#[derive(Debug, Default)]
pub struct StopFlag(AtomicU32);

impl StopFlag {
    /// A flag without a request.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Requests that running and future steps stop. Safe to call in a signal handler.
    pub fn stop(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Withdraws the request.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether a stop is requested.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

/// A point in time of the caller's clock.
#[derive(Clone, Copy)]
pub struct Deadline<'a> {
    /// Reads the clock, in ticks.
    pub clock: &'a (dyn Fn() -> u64 + Sync),
    /// The step stops at the first barrier at or after this tick.
    pub ticks: u64,
}

impl fmt::Debug for Deadline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadline")
            .field("ticks", &self.ticks)
            .finish_non_exhaustive()
    }
}

/// A flag's bits: the reasons that a rank reports at a barrier.
pub(super) const CANCELLED: u32 = 1;
pub(super) const DEADLINE: u32 = 2;
pub(super) const SOURCE_FAILED: u32 = 4;
/// The number of these bits.
pub(super) const BITS: u32 = 3;
