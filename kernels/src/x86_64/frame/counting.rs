//! The histogram of a frame, counted while its sums are computed.

use crate::contract::LANES;
use crate::statistics::{BINS_MAX, Bins, Counts};
use crate::vector::scan::Ahead;
use core::arch::asm;

/// Samples whose bins are counted together.
pub(super) const GROUP: usize = 64;

/// The bins of a group, a byte each, in the words that [`add_eight`] takes.
pub(super) type Held = [u64; GROUP / 8];

/// The histogram of a frame whose extremes are known, in the making.
#[derive(Debug)]
pub(super) struct Counting<'a> {
    /// Smallest and largest sample. A zero is +0.
    pub(super) extremes: [f32; 2],
    /// What is prefetched meanwhile.
    ahead: Ahead,
    pub(super) bins: Bins,
    /// Several histograms in turn would wait less for one another's increments, but are slower to
    /// clear and to add up than they save: a store a cycle is what a core can do.
    counts: &'a mut Counts,
    /// The bins of the two groups before, in turn. They are counted that much later: counts that wait for the bins of
    /// their own samples fill a core's queues, and hold up the sums that are computed in the same loop.
    held: [Held; 2],
}

/// What is held before the first group: some bins, each once, as increments of one count wait for
/// one another.
const NONE_HELD: Held = {
    let mut words = [0; GROUP / 8];
    let mut bin = 0;
    while bin < GROUP {
        words[bin / 8] |= (bin as u64) << (8 * (bin % 8));
        bin += 1;
    }
    words
};

impl<'a> Counting<'a> {
    /// Counts a frame with these extremes. `None` if they hardly differ, differ by more than 2^126, or are not finite.
    /// Otherwise the inverse of the range is a normal number, at most 2^-24 too large in proportion; its product with
    /// the range rounds to 1 at most, so no bin is above the last.
    #[inline(always)]
    pub(super) fn new(
        x: &[f32],
        extremes: [f32; 2],
        n_bins: usize,
        counts: &'a mut Counts,
        next: &[f32],
    ) -> Option<Self> {
        let extremes = extremes.map(|x| x + 0.0);
        let bins = Bins::between(extremes, n_bins);
        if !bins.inverse_range.is_normal() {
            return None;
        }
        *counts = [0; BINS_MAX];
        // [`NONE_HELD`] is counted twice.
        counts[..GROUP].fill(0u32.wrapping_sub(2));
        Some(Self {
            extremes,
            ahead: Ahead::new(x, next),
            bins,
            counts,
            held: [NONE_HELD; 2],
        })
    }

    /// Prefetches what belongs to the group of samples from `at` on.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: usize) {
        self.ahead.prefetch::<{ GROUP / LANES }>(at);
    }

    /// Counts eight of what is held in the place of group `g`.
    #[inline(always)]
    pub(super) fn count_eight(&mut self, g: usize, eighth: usize) {
        add_eight(self.counts, self.held[g % 2][eighth]);
    }

    /// The place for the bins of group `g`, to be used once all bins held there are counted.
    #[inline(always)]
    pub(super) fn hold(&mut self, g: usize) -> &mut Held {
        &mut self.held[g % 2]
    }

    /// Counts what is held.
    #[inline(always)]
    pub(super) fn finish(&mut self) {
        for held in self.held {
            for eight in held {
                add_eight(self.counts, eight);
            }
        }
    }

    /// Counts bins, one per sample.
    #[inline(always)]
    pub(super) fn count(&mut self, bins: &[u8]) {
        add(self.counts, bins);
    }
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

/// Counts eight bins. Extracting them from one register leaves the core's memory ports to the increments, which are
/// limited by those ports.
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
