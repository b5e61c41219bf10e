//! A model without memory: its texts are parked until it is added again.

use super::entry::Entry;
use super::job::{Job, JobError, ModelId, Why};
use super::queue::Queue;
use super::running::Running;
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
    /// Work that came since.
    pub(super) jobs: Vec<Job>,
    pub(super) tasks: Vec<Task>,
}

impl Suspended {
    /// Ends texts whose client has disconnected or whose time is over, and sends events that were held.
    pub(super) fn sweep(&mut self) {
        let now = Instant::now();
        self.running.sweep(now);
        self.queue.sweep(now);
        drop(self.running.take_ended(&self.entry));
        self.running.send_events();
        let view = ModelView {
            n_waiting: self.queue.len() + self.running.n_parked() + self.jobs.len(),
            ..ModelView::default()
        };
        let metrics = self.entry.metrics();
        metrics.gauges(view.n_running, view.n_waiting, view.kv_usage);
        self.entry.show(view);
    }

    /// Ends all work.
    pub(super) fn close(mut self, error: &JobError) {
        // The entry may go on with the model's next file.
        self.entry.clear_waiting();
        self.queue.close(error);
        for run in self.running.runs_mut() {
            run.end(Why::Failed(error.clone()));
        }
        drop(self.running.take_ended(&self.entry));
        for task in self.tasks {
            task.answer(Err(error.clone()));
        }
    }
}
