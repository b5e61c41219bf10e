//! Finding duplicate names and overlapping data without memory to sort in.
//!
//! Duplicates are neighbours in sorted order. The entries do not fit in any memory we have, so
//! sorted order is produced in chunks: each pass over the entries keeps the smallest of those
//! at or after the last chunk's end, in a fixed buffer of positions that is halved by
//! selection whenever it is full. A pass costs a constant number of comparisons per entry
//! whatever their order, and moves on by at least [`CHUNK_LEN`] - 1 entries; there is no hash that a
//! hostile file could aim at. A model of up to 2,047 tensors takes one pass, the most that
//! [`super::TENSOR_COUNT_MAX`] allows takes 65.

use core::cmp::Ordering;

use super::error::{GgufError, GgufErrorKind, GgufPlace};
use super::tensor::TensorInfo;
use super::{Gguf, KEY_LEN_MAX, TENSOR_NAME_LEN_MAX};

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
    let Some((first, second)) = find_neighbours(positions, key, |a, b| a == b) else {
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
    let Some((first, second)) = find_neighbours(positions, name, |a, b| a == b) else {
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

/// No tensor has zero bytes, so an overlap of any two is also one of neighbours.
pub(super) fn check_disjoint_data(gguf: &Gguf<'_>) -> Result<(), GgufError> {
    let positions = || tensor_positions(gguf);
    let range = |at| {
        TensorInfo::read(&mut gguf.cursor_at(at), gguf.data_offset)
            .map_or((0, 0), |info| (info.offset, info.len_bytes))
    };
    let overlap = |a: (u64, u64), b: (u64, u64)| b.0 - a.0 < a.1;
    let Some((first, second)) = find_neighbours(positions, range, overlap) else {
        return Ok(());
    };
    let kind = GgufErrorKind::DataOverlaps {
        other: index_of(positions(), first),
    };
    let place = GgufPlace::Tensor {
        index: index_of(positions(), second),
    };
    Err(GgufError::new(kind, place, second.into()).named(tensor_name(gguf, second)))
}

fn tensor_positions(gguf: &Gguf<'_>) -> impl Iterator<Item = u32> {
    let mut tensors = gguf.tensors();
    core::iter::from_fn(move || {
        let at = tensors.position();
        tensors.next().map(|_| at)
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
fn find_neighbours<K: Ord + Copy, I: Iterator<Item = u32>>(
    positions: impl Fn() -> I,
    key: impl Fn(u32) -> K,
    conflict: impl Fn(K, K) -> bool,
) -> Option<(u32, u32)> {
    let order = |a: &u32, b: &u32| match a == b {
        true => Ordering::Equal,
        false => key(*a).cmp(&key(*b)).then(a.cmp(b)),
    };
    let mut buffer = [0_u32; 2 * CHUNK_LEN];
    // The last entry of the previous chunk; it is also the first of the next one, so that no
    // pair of neighbours is torn.
    let mut floor = None;
    loop {
        let mut len = 0;
        // The largest entry kept when the buffer was last full: larger ones wait.
        let mut ceiling = None;
        for at in positions() {
            let below = floor.is_some_and(|floor| order(&at, &floor).is_lt());
            if below || ceiling.is_some_and(|ceiling| order(&at, &ceiling).is_gt()) {
                continue;
            }
            buffer[len] = at;
            len += 1;
            if len == buffer.len() {
                let (_, middle, _) = buffer.select_nth_unstable_by(CHUNK_LEN - 1, order);
                ceiling = Some(*middle);
                len = CHUNK_LEN;
            }
        }
        let chunk = &mut buffer[..len];
        chunk.sort_unstable_by(order);
        for pair in chunk.windows(2) {
            if conflict(key(pair[0]), key(pair[1])) {
                return Some((pair[0], pair[1]));
            }
        }
        ceiling?;
        floor = chunk.last().copied();
    }
}

/// Entries that a pass keeps at least, where there are so many. The buffer is twice as long:
/// 8 KiB of stack.
const CHUNK_LEN: usize = 1024;
