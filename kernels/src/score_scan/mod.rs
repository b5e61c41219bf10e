//! Scans of scores: their range, how many are above a threshold, and which. For selections of neurons.
//!
//! Scores that are not numbers have no place in the range and are not counted, but they are listed: a neuron of which nothing
//! is known is computed. A threshold that is not a number has nothing above it. Every instance finds the same.

#[cfg(test)]
mod tests;

use crate::KernelTable;
#[cfg(any(test, all(target_arch = "x86_64", target_feature = "sse2")))]
use crate::cpu::CpuFeatures;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use crate::x86_64::score_scan as x86;

/// Between which values scores lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreRange {
    /// The lowest score; infinity without scores. Zero has either sign.
    pub lowest: f32,
    /// The highest score; negative infinity without scores. Zero has either sign.
    pub highest: f32,
    /// Scores that are not numbers.
    pub n_nan: usize,
}

impl ScoreRange {
    /// Of no scores.
    pub(crate) const EMPTY: Self = Self {
        lowest: f32::INFINITY,
        highest: f32::NEG_INFINITY,
        n_nan: 0,
    };

    /// With one more score.
    #[inline(always)]
    pub(crate) fn with(self, score: f32) -> Self {
        let Self {
            lowest, highest, ..
        } = self;
        Self {
            lowest: if score < lowest { score } else { lowest },
            highest: if score > highest { score } else { highest },
            n_nan: self.n_nan + usize::from(score.is_nan()),
        }
    }
}

type RangeFn = unsafe fn(&[f32]) -> ScoreRange;
type CountFn = unsafe fn(&[f32], f32) -> usize;
type ListFn = unsafe fn(&[f32], f32, &mut [usize]) -> usize;

/// The functions of one instruction set.
#[derive(Debug)]
pub struct ScoreScan {
    range: RangeFn,
    count_above: CountFn,
    list_above: ListFn,
}

static SCALAR: ScoreScan = ScoreScan {
    range: scalar_range,
    count_above: scalar_count,
    list_above: scalar_list,
};

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
static AVX2: ScoreScan = ScoreScan {
    range: x86::avx2::range,
    count_above: x86::avx2::count_above,
    list_above: x86::avx2::list_above,
};

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
static AVX512: ScoreScan = ScoreScan {
    range: x86::avx512::range,
    count_above: x86::avx512::count_above,
    list_above: x86::avx512::list_above,
};

impl KernelTable {
    /// Scans of scores. No part of the table, so that programs without them do not link them.
    pub const fn score_scan(&self) -> &'static ScoreScan {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if self.requires().contains(CpuFeatures::AVX512) {
            return &AVX512;
        } else if self.requires().contains(CpuFeatures::AVX2) {
            return &AVX2;
        }
        &SCALAR
    }
}

impl ScoreScan {
    /// The range of the scores.
    #[must_use]
    pub fn range(&self, scores: &[f32]) -> ScoreRange {
        // SAFETY: a table's features are there.
        unsafe { (self.range)(scores) }
    }

    /// The number of scores above `threshold`.
    #[must_use]
    pub fn count_above(&self, scores: &[f32], threshold: f32) -> usize {
        // SAFETY: as above.
        unsafe { (self.count_above)(scores, threshold) }
    }

    /// Writes the indices of the scores that are above `threshold` or not numbers to the beginning of `list`, ascending,
    /// and returns their number. What follows them in `list` is undefined.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn list_above(&self, scores: &[f32], threshold: f32, list: &mut [usize]) -> usize {
        assert_eq!(scores.len(), list.len());
        // SAFETY: as above; lengths were compared.
        unsafe { (self.list_above)(scores, threshold, list) }
    }
}

/// [`ScoreScan::range`], the definition.
fn scalar_range(scores: &[f32]) -> ScoreRange {
    let all = scores.iter();
    all.fold(ScoreRange::EMPTY, |range, score| range.with(*score))
}

/// [`ScoreScan::count_above`], the definition.
pub(crate) fn scalar_count(scores: &[f32], threshold: f32) -> usize {
    let above = scores.iter().map(|score| usize::from(*score > threshold));
    above.sum()
}

/// [`ScoreScan::list_above`], the definition.
fn scalar_list(scores: &[f32], threshold: f32, list: &mut [usize]) -> usize {
    list_from(0, scores, threshold, list, 0)
}

/// Adds the indices from `first` on to the `n` that are listed.
#[inline(always)]
pub(crate) fn list_from(
    first: usize,
    scores: &[f32],
    threshold: f32,
    list: &mut [usize],
    mut n: usize,
) -> usize {
    for (i, score) in scores.iter().enumerate() {
        // Without a branch: the next index is written here too if this one is not listed.
        list[n] = first + i;
        n += usize::from((*score > threshold) | score.is_nan());
    }
    n
}
