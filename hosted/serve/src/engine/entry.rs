//! What the threads around the engine's know of a model without asking it.

use super::ModelView;
use super::job::{EmbedJob, JobError, Why};
use super::running::{Request, Running};
use crate::metrics::{Finished, Metrics};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use sluice::sequence::Ended;
use std::sync::{Arc, Mutex, PoisonError};

/// A model's entry.
#[derive(Debug)]
pub(super) struct Entry {
    /// Choices and embeddings that wait.
    pub(super) n_waiting: AtomicUsize,
    pub(super) n_ctx: usize,
    pub(super) metrics: Arc<Metrics>,
    pub(super) view: Mutex<ModelView>,
    /// Milliseconds between the ends of choices, about.
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

    /// Counts `n` more that wait.
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

    pub(super) fn show(&self, view: ModelView) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    /// The thread has taken the model out.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Counts a choice that has ended.
    pub(super) fn finished(&self, running: &Running, why: &Why) {
        let reason = match why {
            Why::Ended(Ended::EndOfText) | Why::Stop(_) => "stop",
            Why::Ended(Ended::Length | Ended::ContextFull) => "length",
            Why::Ended(Ended::Closed | Ended::Interrupted) | Why::Late => "abort",
            Why::Ended(Ended::Failed) | Why::Failed(_) => "error",
        };
        let (timings, inference) = (&running.timings, running.began.elapsed());
        self.metrics.finished(Finished {
            reason,
            e2e: running.request.arrived.elapsed(),
            inference,
            prefill: if timings.n_predicted > 0 {
                timings.prompt
            } else {
                inference
            },
            decode: timings.predict,
            n_prompt: running.request.prompt.len(),
            n_predicted: timings.n_predicted,
        });
        let last = self.pace_ms.load(Ordering::Relaxed);
        let now = u64::try_from(inference.as_millis()).unwrap_or(u64::MAX);
        self.pace_ms
            .store((3 * last + now.min(600_000)) / 4, Ordering::Relaxed);
    }

    /// Counts a choice that nobody waited for any longer, before it began.
    pub(super) fn left(&self, request: &Request) {
        self.metrics.finished(Finished {
            reason: "abort",
            e2e: request.arrived.elapsed(),
            inference: Duration::ZERO,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
            n_prompt: request.prompt.len(),
            n_predicted: 0,
        });
    }

    /// Counts an embedding that has ended.
    pub(super) fn embedded(&self, job: &EmbedJob) {
        let n_prompt = job.texts.iter().map(Vec::len).sum();
        let e2e = job.arrived.elapsed();
        self.metrics.finished(Finished {
            reason: "stop",
            e2e,
            inference: e2e,
            prefill: e2e,
            decode: Duration::ZERO,
            n_prompt,
            n_predicted: 0,
        });
    }
}
