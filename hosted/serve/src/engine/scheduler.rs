//! Schedules a model's work: one turn at a time.

use super::admission::Admission;
use super::entry::Entry;
use super::job::{Job, JobError, ModelId};
use super::options::EngineOptions;
use super::pace::reads_whole;
use super::plan::{Plan, Planner};
use super::pool::{Backing, Chain, Pool, StoredFile};
use super::queue::{Fetch, Queue};
use super::request::Request;
use super::running::{Running, Unread};
use super::share::Ledger;
use super::slot::{SlotAction, SlotDone};
use super::step::step;
use super::suspended::Suspended;
use super::tasks::{Progress, Task, TaskEngines, TaskKind};
use super::telemetry::{Stage, Stages};
use super::view::{ModelView, SlotView};
use crate::Log;
use core::time::Duration;
use sluice::{Limits, Session};
use sluice_core::state::PAGE_TOKENS;
use std::sync::Arc;
use std::time::Instant;

/// The parts that a scheduler is made from.
pub(super) struct SchedulerParts {
    pub(super) id: ModelId,
    pub(super) session: Session,
    /// The session's limits, without the room for caches.
    pub(super) limits: Limits,
    pub(super) entry: Arc<Entry>,
    pub(super) backing: Option<Backing>,
    pub(super) options: EngineOptions,
    pub(super) stages: Arc<Stages>,
    pub(super) log: Log,
}

/// Schedules the work of a model: texts, embeddings, scores.
pub(super) struct ModelScheduler {
    id: ModelId,
    queue: Queue,
    pool: Pool,
    running: Running,
    ledger: Ledger,
    planner: Planner,
    engines: TaskEngines,
    entry: Arc<Entry>,
    stages: Arc<Stages>,
    log: Log,
}

impl ModelScheduler {
    pub(super) fn new(parts: SchedulerParts) -> Self {
        let is_whole = reads_whole(parts.session.model());
        let (options, log, entry) = (parts.options, parts.log, parts.entry);
        let turn = if is_whole {
            Duration::MAX
        } else {
            options.turn
        };
        let (session, every) = (parts.session, options.checkpoint_every);
        Self {
            id: parts.id,
            queue: Queue::new(Arc::clone(&entry), options.reader_buffer),
            planner: Planner::new(&options, session.limits().n_batch, is_whole),
            engines: TaskEngines::new(&session, parts.limits, turn, Arc::clone(&log)),
            pool: Pool::new(session, parts.backing, every, Arc::clone(&log)),
            running: Running::default(),
            ledger: Ledger::default(),
            entry,
            stages: parts.stages,
            log,
        }
    }

    /// Parks all texts and frees the model's memory.
    pub(super) fn suspend(mut self) -> Suspended {
        self.running.take_out(&mut self.pool, &self.entry);
        for run in self.running.runs_mut() {
            if !run.text().is_parked() {
                run.park(&mut self.pool, &self.entry);
            }
        }
        self.running.take_out(&mut self.pool, &self.entry);
        self.queue.leave_session();
        self.pool.write_behind(usize::MAX);
        Suspended {
            id: self.id,
            identity: self.pool.session().model().identity().clone(),
            base: *self.pool.base(),
            queue: self.queue,
            running: self.running,
            ledger: self.ledger,
            entry: self.entry,
        }
    }

    /// Goes on with the work of the same model. If that is not possible, the work ends, and what is unread is returned.
    pub(super) fn resume(&mut self, suspended: Suspended) -> Option<Unread> {
        let (before, now) = (&suspended.identity, self.pool.session().model().identity());
        let is_same_hash = before.hash().is_some() && before.hash() == now.hash();
        if before.place() != now.place() && !is_same_hash {
            let message = "the model's file changed while the text waited for its next turn";
            let unread = suspended.close(&JobError::Failed(message.to_owned()));
            self.show();
            return Some(unread);
        }
        (self.queue, self.running) = (suspended.queue, suspended.running);
        // This planner begins to count turns again.
        self.running.runs_mut().for_each(|run| run.take_part(0));
        self.ledger = suspended.ledger;
        None
    }

    pub(super) const fn id(&self) -> ModelId {
        self.id
    }

    /// Adds a job.
    pub(super) fn push(&mut self, job: Job) {
        let chain = Chain::of_job(self.pool.base(), &job);
        self.ledger.enter(&job.share);
        self.queue.push(job, chain);
    }

    /// Adds a task.
    pub(super) fn push_task(&mut self, task: Task) {
        self.ledger.enter(task.share());
        self.queue.push_task(task);
    }

    /// Takes the pages that the disk has read for the request with arrival number `arrival`.
    pub(super) fn put_pages(&mut self, arrival: u64, files: Vec<StoredFile>) {
        if let Some(waiting) = self.queue.get_mut(arrival) {
            waiting.fetch = Fetch::Done;
            self.pool
                .put_pages(&waiting.request, &mut waiting.chain, files);
        }
    }

    /// Saves, restores or erases a slot between two steps, for a client of `group`.
    pub(super) fn act(
        &mut self,
        slot: u32,
        group: &Arc<str>,
        action: &SlotAction,
    ) -> Result<SlotDone, JobError> {
        let mut runs = self.running.in_memory();
        if runs.any(|(_, run)| run.text().sequence().slot() == slot) {
            return Err(JobError::Slot(format!("slot {slot} is in use")));
        }
        let chains = self.running.runs().map(|run| run.text().chain());
        let keys = chains.flat_map(Chain::keys).copied().collect();
        let done = self.pool.act(slot, group, action, &keys);
        self.show();
        done
    }

    /// Whether there is anything to do, now or later.
    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.running.is_done() || self.pool.has_unwritten()
    }

    /// Runs one turn; false if nothing could be done.
    pub(super) fn turn(&mut self) -> bool {
        let start = Instant::now();
        self.running.sweep(start, &self.entry);
        self.queue.sweep(start);
        self.running.take_out(&mut self.pool, &self.entry);
        self.forget_shares();
        let mut admission = Admission {
            queue: &mut self.queue,
            pool: &mut self.pool,
            running: &mut self.running,
            ledger: &self.ledger,
            entry: &self.entry,
        };
        admission.admit();
        admission.fork_followers();
        admission.shift();
        let plan = self
            .planner
            .plan(&mut self.running, &mut self.pool, &self.entry);
        let is_step = !plan.is_empty();
        let mut end = start;
        if is_step {
            let planned = self.stages.note(Stage::Build, start);
            step(
                &plan,
                &mut self.running,
                &mut self.pool,
                &mut self.planner,
                &self.entry,
                &self.log,
            );
            end = self.stages.note(Stage::Enqueue, planned);
            self.charge(&plan, end - planned);
        }
        self.running.take_out(&mut self.pool, &self.entry);
        // A client that sees a token can also see it in the slots and the counters.
        self.show();
        self.running.send_events();
        let is_task = self.step_tasks();
        if is_task {
            self.show();
        }
        let is_written = self.pool.write_behind(if is_step { 2 } else { 64 });
        if is_step {
            self.stages.note(Stage::Flush, end);
        }
        is_step || is_task || is_written
    }

    /// Charges the time of a step to its texts' shares, by their numbers of tokens.
    fn charge(&mut self, plan: &Plan, time: Duration) {
        let whole: usize = plan.rows().iter().map(|row| row.n_tokens).sum();
        for row in plan.rows() {
            if let Some(run) = self.running.get_mut(row.run) {
                #[expect(clippy::cast_precision_loss, reason = "a part of one")]
                let part = row.n_tokens as f64 / whole.max(1) as f64;
                self.ledger
                    .charge(&run.request().share, time.as_secs_f64() * part);
            }
        }
    }

    /// Forgets what was charged to shares that have nothing to do.
    fn forget_shares(&mut self) {
        if self.ledger.is_shared() {
            let running = self.running.runs().map(|run| &run.request().share);
            self.ledger.retain(running.chain(self.queue.shares()));
        }
    }

    /// Runs a step of the first task of each kind; false if there are no tasks.
    fn step_tasks(&mut self) -> bool {
        let mut is_any = false;
        for kind in TaskKind::ALL {
            let Some(mut task) = self.queue.pop_task(kind, &self.ledger) else {
                continue;
            };
            is_any = true;
            let start = Instant::now();
            let outcome = self.engines.step(&mut task);
            let time = start.elapsed().as_secs_f64();
            self.ledger.charge(task.share(), time);
            match outcome {
                Ok(Progress::Unfinished) => self.queue.hold_task(task),
                Ok(Progress::Between) => self.queue.push_task(task),
                outcome => {
                    self.entry.unqueue(task.share(), 1);
                    if let Some(figures) = task.finished() {
                        self.entry.metrics().finished(figures);
                    }
                    task.answer(outcome.map(drop));
                }
            }
        }
        is_any
    }

    /// Ends all work: the model is being removed. Returns what readers have not read.
    pub(super) fn close(mut self, error: &JobError) -> Unread {
        self.queue.close(error);
        self.running.close(error, &self.entry)
    }

    /// Publishes that the model is gone.
    pub(super) fn lose(&self) {
        self.entry.lose();
    }

    /// Publishes the current state.
    fn show(&self) {
        let limits = self.pool.session().limits();
        let n_read = self.running.runs().map(|run| run.text().n_read());
        let held: usize = n_read.map(|n| n.div_ceil(PAGE_TOKENS)).sum();
        let n_ctx_pages = limits.n_ctx.div_ceil(PAGE_TOKENS).max(1);
        #[expect(clippy::cast_precision_loss, reason = "a part of one")]
        let kv_usage = (held as f64 / n_ctx_pages as f64).min(1.0);
        let view = ModelView {
            slots: self.slots(),
            n_waiting: self.queue.len() + self.running.n_parked(),
            n_running: self.running.n_in_memory(),
            kv_usage,
            cached_pages: self.pool.cached_pages(),
            cache_pages_max: self.pool.cache_pages_max(),
        };
        let metrics = self.entry.metrics();
        if limits.adapter_rank > 0 {
            let running = self.running.runs().map(|run| run.request());
            metrics.adapters(adapters_of(running), adapters_of(self.queue.requests()));
        }
        self.entry.show(view);
    }

    /// All slots by number: running, idle and empty ones.
    fn slots(&self) -> Vec<SlotView> {
        let session = self.pool.session();
        let speculates = session.speculation().is_some();
        let mut slots = SlotView::empty(session.limits().n_seq, speculates);
        for view in self
            .pool
            .idle()
            .chain(self.running.in_memory().map(|(_, run)| run.view()))
        {
            if let Some(slot) = slots.get_mut(view.id as usize) {
                *slot = SlotView { speculates, ..view };
            }
        }
        slots
    }
}

/// The distinct adapter names of some requests.
fn adapters_of<'r>(requests: impl Iterator<Item = &'r Request>) -> Vec<Arc<str>> {
    let names = requests.filter_map(Request::adapter_name);
    let mut names: Vec<_> = names.map(Arc::clone).collect();
    names.sort_unstable();
    names.dedup();
    names
}
