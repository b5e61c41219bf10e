//! A model without memory: its texts are parked until it is added again.

use super::entry::Entry;
use super::job::{Job, JobError, ModelId};
use super::pool::{Chain, Key};
use super::queue::Queue;
use super::running::{Running, Unread};
use super::share::Ledger;
use super::tasks::Task;
use super::view::ModelView;
use sluice::identity::ModelIdentity;
use std::sync::Arc;
use std::time::Instant;

/// The work of a model that is not in memory. All running texts are parked.
pub(super) struct Suspended {
    pub(super) id: ModelId,
    /// Only the same weights continue a text.
    pub(super) identity: ModelIdentity,
    pub(super) queue: Queue,
    pub(super) running: Running,
    pub(super) ledger: Ledger,
    pub(super) entry: Arc<Entry>,
    /// What the keys of pages depend on.
    pub(super) base: Key,
}

impl Suspended {
    /// Adds a job.
    pub(super) fn push(&mut self, job: Job) {
        let chain = Chain::of_job(&self.base, &job);
        self.ledger.enter(&job.share);
        self.queue.push(job, chain);
    }

    /// Adds a task.
    pub(super) fn push_task(&mut self, task: Task) {
        self.ledger.enter(task.share());
        self.queue.push_task(task);
    }

    /// Whether there is anything to wait for.
    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.running.is_done()
    }

    /// Ends texts whose client has disconnected or whose time is over, and sends events that were held.
    pub(super) fn sweep(&mut self) {
        let now = Instant::now();
        self.running.sweep(now, &self.entry);
        self.queue.sweep(now);
        drop(self.running.take_ended(&self.entry));
        self.running.send_events();
        let view = ModelView {
            n_waiting: self.queue.len() + self.running.n_parked(),
            ..ModelView::default()
        };
        self.entry.show(view);
    }

    /// Ends all work. Returns what readers have not read.
    pub(super) fn close(mut self, error: &JobError) -> Unread {
        self.queue.close(error);
        self.running.close(error, &self.entry)
    }
}
