//! The thread that steps, and what stands between it and those that ask.

mod admission;
mod company;
mod delivery;
mod disk;
mod embedding;
mod ending;
mod entry;
mod job;
mod keeping;
mod prefix;
mod running;
mod scoring;
mod served;
mod slot;
mod telemetry;
mod thread;
mod turn;

pub use job::{
    Choice, EmbedJob, Event, Job, JobError, ModelId, ModelOptions, Score, ScoreJob, Stops, Timings,
    Why,
};
pub use slot::{SlotAction, SlotDone};

pub(crate) use turn::reads_whole;

use crate::Log;
use core::fmt;
use core::time::Duration;
use entry::Entry;
use sluice::session::SessionError;
use sluice::{Limits, Model, Team};
use sluice_core::state::PAGE_TOKENS;
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use telemetry::Stages;
use thread::Command;
use tokio::sync::oneshot;

/// A handle on the engine's thread. A clone is the same engine.
#[derive(Clone)]
pub struct Engine {
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
    telemetry: Mutex<Option<telemetry::Writer>>,
}

/// The models that the thread has.
#[derive(Debug, Default)]
struct Models {
    entries: HashMap<ModelId, Arc<Entry>>,
    last: u32,
    disk: Option<disk::DiskCache>,
}

/// How turns are cut, and how much may wait.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Length of a turn (`--turn-ms`).
    pub turn: Duration,
    /// Least part of a turn that waiting prompts get (`--prompt-share`), 0 to 1.
    pub prompt_share: f64,
    /// Most requests that wait (`--max-queue`).
    pub max_queue: usize,
    /// Bytes of memory for pages and states of earlier texts, a model (`--cache-ram`).
    pub cache_ram: u64,
    /// Where pages are kept over restarts (`--cache-dir`).
    pub cache_dir: Option<PathBuf>,
    /// Most bytes there (`--cache-disk`).
    pub cache_disk: u64,
    /// Tokens between two checkpoints of a recurrent state (`--checkpoint-every`).
    pub checkpoint_every: usize,
    /// Where stages of turns are written (`--telemetry-csv`).
    pub telemetry: Option<PathBuf>,
    /// Most different adapters in a step (`--max-loras`); 0 for no limit.
    pub max_adapters: usize,
}

/// A slot as it is at the moment.
#[derive(Clone, Debug, Default)]
pub struct SlotView {
    /// Its number.
    pub id: u32,
    /// Whether a text is being read or written in it.
    pub is_processing: bool,
    /// The request, if one is.
    pub request: Option<Arc<str>>,
    /// Tokens in its context.
    pub n_past: usize,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens written.
    pub n_decoded: usize,
    /// Tokens that it may still write; `None` for no limit.
    pub n_remain: Option<usize>,
    /// Whether its tokens are drafted.
    pub speculates: bool,
}

/// What a model's part of the engine is doing. Read without waiting for a step.
#[derive(Clone, Debug, Default)]
pub struct ModelView {
    /// Slots, running and idle.
    pub slots: Vec<SlotView>,
    /// Requests that wait for a slot.
    pub n_waiting: usize,
    /// Choices that run.
    pub n_running: usize,
    /// Pages of the KV cache that sequences hold, as a part of all that they may hold (0 to 1).
    pub kv_usage: f64,
    /// Pages that the prefix cache holds in memory, and room for them.
    pub cached_pages: usize,
    /// See there.
    pub cache_pages_max: usize,
}

impl Engine {
    /// Starts the thread. Steps run on `team`; `log` is told what goes wrong beside them.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(team: Team, options: EngineOptions, log: Log) -> io::Result<Self> {
        let (commands, received) = mpsc::channel();
        let for_thread = log.clone();
        let stages = Arc::new(Stages::new());
        let write = |path| telemetry::Writer::start(Arc::clone(&stages), path, log.clone());
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

    /// Adds a model: makes its session on the calling thread, which takes memory and a moment.
    ///
    /// # Errors
    /// There is no memory for its context.
    pub fn add(&self, options: ModelOptions) -> Result<ModelId, SessionError> {
        let ModelOptions {
            model,
            limits,
            metrics,
            speculation,
            drafter,
        } = options;
        let cached = self.with_cache(&model, limits);
        let mut session = model.session_on(&self.inner.team, cached)?;
        session.set_speculation(speculation);
        session.set_drafter(drafter);
        let n_ctx = session.limits().n_ctx;
        let entry = Arc::new(Entry::new(metrics, n_ctx));
        let mut models = lock(&self.inner.models);
        models.last += 1;
        let id = ModelId(models.last);
        models.entries.insert(id, Arc::clone(&entry));
        drop(models);
        let engine = self.inner.options.clone();
        let commands = self.inner.commands.clone();
        let disk = self.disk();
        let ways = served::Ways {
            commands,
            log: self.inner.log.clone(),
            stages: Arc::clone(&self.inner.stages),
        };
        let add = move || served::Served::new((id, session, limits), entry, disk, &engine, ways);
        self.send(Command::Add(Box::new(add)));
        Ok(id)
    }

    /// The limits with room for pages and states of earlier texts.
    fn with_cache(&self, model: &Model, limits: Limits) -> Limits {
        let options = &self.inner.options;
        let is_recurrent = model.config().is_recurrent();
        let sizes = model.state_sizes(&limits);
        let (page_bytes, state_bytes) = (sizes.page_bytes.max(1), sizes.recurrent_bytes.max(1));
        // States and pages share the room; a state stands for at least a page.
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

    /// The folder of pages, opened when it is first needed; one for all models.
    fn disk(&self) -> Option<disk::DiskCache> {
        let options = &self.inner.options;
        let path = options.cache_dir.as_ref()?;
        let mut models = lock(&self.inner.models);
        if models.disk.is_none() {
            match disk::DiskCache::open(path, options.cache_disk, self.inner.log.clone()) {
                Ok(disk) => models.disk = Some(disk),
                Err(error) => (self.inner.log)(&format!(
                    "cache folder {}: {error}; goes on without",
                    path.display()
                )),
            }
        }
        models.disk.clone()
    }

    /// Takes a model out. Its jobs end as [`JobError::Gone`].
    pub fn remove(&self, model: ModelId) {
        lock(&self.inner.models).entries.remove(&model);
        self.send(Command::Remove(model));
    }

    /// Hands over a text to be written. Does not wait.
    ///
    /// # Errors
    /// [`JobError::Busy`], [`JobError::TooLong`], [`JobError::Gone`]; the job is dropped then.
    pub fn submit(&self, job: Job) -> Result<(), JobError> {
        let entry = self.entry(job.model)?;
        let (n_tokens, n_ctx) = (job.prompt.len(), entry.n_ctx);
        if n_tokens >= n_ctx {
            return Err(JobError::TooLong { n_tokens, n_ctx });
        }
        if n_tokens == 0 || job.choices.is_empty() {
            return Err(JobError::Failed("the prompt is empty".to_owned()));
        }
        entry.queue(job.choices.len(), self.inner.options.max_queue)?;
        self.send(Command::Job(Box::new(job)));
        Ok(())
    }

    /// Hands over texts to be embedded. Does not wait.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn embed(&self, job: EmbedJob) -> Result<(), JobError> {
        let entry = self.entry(job.model)?;
        let longest = job.texts.iter().map(Vec::len).max().unwrap_or(0);
        if longest > entry.n_ctx {
            let n_ctx = entry.n_ctx;
            return Err(JobError::TooLong {
                n_tokens: longest,
                n_ctx,
            });
        }
        if job.texts.iter().any(Vec::is_empty) {
            return Err(JobError::Failed("a text is empty".to_owned()));
        }
        entry.queue(1, self.inner.options.max_queue)?;
        self.send(Command::Embed(job));
        Ok(())
    }

    /// Hands over a text to be scored. Does not wait.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn score(&self, job: ScoreJob) -> Result<(), JobError> {
        let entry = self.entry(job.model)?;
        let (n_tokens, n_ctx) = (job.tokens.len(), entry.n_ctx);
        if n_tokens > n_ctx {
            return Err(JobError::TooLong { n_tokens, n_ctx });
        }
        if n_tokens == 0 {
            return Err(JobError::Failed("a text is empty".to_owned()));
        }
        entry.queue(1, self.inner.options.max_queue)?;
        self.send(Command::Score(job));
        Ok(())
    }

    /// Saves, restores or erases a slot between two steps.
    pub fn slot(
        &self,
        model: ModelId,
        slot: u32,
        action: SlotAction,
    ) -> oneshot::Receiver<Result<SlotDone, JobError>> {
        let (answer, receiver) = oneshot::channel();
        self.send(Command::Slot(model, slot, action, answer));
        receiver
    }

    /// What a model's part is doing; `None` if it is not there.
    #[must_use]
    pub fn view(&self, model: ModelId) -> Option<ModelView> {
        let entry = self.entry(model).ok()?;
        let view = lock(&entry.view).clone();
        Some(view)
    }

    /// Lets what runs end for at most `patience`, and ends the thread. Waits for it.
    pub fn stop(&self, patience: Duration) {
        self.send(Command::Stop(Instant::now() + patience));
        let thread = lock(&self.inner.thread).take();
        if let Some(Err(_)) = thread.map(JoinHandle::join) {
            (self.inner.log)("the engine's thread panicked");
        }
        drop(lock(&self.inner.telemetry).take());
        // What waits to be written is written.
        let disk = lock(&self.inner.models).disk.take();
        drop(disk);
    }

    fn entry(&self, model: ModelId) -> Result<Arc<Entry>, JobError> {
        let models = lock(&self.inner.models);
        let entry = models.entries.get(&model).filter(|entry| !entry.is_lost());
        entry.cloned().ok_or(JobError::Gone)
    }

    /// After the thread has ended nobody receives it, and who waits for an answer sees its channel closed.
    fn send(&self, command: Command) {
        let _sent = self.inner.commands.send(command);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Least room of pages where a disk has them: what it reads goes through memory.
const PAGES_MIN: usize = 64;
const N_PAGES_MAX: usize = 1 << 22;
const N_STATES_MAX: usize = 1 << 16;
