//! Passes decisions from a stream's thread to Python.

use core::ops::ControlFlow;
use core::time::Duration;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sluice::core::gate::Decision;
use sluice_gate::Sink;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Decisions that wait for Python.
#[derive(Debug)]
pub(super) struct Outputs {
    queue: Mutex<Queue>,
    arrived: Condvar,
    capacity: usize,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) decided: VecDeque<Decided>,
    /// Number of decisions dropped for lack of room.
    pub(super) lost: u64,
    n_waiting: usize,
}

#[derive(Debug)]
pub(super) struct Decided {
    pub(super) index: u64,
    pub(super) decision: Decision,
    /// The samples of a frame that passed, if they are kept.
    pub(super) samples: Option<Box<[f32]>>,
}

/// The worker's side of the outputs.
#[derive(Debug)]
pub(super) struct Collector {
    pub(super) outputs: Arc<Outputs>,
    pub(super) keeps_frames: bool,
}

impl Sink for Collector {
    fn passed(&mut self, index: u64, frame: &[f32], decision: &Decision) -> ControlFlow<()> {
        let samples = self.keeps_frames.then(|| frame.into());
        self.outputs.add(Decided {
            index,
            decision: *decision,
            samples,
        });
        ControlFlow::Continue(())
    }

    fn silent(&mut self, index: u64, _: &[f32], decision: &Decision) -> ControlFlow<()> {
        self.outputs.add(Decided {
            index,
            decision: *decision,
            samples: None,
        });
        ControlFlow::Continue(())
    }
}

impl Outputs {
    /// Outputs with room for `capacity` decisions.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            capacity,
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a decision, or counts it as lost.
    fn add(&self, decided: Decided) {
        let mut queue = self.queue();
        if queue.decided.len() >= self.capacity {
            queue.lost += 1;
            return;
        }
        queue.decided.push_back(decided);
        // Without a waiting thread, notifying would waste a system call per frame.
        if queue.n_waiting > 0 {
            self.arrived.notify_all();
        }
    }

    /// Takes up to `n_max`, oldest first.
    pub(super) fn take(&self, n_max: usize) -> Vec<Decided> {
        let mut queue = self.queue();
        let n = queue.decided.len().min(n_max);
        queue.decided.drain(..n).collect()
    }

    /// Waits until there is a decision, but no longer than this.
    pub(super) fn wait(&self, longest: Duration) {
        let mut queue = self.queue();
        queue.n_waiting += 1;
        let waited = self
            .arrived
            .wait_timeout_while(queue, longest, |queue| queue.decided.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.n_waiting -= 1;
    }
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Until {
    Now,
    At(Instant),
    Ever,
}

impl Until {
    pub(super) fn left(self) -> Duration {
        match self {
            Self::Now => Duration::ZERO,
            Self::At(end) => end.saturating_duration_since(Instant::now()),
            Self::Ever => Duration::MAX,
        }
    }
}

/// # Errors
/// ValueError if the time is below 0 seconds.
pub(super) fn deadline(timeout: Option<f64>) -> PyResult<Until> {
    let Some(seconds) = timeout else {
        return Ok(Until::Ever);
    };
    if seconds.is_nan() || seconds < 0.0 {
        let message = format!("timeout is {seconds}, expected at least 0 seconds, or None");
        return Err(PyValueError::new_err(message));
    }
    if seconds == 0.0 {
        return Ok(Until::Now);
    }
    let end = Duration::try_from_secs_f64(seconds).ok();
    let end = end.and_then(|length| Instant::now().checked_add(length));
    Ok(end.map_or(Until::Ever, Until::At))
}
