//! The state of a model that other threads read without asking the engine's thread.

use super::job::JobError;
use super::view::ModelView;
use crate::metrics::{EndFigures, Metrics};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A model's entry.
#[derive(Debug)]
pub(super) struct Entry {
    /// Number of waiting choices, embeddings and scores.
    n_waiting: AtomicUsize,
    n_ctx: usize,
    metrics: Arc<Metrics>,
    view: Mutex<ModelView>,
    /// Approximate time between the ends of choices, in milliseconds.
    pace_ms: AtomicU64,
    is_lost: AtomicBool,
}

impl Entry {
    pub(super) fn new(metrics: Arc<Metrics>, n_ctx: usize) -> Self {
        Self {
            n_waiting: AtomicUsize::new(0),
            n_ctx,
            metrics,
            view: Mutex::default(),
            pace_ms: AtomicU64::new(1000),
            is_lost: AtomicBool::new(false),
        }
    }

    pub(super) const fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Adds `n` to the waiting ones, unless there are already `max`.
    pub(super) fn queue(&self, n: usize, max: usize) -> Result<(), JobError> {
        let more = |waiting: usize| (waiting < max.max(1)).then_some(waiting + n);
        let queued = self
            .n_waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        match queued {
            Ok(_) => {
                self.metrics.queued("capacity");
                Ok(())
            }
            Err(n_waiting) => {
                self.metrics.rejected("queue_full");
                let retry = self
                    .pace_ms
                    .load(Ordering::Relaxed)
                    .saturating_mul(n_waiting as u64);
                Err(JobError::Busy {
                    n_waiting,
                    retry: Duration::from_millis(retry.clamp(1000, 60_000)),
                })
            }
        }
    }

    /// Removes `n` from the waiting ones.
    pub(super) fn unqueue(&self, n: usize) {
        self.n_waiting.fetch_sub(n, Ordering::Relaxed);
    }

    pub(super) fn show(&self, view: ModelView) {
        *self.lock_view() = view;
    }

    pub(super) fn view(&self) -> ModelView {
        self.lock_view().clone()
    }

    fn lock_view(&self) -> MutexGuard<'_, ModelView> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the model as removed by the engine's thread.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Records that a choice has ended, and updates the estimate of waiting times.
    pub(super) fn finished(&self, end: EndFigures) {
        let now = u64::try_from(end.inference.as_millis()).unwrap_or(u64::MAX);
        self.metrics.finished(end);
        let last = self.pace_ms.load(Ordering::Relaxed);
        self.pace_ms
            .store((3 * last + now.min(600_000)) / 4, Ordering::Relaxed);
    }
}
