//! Options of an engine and its models.

use super::job::ModelId;
use crate::metrics::Metrics;
use core::time::Duration;
use sluice::speculate::{Drafter, SpeculationOptions};
use sluice::{Limits, Model};
use std::path::PathBuf;
use std::sync::Arc;

/// Scheduling and caching options.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Length of a turn (`--turn-ms`).
    pub turn: Duration,
    /// Minimum part of a turn that waiting prompts get (`--prompt-share`), 0 to 1.
    pub prompt_share: f64,
    /// Maximum number of waiting requests of a share, parked texts included (`--max-queue`).
    pub max_queue: usize,
    /// Bytes of events that are kept for a request whose reader does not read, before it gives up its place.
    pub reader_buffer: usize,
    /// Bytes of memory for pages and states of earlier texts, for each model (`--cache-ram`).
    pub cache_ram: u64,
    /// Folder in which pages outlive the server (`--cache-dir`).
    pub cache_dir: Option<PathBuf>,
    /// Maximum size of that folder in bytes (`--cache-disk`).
    pub cache_disk: u64,
    /// Tokens between two checkpoints of a recurrent state (`--checkpoint-every`).
    pub checkpoint_every: usize,
    /// File to which the stages of turns are written (`--telemetry-csv`).
    pub telemetry: Option<PathBuf>,
    /// Maximum number of different adapters in a step (`--max-loras`); 0 for no limit.
    pub max_adapters: usize,
}

/// A model, and how to run it.
#[derive(Debug)]
pub struct ModelOptions {
    /// The model.
    pub model: Model,
    /// Its context: `n_ctx` tokens over all texts, `n_seq` texts, the types of keys and values, the maximum number of
    /// tokens in a step. Room for caches is added.
    pub limits: Limits,
    /// The number that it had when it was suspended ([`EngineHandle::suspend`](super::EngineHandle::suspend)): its
    /// texts go on.
    pub parked: Option<ModelId>,
    /// The metrics to update.
    pub metrics: Arc<Metrics>,
    /// How far to speculate; `None` turns speculation off.
    pub speculation: Option<SpeculationOptions>,
    /// A draft model.
    pub drafter: Option<Box<dyn Drafter>>,
}
