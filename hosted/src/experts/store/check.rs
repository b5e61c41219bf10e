//! Checks that reads return the right bytes.

use super::super::places::Piece;
use super::fetch::Flight;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use sluice_core::hash::Hash64;

/// Checksums of the first reads, for pieces without a checksum in the file.
#[derive(Debug)]
pub(super) struct Checks {
    /// By id, part and piece; 0 before the first read.
    seen: Box<[AtomicU64]>,
    /// Pieces of a part.
    n_pieces: usize,
}

impl Checks {
    pub(super) fn new(n_ids: usize, n_pieces: usize) -> Self {
        let n = 2 * n_pieces * n_ids;
        Self {
            seen: (0..n).map(|_| AtomicU64::new(0)).collect(),
            n_pieces,
        }
    }

    /// Compares the bytes of a piece, which begins at `start`, with the file's checksums, or with the previous read's.
    ///
    /// # Safety
    /// The piece's bytes are initialized, and nothing writes to them meanwhile.
    pub(super) unsafe fn are_right(
        &self,
        flight: &Flight,
        piece: &Piece,
        expert: u32,
        start: NonNull<u8>,
    ) -> bool {
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { core::slice::from_raw_parts(start.as_ptr(), piece.len_of(expert)) };
        if piece.sums.is_empty() {
            let part = 2 * flight.id as usize + flight.part as usize;
            let index = self.n_pieces * part + flight.piece;
            let found = hash(bytes).max(1);
            let before = self.seen[index].swap(found, Ordering::Relaxed);
            return before == 0 || before == found;
        }
        let mut sums = piece.sums.iter();
        sums.all(|(range, sums)| sums.get(expert as usize) == Some(&hash(&bytes[range.clone()])))
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hash = Hash64::new();
    hash.write(bytes);
    hash.finish()
}
