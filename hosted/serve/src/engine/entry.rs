//! The state of a model that other threads read without asking the engine's thread.

use super::job::JobError;
use super::share::Share;
use super::view::ModelView;
use crate::metrics::{EndFigures, Metrics};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A model's entry.
#[derive(Debug)]
pub(super) struct Entry {
    /// Number of waiting choices, embeddings and scores of each share, with its parked texts and unread ends.
    waiting: Mutex<HashMap<Share, usize>>,
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
            waiting: Mutex::default(),
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

    /// Adds `n` to the waiting ones of a share, unless it already has `max`: no share fills the queue for others.
    pub(super) fn queue(&self, share: &Share, n: usize, max: usize) -> Result<(), JobError> {
        let mut waiting = self.lock_waiting();
        let n_waiting = waiting.get(share).copied().unwrap_or_default();
        if n_waiting < max.max(1) {
            waiting.insert(share.clone(), n_waiting + n);
            self.metrics.queued("capacity");
            return Ok(());
        }
        drop(waiting);
        self.metrics.rejected("queue_full");
        let pace = self.pace_ms.load(Ordering::Relaxed);
        let retry = pace.saturating_mul(n_waiting as u64);
        Err(JobError::Busy {
            n_waiting,
            retry: Duration::from_millis(retry.clamp(1000, 60_000)),
        })
    }

    /// Adds one that waits again, however many there are: a text that gave up its place, or whose end is not read.
    pub(super) fn requeue(&self, share: &Share) {
        *self.lock_waiting().entry(share.clone()).or_default() += 1;
    }

    /// Removes `n` from the waiting ones of a share.
    pub(super) fn unqueue(&self, share: &Share, n: usize) {
        let mut waiting = self.lock_waiting();
        let left = waiting.get(share).map_or(0, |all| all.saturating_sub(n));
        if left == 0 {
            waiting.remove(share);
        } else {
            waiting.insert(share.clone(), left);
        }
    }

    fn lock_waiting(&self) -> MutexGuard<'_, HashMap<Share, usize>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn show(&self, view: ModelView) {
        self.metrics
            .gauges(view.n_running, view.n_waiting, view.kv_usage);
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
        self.show(ModelView::default());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::format;

    #[test]
    fn a_lost_model_runs_nothing() {
        let metrics = Arc::new(Metrics::new("m"));
        let entry = Entry::new(Arc::clone(&metrics), 8);
        let shown = |n: usize| {
            let page = format(&[Arc::clone(&metrics)], "any", None);
            let mut lines = page.lines();
            let line = lines.find(|line| line.contains("num_requests_running{"));
            assert!(line.unwrap().ends_with(&format!(" {n}.0")), "{line:?}");
            assert_eq!(entry.view().n_running, n);
        };
        entry.show(ModelView {
            n_running: 3,
            ..ModelView::default()
        });
        shown(3);
        entry.lose();
        shown(0);
        assert!(entry.is_lost());
    }
}
