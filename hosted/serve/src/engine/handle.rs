//! A handle on the engine's thread.

use super::entry::Entry;
use super::job::{EmbedJob, Job, JobError, ModelId, ScoreJob};
use super::options::{EngineOptions, ModelOptions};
use super::pool::{Backing, DiskCache};
use super::scheduler::SchedulerParts;
use super::slot::{SlotAction, SlotDone};
use super::tasks::Task;
use super::telemetry::{Stages, Writer};
use super::thread::{self, Command, SlotCommand};
use super::view::ModelView;
use crate::Log;
use core::fmt;
use core::time::Duration;
use sluice::session::SessionError;
use sluice::{Limits, Model, Team};
use sluice_core::state::PAGE_TOKENS;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::oneshot;

/// A handle on the engine's thread. Clones share the engine.
#[derive(Clone)]
pub struct EngineHandle {
    inner: Arc<Inner>,
}

struct Inner {
    team: Team,
    options: EngineOptions,
    log: Log,
    commands: Sender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
    models: Mutex<Models>,
    stages: Arc<Stages>,
    telemetry: Mutex<Option<Writer>>,
}

/// The models of the engine's thread.
#[derive(Debug, Default)]
struct Models {
    entries: HashMap<ModelId, Arc<Entry>>,
    last: u32,
    disk: Option<DiskCache>,
}

impl EngineHandle {
    /// Starts the thread. Steps run on `team`; Problems are logged to `log`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(team: Team, options: EngineOptions, log: Log) -> io::Result<Self> {
        let (commands, received) = mpsc::channel();
        let for_thread = log.clone();
        let stages = Arc::new(Stages::new());
        let write = |path| Writer::start(Arc::clone(&stages), path, log.clone());
        let telemetry = options.telemetry.clone().map(write).transpose()?;
        let noted = Arc::clone(&stages);
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || thread::run(&received, &for_thread, &noted))?;
        Ok(Self {
            inner: Arc::new(Inner {
                team,
                options,
                log,
                commands,
                thread: Mutex::new(Some(thread)),
                models: Mutex::new(Models::default()),
                stages,
                telemetry: Mutex::new(telemetry),
            }),
        })
    }

    /// The threads that steps run on.
    #[must_use]
    pub fn team(&self) -> &Team {
        &self.inner.team
    }

    /// Adds a model. Its session is made on the calling thread, which takes memory and some time.
    ///
    /// # Errors
    /// There is not enough memory for its context.
    pub fn add(&self, options: ModelOptions) -> Result<ModelId, SessionError> {
        let ModelOptions {
            model,
            limits,
            metrics,
            parked,
            speculation,
            drafter,
        } = options;
        let cached = self.with_cache(&model, limits);
        let mut session = model.session_on(&self.inner.team, cached)?;
        session.set_speculation(speculation);
        session.set_drafter(drafter);
        let n_ctx = session.limits().n_ctx;
        let mut models = lock(&self.inner.models);
        let known = parked.and_then(|id| Some((id, Arc::clone(models.entries.get(&id)?))));
        let known = known.filter(|(_, entry)| entry.n_ctx() == n_ctx && !entry.is_lost());
        let (id, entry) = known.unwrap_or_else(|| {
            models.last += 1;
            let (id, entry) = (ModelId(models.last), Arc::new(Entry::new(metrics, n_ctx)));
            models.entries.insert(id, Arc::clone(&entry));
            (id, entry)
        });
        drop(models);
        // The slots can be read before the first turn.
        entry.show(ModelView::idle(&session));
        if let Some(parked) = parked.filter(|parked| *parked != id) {
            self.remove(parked);
        }
        self.send(Command::Add(Box::new(SchedulerParts {
            id,
            session,
            limits,
            entry,
            backing: self.backing(id, &model),
            options: self.inner.options.clone(),
            stages: Arc::clone(&self.inner.stages),
            log: self.inner.log.clone(),
        })));
        Ok(id)
    }

    /// The disk cache of a model's pages.
    fn backing(&self, id: ModelId, model: &Model) -> Option<Backing> {
        let commands = self.inner.commands.clone();
        let pages_read = move |arrival, files| {
            // If the engine has ended, no request waits for these pages.
            let _sent = commands.send(Command::PagesRead(id, arrival, files));
        };
        let disk = self.disk()?;
        Some(Backing::new(disk, Arc::new(pages_read), model))
    }

    /// The limits, extended by the pages and states of earlier texts.
    fn with_cache(&self, model: &Model, limits: Limits) -> Limits {
        let options = &self.inner.options;
        let is_recurrent = model.config().is_recurrent();
        let sizes = model.state_sizes(&limits);
        let (page_bytes, state_bytes) = (sizes.page_bytes.max(1), sizes.recurrent_bytes.max(1));
        // States and pages share the room; a state takes at least as much as a page.
        let ram = usize::try_from(options.cache_ram).unwrap_or(usize::MAX);
        let for_states = if is_recurrent { ram / 2 } else { 0 };
        let n_pages = (ram - for_states) / page_bytes;
        let n_states = (for_states / state_bytes).min(N_STATES_MAX).min(n_pages);
        let n_pages = if options.cache_dir.is_some() {
            n_pages.max(PAGES_MIN)
        } else {
            n_pages
        };
        Limits {
            n_held: n_pages.min(N_PAGES_MAX) * PAGE_TOKENS,
            n_checkpoints: if is_recurrent { n_states.max(1) } else { 0 },
            ..limits
        }
    }

    /// The folder of pages, opened on first use and shared by all models.
    fn disk(&self) -> Option<DiskCache> {
        let options = &self.inner.options;
        let path = options.cache_dir.as_ref()?;
        let mut models = lock(&self.inner.models);
        if models.disk.is_none() {
            match DiskCache::open(path, options.cache_disk, self.inner.log.clone()) {
                Ok(disk) => models.disk = Some(disk),
                Err(error) => (self.inner.log)(&format!(
                    "cache folder {}: {error}; continuing without it",
                    path.display()
                )),
            }
        }
        models.disk.clone()
    }

    /// Removes a model. Its jobs end with [`JobError::Gone`].
    pub fn remove(&self, model: ModelId) {
        lock(&self.inner.models).entries.remove(&model);
        self.send(Command::Remove(model));
    }

    /// Parks all texts of a model and frees its memory. They go on, and so do those that are submitted meanwhile, when
    /// the same model is added again ([`ModelOptions::parked`]), or end when it is removed.
    ///
    /// # Errors
    /// The receiver sees a closed channel if the model is not there.
    #[must_use]
    pub fn suspend(&self, model: ModelId) -> oneshot::Receiver<()> {
        let (answer, receiver) = oneshot::channel();
        self.send(Command::Suspend(model, answer));
        receiver
    }

    /// Submits a text to be generated. Does not wait.
    ///
    /// # Errors
    /// [`JobError::Busy`], [`JobError::TooLong`] or [`JobError::Gone`]; the job is dropped.
    pub fn submit(&self, job: Job) -> Result<(), JobError> {
        let entry = self.entry(job.model)?;
        let (n_tokens, n_ctx) = (job.prompt.len(), entry.n_ctx());
        if n_tokens >= n_ctx {
            return Err(JobError::TooLong { n_tokens, n_ctx });
        }
        if n_tokens == 0 || job.choices.is_empty() {
            return Err(JobError::Failed("the prompt is empty".to_owned()));
        }
        entry.queue(&job.share, job.choices.len(), self.inner.options.max_queue)?;
        self.send(Command::Job(Box::new(job)));
        Ok(())
    }

    /// Submits texts to be embedded. Does not wait.
    ///
    /// # Errors
    /// See [`Self::submit`].
    pub fn embed(&self, job: EmbedJob) -> Result<(), JobError> {
        let lengths: Vec<usize> = job.texts.iter().map(Vec::len).collect();
        self.submit_task(job.model, &lengths, job.into())
    }

    /// Submits a text to be scored. Does not wait.
    ///
    /// # Errors
    /// See [`Self::submit`].
    pub fn score(&self, job: ScoreJob) -> Result<(), JobError> {
        self.submit_task(job.model, &[job.tokens.len()], job.into())
    }

    /// Submits a task on texts of these lengths.
    fn submit_task(&self, model: ModelId, lengths: &[usize], task: Task) -> Result<(), JobError> {
        let entry = self.entry(model)?;
        let (n_tokens, n_ctx) = (lengths.iter().copied().max().unwrap_or(0), entry.n_ctx());
        if n_tokens > n_ctx {
            return Err(JobError::TooLong { n_tokens, n_ctx });
        }
        if lengths.contains(&0) {
            return Err(JobError::Failed("a text is empty".to_owned()));
        }
        entry.queue(task.share(), 1, self.inner.options.max_queue)?;
        self.send(Command::Task(model, task));
        Ok(())
    }

    /// Saves, restores or erases a slot between two steps, for a client of `group`.
    pub fn slot(
        &self,
        model: ModelId,
        slot: u32,
        group: Arc<str>,
        action: SlotAction,
    ) -> oneshot::Receiver<Result<SlotDone, JobError>> {
        let (answer, receiver) = oneshot::channel();
        let command = SlotCommand {
            slot,
            group,
            action,
            answer,
        };
        self.send(Command::Slot(model, command));
        receiver
    }

    /// Whether a model is there: it was neither removed, nor lost in a panic.
    pub(crate) fn has(&self, model: ModelId) -> bool {
        self.entry(model).is_ok()
    }

    /// The current state of a model; `None` if it was removed.
    #[must_use]
    pub fn view(&self, model: ModelId) -> Option<ModelView> {
        Some(self.entry(model).ok()?.view())
    }

    /// Waits up to `patience` for running work to end, then ends the thread and waits for it.
    pub fn stop(&self, patience: Duration) {
        self.send(Command::Stop(Instant::now() + patience));
        let thread = lock(&self.inner.thread).take();
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            (self.inner.log)("the engine's thread panicked");
        }
        drop(lock(&self.inner.telemetry).take());
        // Dropping it writes the pages that are still queued.
        let disk = lock(&self.inner.models).disk.take();
        drop(disk);
    }

    fn entry(&self, model: ModelId) -> Result<Arc<Entry>, JobError> {
        let models = lock(&self.inner.models);
        let entry = models.entries.get(&model).filter(|entry| !entry.is_lost());
        entry.cloned().ok_or(JobError::Gone)
    }

    /// Sends a command. If the thread has ended, the command is dropped, and the receiver of its answer sees a closed
    /// channel.
    fn send(&self, command: Command) {
        let _sent = self.inner.commands.send(command);
    }
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineHandle")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Minimum number of pages in memory if there is a disk cache: pages read from disk pass through memory.
const PAGES_MIN: usize = 64;
const N_PAGES_MAX: usize = 1 << 22;
const N_STATES_MAX: usize = 1 << 16;
