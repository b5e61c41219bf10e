//! What is computed of a frame of samples ([`crate::frame`]), and the scalar kernels, which specify it.

pub(crate) mod entropy;
pub(crate) mod scalar;

use crate::contract::LANES;

/// Samples whose absolute values are added in f32 before the sum is added in f64.
pub(crate) const BLOCK: usize = 256;
/// A sample below this magnitude is near zero (`zf` in the features).
pub const NEAR_ZERO: f32 = 1e-8;
/// Maximum number of bins of a histogram.
pub const BINS_MAX: usize = 256;

/// What one pass over a frame finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrameStats {
    /// Samples.
    pub len: usize,
    /// Largest magnitude: NaN if any sample is NaN; 0 for no samples.
    pub max_abs: f32,
    /// Smallest finite sample; 0 for none.
    pub min: f32,
    /// Largest finite sample; 0 for none.
    pub max: f32,
    /// The first sample, 0 where it is not finite: what the sums are relative to.
    pub first: f32,
    /// The last sample's `d`, 0 where it is not finite.
    pub last_d: f32,
    /// Neighbours of which one is ≥ 0 and the other < 0. NaN is neither.
    pub n_crossings: usize,
    /// Samples below [`NEAR_ZERO`] in magnitude.
    pub n_near_zero: usize,
    /// Samples that are NaN or infinite.
    pub n_non_finite: usize,
    /// Σ |x|.
    pub sum_abs: f64,
    /// Σ d with `d = x - first`.
    pub sum_d: f64,
    /// Σ d².
    pub sum_d2: f64,
    /// Σ d_i · d_{i+1}.
    pub sum_lag1: f64,
}

/// What a scan finds: the largest samples on either side of zero, as bits. Floats of one sign order by magnitude as
/// their bits do, with infinity and then NaN at the top; so two maxima of integers tell whether a frame is loud, and
/// usually what its extremes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peaks {
    /// The largest as signed integers: the largest sample, if one has no sign.
    pub(crate) signed: i32,
    /// The largest as unsigned integers: the smallest sample, if one has a sign.
    pub(crate) unsigned: u32,
}

impl Peaks {
    /// Peaks without any samples.
    pub(crate) const NONE: Self = Self {
        signed: i32::MIN,
        unsigned: 0,
    };

    /// The largest magnitude: NaN if any sample is NaN, 0 for no samples.
    #[inline]
    pub fn max_abs(self) -> f32 {
        let highest = self.signed.max(0).cast_unsigned();
        let max = f32::from_bits(highest.max(self.unsigned & 0x7fff_ffff));
        if max.is_nan() { f32::NAN } else { max }
    }

    /// The smallest and the largest sample, if they are on both sides of zero; a zero is +0. The result is meaningless
    /// if a sample is NaN.
    #[inline]
    pub fn extremes(self) -> Option<[f32; 2]> {
        let (lowest, highest) = (self.unsigned, self.signed.cast_unsigned());
        let are_both = lowest.cast_signed() < 0 && self.signed >= 0;
        are_both.then(|| [lowest, highest].map(|bits| f32::from_bits(bits) + 0.0))
    }
}

impl FrameStats {
    /// Statistics without any samples.
    pub const EMPTY: Self = Self {
        len: 0,
        max_abs: 0.0,
        min: 0.0,
        max: 0.0,
        first: 0.0,
        last_d: 0.0,
        n_crossings: 0,
        n_near_zero: 0,
        n_non_finite: 0,
        sum_abs: 0.0,
        sum_d: 0.0,
        sum_d2: 0.0,
        sum_lag1: 0.0,
    };
}

/// How a histogram cuts the range of a frame: `bin = min(trunc(u · (n_bins - 1)), n_bins - 1)`
/// with `u = (x - min) · (1 / (max - min))`, all in f32 and in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bins {
    /// Smallest sample.
    pub min: f32,
    /// `1 / (max - min)`.
    pub inverse_range: f32,
    /// Bins, `1..=`[`BINS_MAX`].
    pub n_bins: usize,
}

impl Bins {
    /// `n_bins` bins over the range of a frame with these statistics.
    pub fn over(stats: &FrameStats, n_bins: usize) -> Self {
        Self::between([stats.min, stats.max], n_bins)
    }

    /// The last bin.
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    #[expect(clippy::cast_precision_loss, reason = "at most 255")]
    pub(crate) fn last(&self) -> f32 {
        (self.n_bins - 1) as f32
    }

    /// `n_bins` bins over a range.
    pub(crate) fn between([min, max]: [f32; 2], n_bins: usize) -> Self {
        Self {
            min,
            inverse_range: 1.0 / (max - min),
            n_bins,
        }
    }
}

/// Samples per bin; bins from `n_bins` on hold none.
pub type Counts = [u32; BINS_MAX];

/// Lanes of all sums of a frame, as they are before the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    pub(crate) abs: [f64; LANES],
    pub(crate) d: [f64; LANES],
    pub(crate) d2: [f64; LANES],
    pub(crate) lag1: [f64; LANES],
}

impl Sums {
    pub(crate) const ZERO: Self = Self {
        abs: [0.0; LANES],
        d: [0.0; LANES],
        d2: [0.0; LANES],
        lag1: [0.0; LANES],
    };

    /// The statistics of `x`, or `None` where samples or their sums are not finite.
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    #[inline(always)]
    pub(crate) fn stats(
        &self,
        x: &[f32],
        [min, max]: [f32; 2],
        n_crossings: usize,
        n_near_zero: usize,
    ) -> Option<FrameStats> {
        let sum_abs = tree_sum(&self.abs);
        let sum_d2 = tree_sum(&self.d2);
        // Also where sums or differences of finite samples overflow, which then happens again.
        if !(sum_abs.is_finite() && sum_d2.is_finite()) {
            return None;
        }
        let (first, last) = (x.first()?, x.last()?);
        Some(FrameStats {
            len: x.len(),
            // Of +0 and -0, `max` may give either.
            max_abs: max.max(-min) + 0.0,
            min,
            max,
            first: first + 0.0,
            last_d: last - first + 0.0,
            n_crossings,
            n_near_zero,
            n_non_finite: 0,
            sum_abs,
            sum_d: tree_sum(&self.d),
            sum_d2,
            sum_lag1: tree_sum(&self.lag1),
        })
    }
}

/// Adds 16 lanes in the fixed order +8, +4, +2, +1.
#[inline(always)]
pub(crate) fn tree_sum(lanes: &[f64; LANES]) -> f64 {
    let mut sum = *lanes;
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            sum[lane] += sum[lane + half];
        }
        half /= 2;
    }
    sum[0]
}

/// The scalar kernel, for frames with samples that are not finite.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[cold]
pub(crate) fn stats_of_any(x: &[f32]) -> FrameStats {
    scalar::stats(x)
}

/// As [`stats_of_any`].
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
#[cold]
pub(crate) fn stats_and_histogram_of_any(
    x: &[f32],
    n_bins: usize,
    counts: &mut Counts,
) -> FrameStats {
    scalar::stats_and_histogram(x, None, n_bins, counts, &[])
}
