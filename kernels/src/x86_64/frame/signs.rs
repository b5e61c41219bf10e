//! Zero crossings of a frame, from masks of signs.

use crate::contract::LANES;
use crate::frame::BLOCK;

/// Which samples of a frame are ≥ 0, and how often that changes. A block is looked at one block
/// late: masks that have just been stored one by one would be waited for if they were loaded
/// together.
#[derive(Debug)]
pub(super) struct Signs {
    /// Of two blocks in turn. Bit l of `masks[_][i]` says whether sample 16 i + l is ≥ 0.
    masks: [[u16; BLOCK / LANES]; 2],
    /// Blocks so far, and the samples of the last.
    n_blocks: usize,
    len: usize,
    /// Bit 0: whether the last sample that has been looked at is ≥ 0.
    before: u64,
    n_crossings: usize,
}

impl Signs {
    /// Of a frame with this first sample.
    #[inline(always)]
    pub(super) fn new(first: f32) -> Self {
        Self {
            masks: [[0; _]; _],
            n_blocks: 0,
            len: 0,
            before: u64::from(first >= 0.0),
            n_crossings: 0,
        }
    }

    /// Where the masks of the next block go.
    #[inline(always)]
    pub(super) fn next(&mut self) -> &mut [u16; BLOCK / LANES] {
        &mut self.masks[self.n_blocks % 2]
    }

    /// Ends a block of `len` samples, [`BLOCK`] of all but the last, and looks at the one before it.
    #[inline(always)]
    pub(super) fn end_block(&mut self, len: usize) {
        self.look();
        self.n_blocks += 1;
        self.len = len;
    }

    /// Neighbours of which one is ≥ 0 and the other not, once all blocks have ended.
    #[inline(always)]
    pub(super) fn count(&mut self) -> usize {
        self.look();
        self.n_crossings
    }

    #[inline(always)]
    fn look(&mut self) {
        if self.n_blocks == 0 {
            return;
        }
        let masks = &self.masks[(self.n_blocks - 1) % 2];
        for (i, four) in masks.as_chunks::<4>().0.iter().enumerate() {
            let [a, b, c, d] = four.map(u64::from);
            let word = a | b << 16 | c << 32 | d << 48;
            let valid = match self.len.saturating_sub(64 * i) {
                n @ 0..64 => (1 << n) - 1,
                _ => u64::MAX,
            };
            let changed = (word ^ (word << 1 | self.before)) & valid;
            self.n_crossings += changed.count_ones() as usize;
            self.before = word >> 63;
        }
    }
}
