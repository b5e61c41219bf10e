//! The histogram of a frame, counted while its sums are computed.

use crate::contract::LANES;
use crate::frame::{Ahead, BINS_MAX, Bins, Counts};
use core::arch::asm;

/// The histogram of a frame whose extremes are known, in the making.
#[derive(Debug)]
pub(super) struct Counting<'a> {
    /// Smallest and largest sample. A zero is +0.
    pub(super) extremes: [f32; 2],
    /// What memory is asked for meanwhile.
    pub(super) ahead: Ahead,
    pub(super) bins: Bins,
    /// Several histograms in turn would wait less for one another's increments, but are slower to
    /// clear and to add up than they save: a store a cycle is what a core can do.
    counts: &'a mut Counts,
    /// The bins of the chunk before, which are counted that much later: a count that waits for
    /// the bins of its own samples would hold up the sums that are computed beside it.
    held: [u64; 2],
}

/// What is held before the first chunk: some bins, each once, as increments of one count wait for
/// one another.
const NONE_HELD: [u8; LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

impl<'a> Counting<'a> {
    #[inline(always)]
    pub(super) fn new(
        x: &[f32],
        extremes: [f32; 2],
        n_bins: usize,
        counts: &'a mut Counts,
        next: &[f32],
    ) -> Self {
        let extremes = extremes.map(|x| x + 0.0);
        *counts = [0; BINS_MAX];
        // What is held is counted.
        counts[..LANES].fill(u32::MAX);
        Self {
            extremes,
            ahead: Ahead::new(x, next),
            bins: Bins::between(extremes, n_bins),
            counts,
            held: words(NONE_HELD),
        }
    }

    /// Takes the bins of a chunk, and counts those of the one before.
    #[inline(always)]
    pub(super) fn take(&mut self, bins: [u64; 2]) {
        let held = core::mem::replace(&mut self.held, bins);
        held.into_iter()
            .for_each(|eight| add_eight(self.counts, eight));
    }

    /// Takes the bins of what is left of the frame, and counts what is held.
    #[inline(always)]
    pub(super) fn finish(&mut self, rest: &[u8]) {
        self.take([0; 2]);
        add(self.counts, rest);
    }
}

/// Sixteen bins as they are in registers.
#[inline(always)]
pub(super) fn words(bins: [u8; LANES]) -> [u64; 2] {
    let (words, _) = bins.as_chunks::<8>();
    [words[0], words[1]].map(u64::from_le_bytes)
}

/// Counts bins, one per sample.
#[inline(always)]
pub(super) fn add(counts: &mut Counts, bins: &[u8]) {
    let (words, rest) = bins.as_chunks::<8>();
    words
        .iter()
        .for_each(|eight| add_eight(counts, u64::from_le_bytes(*eight)));
    for &bin in rest {
        counts[usize::from(bin)] = counts[usize::from(bin)].wrapping_add(1);
    }
}

/// The same of eight bins. Taken out of one register they leave a core's ways to memory to the
/// increments, which those bound.
#[inline(always)]
fn add_eight(counts: &mut Counts, bins: u64) {
    // SAFETY: increments of counts that a byte numbers, and there are 256.
    unsafe {
        asm!(
            "movzx {bin:e}, {bins:l}",
            "inc dword ptr [{counts} + 4 * {bin:r}]",
            "movzx {bin:e}, {bins:h}",
            "inc dword ptr [{counts} + 4 * {bin:r}]",
            "shr {bins:r}, 16",
            "movzx {bin:e}, {bins:l}",
            "inc dword ptr [{counts} + 4 * {bin:r}]",
            "movzx {bin:e}, {bins:h}",
            "inc dword ptr [{counts} + 4 * {bin:r}]",
            "shr {bins:r}, 16",
            "movzx {bin:e}, {bins:l}",
            "inc dword ptr [{counts} + 4 * {bin:r}]",
            "movzx {bin:e}, {bins:h}",
            "inc dword ptr [{counts} + 4 * {bin:r}]",
            "shr {bins:e}, 16",
            "movzx {bin:e}, {bins:l}",
            "inc dword ptr [{counts} + 4 * {bin:r}]",
            "movzx {bin:e}, {bins:h}",
            "inc dword ptr [{counts} + 4 * {bin:r}]",
            bins = inout(reg_abcd) bins => _,
            bin = out(reg_abcd) _,
            counts = in(reg) counts.as_mut_ptr(),
            options(nostack),
        );
    }
}
