//! From a model file to a model in memory, with all workers.
#![forbid(unsafe_code)]

mod in_place;

pub(crate) use in_place::{load_head_in_place, longest_in_memory};

use crate::experts::{ColdNeurons, ExpertError};
use crate::file::{FileError, ModelFile};
use crate::host::memory::{AlignedMemory, OutOfMemory, note_lock, policy};
use crate::host::workers::WorkerPanicked;
use crate::sparse_modes::SparseError;
use crate::team::Team;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::TensorSource;
use sluice_core::memory::ALIGN;
use sluice_core::model::{
    LoadProgress, Loader, ModelConfig, ModelError, ModelPlan, ModelWeights, Residency, Tables,
};
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
    /// Its experts cannot stay on disk.
    #[error(transparent)]
    Experts(ExpertError),
    /// Its tables cannot stay in the file: it is not mapped as one.
    #[error("{name}: tables can stay in the file only if it is mapped and in one part")]
    Tables {
        /// The file.
        name: String,
    },
    /// Not enough memory for the model.
    #[error("not enough memory for {what}: {error}")]
    Memory {
        /// What the memory is for.
        what: &'static str,
        /// How much was requested, and the kernel's error.
        error: OutOfMemory,
    },
    /// The mode that leaves neurons out does not fit.
    #[error(transparent)]
    Sparse(SparseError),
    /// A loading thread failed.
    #[error(transparent)]
    Panicked(#[from] WorkerPanicked),
    /// The stop flag was set.
    #[error("interrupted")]
    Stopped,
}

/// The memory that a model is stored in. It stays valid while the model is used.
#[derive(Debug)]
pub(crate) struct ModelMemory {
    weights: AlignedMemory,
    tables: AlignedMemory,
    staging: AlignedMemory,
    plan: ModelPlan,
    tables_stay: bool,
}

impl LoadError {
    /// The file called `name` does not hold a model that can be run.
    pub(crate) fn unusable(name: &str, error: ModelError) -> Self {
        Self::Model {
            name: name.to_owned(),
            error: Box::new(error),
        }
    }

    /// The error of a read from a model in several files names the file that could not be read.
    pub(crate) fn of_part(self, file: &ModelFile) -> Self {
        let part = match &self {
            Self::Model { error, .. } => match **error {
                ModelError::Source { error, .. } => file.at_fault(error),
                _ => None,
            },
            _ => None,
        };
        match (self, part) {
            (Self::Model { error, .. }, Some(part)) => {
                Self::unusable(&part.display().to_string(), *error)
            }
            (error, _) => error,
        }
    }
}

impl ModelMemory {
    /// Memory for `part` of `file`, whose header is `gguf`. For weights that stay in
    /// a mapped `.slc` file it takes none.
    ///
    /// # Errors
    /// [`LoadError`].
    pub(crate) fn for_file(
        file: &ModelFile,
        gguf: &Gguf<'_>,
        part: ModelPart<'_>,
        tables: Tables,
        n_workers: usize,
    ) -> Result<Self, LoadError> {
        let plan = match file.slc()? {
            Some(slc) => ModelPlan::in_place(&slc, part.config),
            None => ModelPlan::with_tables(gguf, part.config, part.residency, tables),
        };
        let plan = plan.map_err(|error| LoadError::Model {
            name: file.name().to_owned(),
            error: Box::new(error),
        })?;
        Ok(Self {
            tables_stay: tables == Tables::InFile,
            ..Self::new(plan, n_workers)?
        })
    }

    /// Memory for a model of this plan, loaded by `n_workers` at once.
    ///
    /// # Errors
    /// [`LoadError::Memory`].
    pub(crate) fn new(plan: ModelPlan, n_workers: usize) -> Result<Self, LoadError> {
        let staging_bytes = plan.staging_bytes.next_multiple_of(ALIGN);
        Ok(Self {
            weights: reserve("the weights", plan.weight_bytes)?,
            tables: reserve("the weights' tables", plan.table_bytes)?,
            // Resident only as far as it is used: sources in memory need none.
            staging: reserve("loading", staging_bytes.saturating_mul(n_workers))?,
            plan,
            tables_stay: false,
        })
    }
}

/// A model of a file, and which of its weights are to be in memory.
#[derive(Clone, Copy)]
pub(crate) struct ModelPart<'c> {
    pub(crate) config: &'c ModelConfig,
    pub(crate) residency: Residency,
    /// Neurons that are left on disk.
    pub(crate) cold: Option<&'c ColdNeurons>,
}

/// Where weights are read from; messages call it `name`.
pub(crate) struct WeightsSource<'s, 'm> {
    pub(crate) name: &'s str,
    pub(crate) gguf: &'s Gguf<'s>,
    pub(crate) source: &'s dyn TensorSource,
    /// The bytes of a mapped file, in which tables may stay.
    pub(crate) map: Option<&'m [u8]>,
}

/// Loads `part` of `file`, whose header is `gguf`, into `memory`. The weights of a
/// mapped `.slc` file stay where they are.
///
/// Every worker converts tensors until all are done or `stop` is set. `progress` is called by
/// the calling thread between two pieces of work, about every 512 KiB.
///
/// # Errors
/// [`LoadError`]: the first error of any worker.
pub(crate) fn load<'m>(
    file: &'m ModelFile,
    gguf: &Gguf<'_>,
    part: ModelPart<'_>,
    memory: &'m mut ModelMemory,
    team: &Team,
    stop: &StopFlag,
    progress: impl FnMut(LoadProgress) + Send,
) -> Result<ModelWeights<'m>, LoadError> {
    if let Some(slc) = file.slc()? {
        return in_place::load(file, &slc, part, memory, team, stop, progress);
    }
    if memory.tables_stay {
        advise(file, gguf, part.config);
    }
    let weights = WeightsSource {
        name: file.name(),
        gguf,
        source: file.source(),
        map: file.mapped(),
    };
    load_from(weights, part.config, None, memory, team, stop, progress)
        .map_err(|error| error.of_part(file))
}

/// Rows of tables that stay in the map are read alone, without their neighbours.
fn advise(file: &ModelFile, gguf: &Gguf<'_>, config: &ModelConfig) {
    let tensors: Vec<_> = gguf.tensors().collect();
    let _walked = ModelPlan::row_tables(gguf, config, |index| {
        let tensor = &tensors[index];
        file.advise_random(tensor.offset, tensor.len_bytes);
    });
}

/// As [`load()`], with the weights from `from`; a head that predicts a token further needs its trunk.
///
/// # Errors
/// As [`load()`].
pub(crate) fn load_from<'m>(
    from: WeightsSource<'_, 'm>,
    config: &ModelConfig,
    trunk: Option<&ModelWeights<'m>>,
    memory: &'m mut ModelMemory,
    team: &Team,
    stop: &StopFlag,
    progress: impl FnMut(LoadProgress) + Send,
) -> Result<ModelWeights<'m>, LoadError> {
    let WeightsSource {
        name,
        gguf,
        source,
        map,
    } = from;
    let ModelMemory {
        weights,
        tables,
        staging,
        plan,
        ..
    } = memory;
    if policy().locks {
        note_lock(weights.lock(), weights.len());
    }
    let named = |error| LoadError::Model {
        name: name.to_owned(),
        error: Box::new(error),
    };
    let loader = Loader::with_file(gguf, config, plan, map, weights, tables).map_err(named)?;
    let rooms = staging_rooms(staging, plan.staging_bytes, team.count());
    let progress = Mutex::new(progress);
    let first_error = Mutex::new(None);
    let failed = AtomicBool::new(false);
    team.run(|rank| {
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
    // The staging memory has served its purpose; its pages would still count as used.
    *staging = AlignedMemory::zeroed(0).map_err(|error| LoadError::Memory {
        what: "loading",
        error,
    })?;
    let finished = match trunk {
        Some(trunk) => loader.finish_head(source, trunk),
        None => loader.finish(source),
    };
    match finished {
        Err(ModelError::NotLoaded) if stop.is_set() => Err(LoadError::Stopped),
        result => result.map_err(named),
    }
}

fn reserve(what: &'static str, len: usize) -> Result<AlignedMemory, LoadError> {
    AlignedMemory::zeroed(len).map_err(|error| LoadError::Memory { what, error })
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
