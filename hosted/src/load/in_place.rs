//! Weights of a `.slc` file: used in its map, or copied as they are.
#![forbid(unsafe_code)]

use super::{LoadError, ModelMemory, ModelPart, reserve};
use crate::experts::head_with_experts;
use crate::file::ModelFile;
use crate::host::memory::{AlignedMemory, note_lock, policy};
use crate::team::Team;
use core::ops::Range;
use sluice_core::model::{
    ExpertMatrices, LoadProgress, ModelConfig, ModelError, ModelPlan, ModelWeights, Residency,
};
use sluice_core::slc::Slc;
use sluice_core::team::StopFlag;
use std::sync::{Mutex, PoisonError};

/// The head `part` that predicts a token further, from the `.slc` file that contains `trunk`.
///
/// # Errors
/// As [`load()`].
pub(crate) fn load_head_in_place<'m>(
    file: &ModelFile,
    slc: &Slc<'_>,
    part: ModelPart<'_>,
    trunk: &ModelWeights<'m>,
    memory: &'m mut ModelMemory,
) -> Result<ModelWeights<'m>, LoadError> {
    let make = match part.residency {
        Residency::All => ModelWeights::head_in_place,
        Residency::WithoutExperts => ModelWeights::head_in_place_without_experts,
    };
    let head = make(slc, part.config, trunk, &mut memory.tables);
    head.map_err(|error| LoadError::unusable(file.name(), error))
}

/// The model of a `.slc` file, in its map or copied as it is.
pub(super) fn load<'m>(
    file: &'m ModelFile,
    slc: &Slc<'_>,
    part: ModelPart<'_>,
    memory: &'m mut ModelMemory,
    team: &Team,
    stop: &StopFlag,
    mut progress: impl FnMut(LoadProgress) + Send,
) -> Result<ModelWeights<'m>, LoadError> {
    let named = |error| LoadError::Model {
        name: file.name().to_owned(),
        error: Box::new(error),
    };
    let start = slc.header().payload_offset();
    let total_bytes = slc.header().file_len - start;
    let payload_len = usize::try_from(total_bytes)
        .map_err(|_| named(sluice_core::memory::MemoryError::TooLarge.into()))?;
    // Neurons that come and go need memory of their own.
    let mapped = file.mapped().filter(|_| part.cold.is_none());
    let mapped = mapped.and_then(|bytes| bytes.get(bytes.len() - payload_len..));
    // The staging memory of the GGUF file's plan is not needed.
    memory.staging = reserve("loading", 0)?;
    if mapped.is_some() {
        memory.weights = reserve("the weights", 0)?;
    } else if memory.weights.len() < payload_len {
        // Without experts or cold neurons, most of it may stay untouched.
        let room = AlignedMemory::sparse(payload_len);
        memory.weights = room.map_err(|error| LoadError::Memory {
            what: "the weights",
            error,
        })?;
    }
    for range in part.cold.iter().flat_map(|cold| cold.ranges()) {
        let at = |offset: u64| usize::try_from(offset - start).unwrap_or(0);
        memory
            .weights
            .keep_small_pages(at(range.start)..at(range.end));
    }
    let parts = parts(slc, part, payload_len).map_err(named)?;
    if policy().locks {
        for part in &parts {
            let in_map = mapped.and_then(|_| file.lock_map(part.clone()));
            let locked = in_map.unwrap_or_else(|| memory.weights.lock_part(part.clone()));
            note_lock(locked, part.len());
        }
    }
    if mapped.is_some() && policy().huge_pages {
        let tables = row_tables(slc, part.config).map_err(named)?;
        // Rows of tables are read a few at a time: a huge page each would be a waste.
        for matrices in complement(tables, payload_len) {
            file.advise_huge_pages(matrices);
        }
    }
    let ModelMemory {
        weights, tables, ..
    } = memory;
    let payloads: &'m [u8] = match mapped {
        Some(payloads) => payloads,
        None => {
            let room = &mut weights[..payload_len];
            copy(file, start, room, &parts, team, stop, &mut progress)?;
            room
        }
    };
    progress(LoadProgress {
        done_bytes: total_bytes,
        total_bytes,
    });
    let make = match part.residency {
        Residency::All => ModelWeights::in_place,
        Residency::WithoutExperts => ModelWeights::in_place_without_experts,
    };
    make(slc, part.config, payloads, tables).map_err(named)
}

/// The ranges of a `.slc` file's payloads that are to be in memory: all, or all except experts or cold neurons.
fn parts(
    slc: &Slc<'_>,
    part: ModelPart<'_>,
    payload_len: usize,
) -> Result<Vec<Range<usize>>, ModelError> {
    let ModelPart {
        config,
        residency,
        cold,
    } = part;
    let first = slc.header().payload_offset();
    let tensors: Vec<_> = slc.gguf().tensors().collect();
    let pages = cold.iter().flat_map(|cold| cold.pages());
    let pages = pages.filter(|pages| !pages.is_empty());
    let mut absent: Vec<_> = pages
        .map(|pages| pages.start - first..pages.end - first)
        .collect();
    let mut note = |matrices: ExpertMatrices| {
        let header = slc.tensor_header(matrices.tensor, &tensors[matrices.tensor]);
        absent.extend(header.map(|header| {
            let start = header.offset - first;
            let stride = header.matrix_stride_bytes();
            let last = start + stride * (header.n_matrices() - 1);
            start..last + header.matrix_bytes()
        }));
    };
    if residency == Residency::WithoutExperts {
        ModelPlan::experts_in_place(slc, config, &mut note)?;
        if let Some(head) = head_with_experts(slc.gguf(), Some(slc), config) {
            ModelPlan::experts_in_place(slc, &head, &mut note)?;
        }
    }
    Ok(complement(absent, payload_len))
}

/// Ranges of the payloads that are tables, looked up row by row.
fn row_tables(slc: &Slc<'_>, config: &ModelConfig) -> Result<Vec<Range<u64>>, ModelError> {
    let first = slc.header().payload_offset();
    let tensors: Vec<_> = slc.gguf().tensors().collect();
    let mut tables = Vec::new();
    ModelPlan::row_tables(slc.gguf(), config, |index| {
        let header = slc.tensor_header(index, &tensors[index]);
        tables.extend(header.map(|header| {
            let start = header.offset - first;
            start..start + header.matrix_bytes()
        }));
    })?;
    Ok(tables)
}

/// What of `0..payload_len` lies outside of `ranges`.
fn complement(mut ranges: Vec<Range<u64>>, payload_len: usize) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let (mut parts, mut end) = (Vec::new(), 0);
    let at = |n: u64| usize::try_from(n).unwrap_or(payload_len).min(payload_len);
    for range in ranges {
        if at(range.start) > end {
            parts.push(end..at(range.start));
        }
        end = end.max(at(range.end));
    }
    parts.extend((end < payload_len).then_some(end..payload_len));
    parts
}

/// The longest range of a `.slc` file's payloads that are in memory.
pub(crate) fn longest_in_memory(slc: &Slc<'_>, part: ModelPart<'_>) -> Option<Range<usize>> {
    let header = slc.header();
    let payload_len = usize::try_from(header.file_len - header.payload_offset()).ok()?;
    let parts = parts(slc, part, payload_len).ok()?;
    parts.into_iter().max_by_key(Range::len)
}

/// Fills `parts` of `room` with the bytes from `start` of a file on, with all workers.
fn copy(
    file: &ModelFile,
    start: u64,
    room: &mut [u8],
    parts: &[Range<usize>],
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
