//! From a model file to a model in memory, with all workers.
#![forbid(unsafe_code)]

use crate::experts::{ExpertError, head_with_experts};
use crate::file::{FileError, ModelFile};
use crate::host::memory::{AlignedMemory, OutOfMemory, note_lock, policy};
use crate::host::workers::WorkerPanicked;
use crate::team::Team;
use core::error::Error;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::TensorSource;
use sluice_core::memory::ALIGN;
use sluice_core::model::{
    ExpertMatrices, LoadProgress, Loader, Model, ModelConfig, ModelError, ModelPlan, Residency,
    Tables,
};
use sluice_core::slc::Slc;
use sluice_core::team::StopFlag;
use std::sync::{Mutex, PoisonError};

/// Why a model was not loaded.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    File(FileError),
    /// It does not hold a model that can be run.
    Model {
        /// The file.
        name: String,
        /// Why not.
        error: Box<ModelError>,
    },
    /// Its experts cannot stay on disk.
    Experts(ExpertError),
    /// Its tables cannot stay in the file: it is not mapped as one.
    Tables {
        /// The file.
        name: String,
    },
    /// There is no memory for it.
    Memory {
        /// What the memory is for.
        what: &'static str,
        /// How much, and why not.
        error: OutOfMemory,
    },
    /// A loading thread failed.
    Panicked(WorkerPanicked),
    /// The stop flag was set.
    Stopped,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Model { name, error } => write!(f, "{name}: {error}"),
            Self::Experts(error) => error.fmt(f),
            Self::Tables { name } => write!(
                f,
                "{name}: tables stay in a file only where it is mapped, and in one part"
            ),
            Self::Memory { what, error } => write!(f, "no memory for {what}: {error}"),
            Self::Panicked(error) => error.fmt(f),
            Self::Stopped => f.write_str("loading was interrupted"),
        }
    }
}

impl Error for LoadError {}

impl From<FileError> for LoadError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl From<WorkerPanicked> for LoadError {
    fn from(error: WorkerPanicked) -> Self {
        Self::Panicked(error)
    }
}

/// The memory that a model lies in. It stays valid while the model is used.
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
}

impl ModelMemory {
    /// Memory for the model `config` of `file`, whose header is `gguf`. For weights that stay in
    /// a mapped `.slc` file it takes none.
    ///
    /// # Errors
    /// [`LoadError`].
    pub(crate) fn for_file(
        file: &ModelFile,
        gguf: &Gguf<'_>,
        (config, residency, tables): (&ModelConfig, Residency, Tables),
        n_workers: usize,
    ) -> Result<Self, LoadError> {
        let plan = match file.slc()? {
            Some(slc) => ModelPlan::in_place(&slc, config),
            None => ModelPlan::with_tables(gguf, config, residency, tables),
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

/// Loads the model `config` of `file`, whose header is `gguf`, into `memory`. The weights of a
/// mapped `.slc` file stay where they are.
///
/// Every worker converts tensors until all are done or `stop` is set. `progress` is called by
/// the calling thread between two pieces of work, about every 512 KiB.
///
/// # Errors
/// [`LoadError`]: the first thing that went wrong in any worker.
pub(crate) fn load<'m>(
    file: &'m ModelFile,
    gguf: &Gguf<'_>,
    (config, residency): (&ModelConfig, Residency),
    memory: &'m mut ModelMemory,
    team: &Team,
    stop: &StopFlag,
    progress: impl FnMut(LoadProgress) + Send,
) -> Result<Model<'m>, LoadError> {
    if let Some(slc) = file.slc()? {
        let config = (config, residency);
        return load_in_place(file, &slc, config, memory, team, stop, progress);
    }
    if memory.tables_stay {
        advise(file, gguf, config);
    }
    let weights = (file.name(), file.source(), file.mapped());
    load_from(weights, gguf, (config, None), memory, team, stop, progress)
}

/// Rows of tables that stay in the map are read alone, without their neighbours.
fn advise(file: &ModelFile, gguf: &Gguf<'_>, config: &ModelConfig) {
    let tensors: Vec<_> = gguf.tensors().collect();
    let _walked = ModelPlan::row_tables(gguf, config, |index| {
        let tensor = &tensors[index];
        file.advise_random(tensor.offset, tensor.len_bytes);
    });
}

/// The head `config` that predicts a token further, of the `.slc` file that `trunk` lies in.
///
/// # Errors
/// As [`load()`].
pub(crate) fn load_head_in_place<'m>(
    file: &ModelFile,
    slc: &Slc<'_>,
    (config, residency): (&ModelConfig, Residency),
    trunk: &Model<'m>,
    memory: &'m mut ModelMemory,
) -> Result<Model<'m>, LoadError> {
    let make = match residency {
        Residency::All => Model::head_in_place,
        Residency::WithoutExperts => Model::head_in_place_without_experts,
    };
    let head = make(slc, config, trunk, &mut memory.tables);
    head.map_err(|error| LoadError::unusable(file.name(), error))
}

/// The model of a `.slc` file, in its map or copied as it is.
fn load_in_place<'m>(
    file: &'m ModelFile,
    slc: &Slc<'_>,
    (config, residency): (&ModelConfig, Residency),
    memory: &'m mut ModelMemory,
    team: &Team,
    stop: &StopFlag,
    mut progress: impl FnMut(LoadProgress) + Send,
) -> Result<Model<'m>, LoadError> {
    let named = |error| LoadError::Model {
        name: file.name().to_owned(),
        error: Box::new(error),
    };
    let start = slc.header().payload_offset();
    let total_bytes = slc.header().file_len - start;
    let payload_len = usize::try_from(total_bytes)
        .map_err(|_| named(sluice_core::memory::MemoryError::TooLarge.into()))?;
    let mapped = file
        .mapped()
        .and_then(|bytes| bytes.get(bytes.len() - payload_len..));
    // What the plan of the GGUF file asked for is not needed.
    memory.staging = reserve("loading", 0)?;
    if mapped.is_some() {
        memory.weights = reserve("the weights", 0)?;
    } else if memory.weights.len() < payload_len {
        memory.weights = reserve("the weights", payload_len)?;
    }
    let parts = parts(slc, (config, residency), payload_len).map_err(named)?;
    if policy().locks {
        for part in &parts {
            if let Some(locked) = file.lock_map(part.start..part.end) {
                note_lock(locked, part.len());
            }
        }
    }
    let ModelMemory {
        weights, tables, ..
    } = memory;
    let payloads: &'m [u8] = match mapped {
        Some(payloads) => payloads,
        None => {
            let room = &mut weights[..payload_len];
            copy(file, start, (room, &parts), team, stop, &mut progress)?;
            room
        }
    };
    progress(LoadProgress {
        done_bytes: total_bytes,
        total_bytes,
    });
    match residency {
        Residency::All => Model::in_place(slc, config, payloads, tables),
        Residency::WithoutExperts => Model::in_place_without_experts(slc, config, payloads, tables),
    }
    .map_err(named)
}

/// The ranges of a `.slc` file's payloads that are to be in memory: all, or all beside experts.
fn parts(
    slc: &Slc<'_>,
    (config, residency): (&ModelConfig, Residency),
    payload_len: usize,
) -> Result<Vec<Range<usize>>, ModelError> {
    let first = slc.header().payload_offset();
    let tensors: Vec<_> = slc.gguf().tensors().collect();
    let mut of_experts = Vec::new();
    let mut note = |matrices: ExpertMatrices| {
        let header = slc.tensor_header(matrices.tensor, &tensors[matrices.tensor]);
        of_experts.extend(header.map(|header| {
            let start = header.offset - first;
            let stride = header.matrix_stride_bytes();
            let last = start + stride * (header.n_matrices() - 1);
            start..last + matrices.layout.bytes() as u64
        }));
    };
    if residency == Residency::WithoutExperts {
        ModelPlan::experts(slc.gguf(), config, &mut note)?;
        if let Some(head) = head_with_experts(slc.gguf(), config) {
            ModelPlan::experts(slc.gguf(), &head, &mut note)?;
        }
    }
    of_experts.sort_by_key(|range| range.start);
    let (mut parts, mut end) = (Vec::new(), 0);
    let at = |n: u64| usize::try_from(n).unwrap_or(payload_len).min(payload_len);
    for range in of_experts {
        if at(range.start) > end {
            parts.push(end..at(range.start));
        }
        end = end.max(at(range.end));
    }
    parts.extend((end < payload_len).then_some(end..payload_len));
    Ok(parts)
}

/// The longest range of a `.slc` file's payloads that is no experts'.
pub(crate) fn longest_beside_experts(slc: &Slc<'_>, config: &ModelConfig) -> Option<Range<usize>> {
    let header = slc.header();
    let payload_len = usize::try_from(header.file_len - header.payload_offset()).ok()?;
    let parts = parts(slc, (config, Residency::WithoutExperts), payload_len).ok()?;
    parts.into_iter().max_by_key(Range::len)
}

/// Fills `parts` of `room` with the bytes from `start` of a file on, with all workers.
fn copy(
    file: &ModelFile,
    start: u64,
    (room, parts): (&mut [u8], &[Range<usize>]),
    team: &Team,
    stop: &StopFlag,
    progress: &mut (impl FnMut(LoadProgress) + Send),
) -> Result<(), LoadError> {
    let total_bytes = room.len() as u64;
    let (mut pieces, mut rest, mut at) = (Vec::new(), room, 0);
    for part in parts {
        let (_, behind) = rest.split_at_mut(part.start - at);
        let (part_room, behind) = behind.split_at_mut(part.len());
        let offsets = (part.start as u64..).step_by(COPY_BYTES);
        pieces.extend(offsets.zip(part_room.chunks_mut(COPY_BYTES)));
        (rest, at) = (behind, part.end);
    }
    let pieces = Mutex::new(pieces.into_iter());
    let progress = Mutex::new(progress);
    let first_error = Mutex::new(None);
    team.run(|rank| {
        loop {
            let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((at, piece)) = next.filter(|_| !stop.is_set()) else {
                break;
            };
            if let Err(error) = file.contents().read(start + at, piece) {
                let mut first = first_error.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(error);
                break;
            }
            if rank == 0 {
                let mut report = progress.lock().unwrap_or_else(PoisonError::into_inner);
                let done_bytes = at + piece.len() as u64;
                report(LoadProgress {
                    done_bytes,
                    total_bytes,
                });
            }
        }
    })?;
    let error = first_error
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    match error {
        Some(error) => Err(LoadError::Model {
            name: file.name().to_owned(),
            error: Box::new(ModelError::Source {
                name: "payloads".into(),
                error,
            }),
        }),
        None if stop.is_set() => Err(LoadError::Stopped),
        None => Ok(()),
    }
}

/// Bytes of a `.slc` file that a worker copies at once.
const COPY_BYTES: usize = 8 << 20;

/// As [`load()`], with the weights from `source`, which is called `name` in messages; of a head that predicts a
/// token further, with its trunk.
///
/// # Errors
/// As [`load()`].
pub(crate) fn load_from<'m>(
    (name, source, map): (&str, &dyn TensorSource, Option<&'m [u8]>),
    gguf: &Gguf<'_>,
    (config, trunk): (&ModelConfig, Option<&Model<'m>>),
    memory: &'m mut ModelMemory,
    team: &Team,
    stop: &StopFlag,
    progress: impl FnMut(LoadProgress) + Send,
) -> Result<Model<'m>, LoadError> {
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
    let loader = Loader::with_file(gguf, config, plan, map, (weights, tables)).map_err(named)?;
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
    // The staging memory has done its work; its pages would still count as used.
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
