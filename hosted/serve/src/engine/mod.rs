//! The thread that steps, and what stands between it and those that ask.

mod job;

pub use job::{Choice, EmbedJob, Event, Job, JobError, ModelId, ModelOptions, Timings, Why};

use sluice::Team;
use sluice::session::SessionError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A handle on the engine's thread. A clone is the same engine.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    team: Team,
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
}

/// What is to be done with a slot.
#[derive(Clone, Debug)]
pub enum SlotAction {
    /// Its text and state go to a file.
    Save(PathBuf),
    /// They come from one.
    Restore(PathBuf),
    /// They are forgotten.
    Erase,
}

/// What was done with a slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotDone {
    /// Tokens that were saved, restored or forgotten.
    pub n_tokens: usize,
    /// Bytes written or read.
    pub n_bytes: u64,
    /// How long it took.
    pub time: Duration,
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
    /// Starts the thread. Its steps run on `team`.
    #[must_use]
    pub fn start(team: Team, options: EngineOptions) -> Self {
        let _ = options;
        Self {
            inner: Arc::new(Inner { team }),
        }
    }

    /// Adds a model: makes its session on the calling thread, which takes memory and a moment.
    ///
    /// # Errors
    /// There is no memory for its context.
    pub fn add(&self, options: ModelOptions) -> Result<ModelId, SessionError> {
        let _ = (options, &self.inner.team);
        Ok(ModelId(0))
    }

    /// Takes a model out. Its jobs end as [`JobError::Gone`].
    pub fn remove(&self, model: ModelId) {
        let _ = model;
    }

    /// Hands over a text to be written. Does not wait.
    ///
    /// # Errors
    /// [`JobError::Busy`], [`JobError::TooLong`], [`JobError::Gone`]; the job is dropped then.
    pub fn submit(&self, job: Job) -> Result<(), JobError> {
        drop(job);
        Err(JobError::Gone)
    }

    /// Hands over texts to be embedded. Does not wait.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn embed(&self, job: EmbedJob) -> Result<(), JobError> {
        drop(job);
        Err(JobError::Gone)
    }

    /// Saves, restores or erases a slot between two steps.
    pub fn slot(
        &self,
        model: ModelId,
        slot: u32,
        action: SlotAction,
    ) -> oneshot::Receiver<Result<SlotDone, JobError>> {
        let _ = (model, slot, action);
        oneshot::channel().1
    }

    /// What a model's part is doing; `None` if it is not there.
    #[must_use]
    pub fn view(&self, model: ModelId) -> Option<ModelView> {
        let _ = model;
        None
    }

    /// Takes no more jobs, lets those that run end for at most `patience`, and ends the thread. Waits for it.
    pub fn stop(&self, patience: Duration) {
        let _ = patience;
    }
}
