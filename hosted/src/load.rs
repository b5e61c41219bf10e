//! From a model file to a model in memory, with all workers.
#![forbid(unsafe_code)]

use crate::file::{FileError, ModelFile};
use crate::memory::{AlignedMemory, OutOfMemory};
use crate::workers::{WorkerPanicked, Workers};
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::TensorSource;
use sluice_core::memory::ALIGN;
use sluice_core::model::{LoadProgress, Loader, Model, ModelConfig, ModelError, ModelPlan};
use sluice_core::team::StopFlag;
use std::sync::{Mutex, PoisonError};

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It does not hold a model that can be run.
    #[error("{name}: {error}")]
    Model {
        /// The file.
        name: String,
        /// Why not.
        error: Box<ModelError>,
    },
    /// There is no memory for it.
    #[error("no memory for {what}: {error}")]
    Memory {
        /// What the memory is for.
        what: &'static str,
        /// How much, and why not.
        error: OutOfMemory,
    },
    /// A loading thread failed.
    #[error(transparent)]
    Panicked(#[from] WorkerPanicked),
    /// The stop flag was set.
    #[error("loading was interrupted")]
    Stopped,
}

/// The memory that a model lies in. It stays valid while the model is used.
#[derive(Debug)]
pub struct ModelMemory {
    weights: AlignedMemory,
    tables: AlignedMemory,
    staging: AlignedMemory,
    plan: ModelPlan,
}

impl ModelMemory {
    /// Memory for a model of this plan, loaded by `n_workers` at once.
    ///
    /// # Errors
    /// [`LoadError::Memory`].
    pub fn new(plan: ModelPlan, n_workers: usize) -> Result<Self, LoadError> {
        let reserve = |what, len| {
            AlignedMemory::zeroed(len).map_err(|error| LoadError::Memory { what, error })
        };
        let staging_bytes = plan.staging_bytes.next_multiple_of(ALIGN);
        Ok(Self {
            weights: reserve("the weights", plan.weight_bytes)?,
            tables: reserve("the weights' tables", plan.table_bytes)?,
            // Resident only as far as it is used: sources in memory need none.
            staging: reserve("loading", staging_bytes.saturating_mul(n_workers))?,
            plan,
        })
    }

    /// Bytes of weights and tables.
    pub const fn model_bytes(&self) -> usize {
        self.plan.weight_bytes + self.plan.table_bytes
    }
}

/// Loads the model `config` of `file`, whose header is `gguf`, into `memory`.
///
/// Every worker converts tensors until all are done or `stop` is set. `progress` is called by
/// the calling thread between two pieces of work, about every 512 KiB.
///
/// # Errors
/// [`LoadError`]: the first thing that went wrong in any worker.
pub fn load<'m>(
    file: &ModelFile,
    gguf: &Gguf<'_>,
    config: &ModelConfig,
    memory: &'m mut ModelMemory,
    workers: &mut Workers,
    stop: &StopFlag,
    progress: impl FnMut(LoadProgress) + Send,
) -> Result<Model<'m>, LoadError> {
    let weights = (file.name(), file.source());
    load_from(weights, gguf, config, memory, workers, stop, progress)
}

/// As [`load()`], with the weights from `source`, which is called `name` in messages.
///
/// # Errors
/// As [`load()`].
pub fn load_from<'m>(
    (name, source): (&str, &dyn TensorSource),
    gguf: &Gguf<'_>,
    config: &ModelConfig,
    memory: &'m mut ModelMemory,
    workers: &mut Workers,
    stop: &StopFlag,
    progress: impl FnMut(LoadProgress) + Send,
) -> Result<Model<'m>, LoadError> {
    let ModelMemory {
        weights,
        tables,
        staging,
        plan,
    } = memory;
    let named = |error| LoadError::Model {
        name: name.to_owned(),
        error: Box::new(error),
    };
    let loader = Loader::new(gguf, config, weights, tables).map_err(named)?;
    let rooms = staging_rooms(staging, plan.staging_bytes, workers.count());
    let progress = Mutex::new(progress);
    let first_error = Mutex::new(None);
    let failed = AtomicBool::new(false);
    workers.run(|rank| {
        let mut room = rooms[rank].lock().unwrap_or_else(PoisonError::into_inner);
        let result = loader.work(source, &mut room, || {
            if rank == 0 {
                let mut report = progress.lock().unwrap_or_else(PoisonError::into_inner);
                report(loader.progress());
            }
            !stop.is_set() && !failed.load(Ordering::Relaxed)
        });
        if let Err(error) = result {
            failed.store(true, Ordering::Relaxed);
            let mut first = first_error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(error);
        }
    })?;
    let first_error = first_error
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = first_error {
        return Err(named(error));
    }
    drop(rooms);
    // The staging memory has done its work; its pages would count for ever.
    *staging = AlignedMemory::zeroed(0).map_err(|error| LoadError::Memory {
        what: "loading",
        error,
    })?;
    match loader.finish(source) {
        Err(ModelError::NotLoaded) if stop.is_set() => Err(LoadError::Stopped),
        result => result.map_err(named),
    }
}

/// A part of the staging memory for every rank.
fn staging_rooms(staging: &mut [u8], bytes_each: usize, n_workers: usize) -> Vec<Mutex<&mut [u8]>> {
    let mut rest = staging;
    let mut rooms = Vec::with_capacity(n_workers);
    for _ in 0..n_workers {
        let (room, behind) = rest.split_at_mut(bytes_each.next_multiple_of(ALIGN));
        rooms.push(Mutex::new(room));
        rest = behind;
    }
    rooms
}
