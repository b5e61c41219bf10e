//! Finding duplicate names and overlapping data without memory to sort in.
//!
//! Duplicates are neighbours in sorted order. The entries may not fit in the available memory, so
//! sorted order is produced in chunks: each pass over the entries keeps the smallest of those
//! at or after the last chunk's end, in a fixed buffer of positions that is halved by
//! selection whenever it is full. A pass costs a constant number of comparisons per entry
//! in any order, and advances by at least [`CHUNK_LEN`] - 1 entries; no hash is used that a
//! hostile file could target. A model of up to 2,047 tensors takes one pass, the maximum of
//! [`super::TENSOR_COUNT_MAX`] up to 65.

use super::error::{GgufError, GgufErrorKind, GgufPlace};
use super::tensor::TensorInfo;
use super::{Gguf, KEY_LEN_MAX, TENSOR_NAME_LEN_MAX};
use crate::sort::{select_index, sort_indices};

pub(super) fn check_distinct_keys(gguf: &Gguf<'_>) -> Result<(), GgufError> {
    let positions = || {
        let mut entries = gguf.metadata();
        core::iter::from_fn(move || entries.next_entry().map(|entry| entry.at))
    };
    let key = |at| {
        gguf.cursor_at(at)
            .string("key length", KEY_LEN_MAX)
            .unwrap_or_default()
    };
    let Some((first, second)) = find_neighbours(positions, key, |a, b| key(a) == key(b)) else {
        return Ok(());
    };
    let index_of = |at| index_of(positions(), at);
    let kind = GgufErrorKind::DuplicateKey {
        first: index_of(first),
    };
    let place = GgufPlace::Metadata {
        index: index_of(second),
    };
    Err(GgufError::new(kind, place, second.into()).named(key(second)))
}

pub(super) fn check_distinct_names(gguf: &Gguf<'_>) -> Result<(), GgufError> {
    let positions = || tensor_positions(gguf);
    let name = |at| tensor_name(gguf, at);
    let Some((first, second)) = find_neighbours(positions, name, |a, b| name(a) == name(b)) else {
        return Ok(());
    };
    let kind = GgufErrorKind::DuplicateTensor {
        first: index_of(positions(), first),
    };
    let place = GgufPlace::Tensor {
        index: index_of(positions(), second),
    };
    Err(GgufError::new(kind, place, second.into()).named(name(second)))
}

/// If any two tensors with data overlap, two neighbours overlap.
pub(super) fn check_disjoint_data(gguf: &Gguf<'_>) -> Result<(), GgufError> {
    let len_bytes =
        |at| TensorInfo::read(&mut gguf.cursor_at(at), 0).map_or(0, |info| info.len_bytes);
    let positions = || tensor_positions(gguf).filter(|&at| len_bytes(at) > 0);
    let offset = |at| TensorInfo::read_offset(&mut gguf.cursor_at(at)).unwrap_or(0);
    let overlap = |a, b| offset(b) - offset(a) < len_bytes(a);
    let Some((a, b)) = find_neighbours(positions, offset, overlap) else {
        return Ok(());
    };
    // Either could be blamed; the error names the later one in the file.
    let (first, second) = (a.min(b), a.max(b));
    let kind = GgufErrorKind::DataOverlaps {
        other: index_of(tensor_positions(gguf), first),
    };
    let place = GgufPlace::Tensor {
        index: index_of(tensor_positions(gguf), second),
    };
    Err(GgufError::new(kind, place, second.into()).named(tensor_name(gguf, second)))
}

fn tensor_positions<'a>(gguf: &Gguf<'a>) -> impl Iterator<Item = u32> + use<'a> {
    let mut cursor = gguf.tensor_cursor();
    (0..gguf.tensor_count).map_while(move |_| {
        let at = cursor.position_u32();
        TensorInfo::read_offset(&mut cursor).ok().map(|_| at)
    })
}

fn tensor_name<'a>(gguf: &Gguf<'a>, at: u32) -> &'a [u8] {
    let name = gguf
        .cursor_at(at)
        .string("tensor name length", TENSOR_NAME_LEN_MAX);
    name.unwrap_or_default()
}

fn index_of(mut positions: impl Iterator<Item = u32>, at: u32) -> u32 {
    let index = positions.position(|position| position == at).unwrap_or(0);
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// The first two entries, neighbours in the order of `key`, that `conflict`; as positions,
/// in that order. Equal keys are ordered by position. `positions` must give the same distinct
/// positions every time.
pub(super) fn find_neighbours<K: Ord, I: Iterator<Item = u32>>(
    positions: impl Fn() -> I,
    key: impl Fn(u32) -> K,
    conflict: impl Fn(u32, u32) -> bool,
) -> Option<(u32, u32)> {
    let ranked = |at| (key(at), at);
    let order = |a, b| ranked(a).cmp(&ranked(b));
    let mut buffer = [0_u32; 2 * CHUNK_LEN];
    // The last entry of the previous chunk; it is also the first of the next one, so that no
    // pair of neighbours is split.
    let mut floor = None;
    loop {
        let mut len = 0;
        // The largest entry kept when the buffer was last full: larger ones wait for a later pass.
        let mut ceiling = None;
        for at in positions() {
            let entry = ranked(at);
            let below = floor.as_ref().is_some_and(|floor| entry < *floor);
            if below || ceiling.as_ref().is_some_and(|ceiling| entry > *ceiling) {
                continue;
            }
            buffer[len] = at;
            len += 1;
            if len == buffer.len() {
                let middle = select_index(&mut buffer, CHUNK_LEN - 1, &order);
                ceiling = Some(ranked(middle));
                len = CHUNK_LEN;
            }
        }
        let chunk = &mut buffer[..len];
        sort_indices(chunk, &order);
        for pair in chunk.windows(2) {
            if conflict(pair[0], pair[1]) {
                return Some((pair[0], pair[1]));
            }
        }
        ceiling?;
        floor = chunk.last().map(|&at| ranked(at));
    }
}

/// Minimum entries that a pass keeps, if that many remain. The buffer is twice as long (8 KiB
/// of stack).
const CHUNK_LEN: usize = 1024;
