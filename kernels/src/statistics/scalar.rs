//! The frame kernels in plain loops: the specification.

use super::{BINS_MAX, BLOCK, Bins, Counts, FrameStats, NEAR_ZERO, Peaks, Sums, tree_sum};
use crate::contract::LANES;

/// [`crate::FrameKernels::max_abs`].
pub(crate) fn max_abs(x: &[f32]) -> f32 {
    // Magnitudes order as their bits do, with infinity and then NaN at the top.
    let bits = x.iter().fold(0, |max: u32, x| max.max(x.abs().to_bits()));
    let max = f32::from_bits(bits);
    if max.is_nan() { f32::NAN } else { max }
}

/// [`crate::FrameKernels::max_abs_before`]. Slower than memory anyway.
pub(crate) fn max_abs_before(x: &[f32], _: &[f32]) -> f32 {
    max_abs(x)
}

/// [`crate::FrameKernels::peaks_before`].
pub(crate) fn peaks_before(x: &[f32], _: &[f32]) -> Peaks {
    x.iter().fold(Peaks::NONE, |peaks, x| Peaks {
        signed: peaks.signed.max(x.to_bits().cast_signed()),
        unsigned: peaks.unsigned.max(x.to_bits()),
    })
}

/// [`crate::FrameKernels::stats`].
pub(crate) fn stats(x: &[f32]) -> FrameStats {
    let Some(&first) = x.first() else {
        return FrameStats::EMPTY;
    };
    let first = if first.is_finite() { first } else { 0.0 };
    let d = |x: f32| if x.is_finite() { x - first } else { 0.0 };
    let mut stats = FrameStats {
        len: x.len(),
        max_abs: max_abs(x),
        first: first + 0.0,
        last_d: d(x[x.len() - 1]) + 0.0,
        n_non_finite: x.iter().filter(|x| !x.is_finite()).count(),
        n_near_zero: x.iter().filter(|x| x.abs() < NEAR_ZERO).count(),
        n_crossings: x
            .windows(2)
            .filter(|pair| crosses(pair[0], pair[1]))
            .count(),
        ..FrameStats::EMPTY
    };
    let finite = || x.iter().copied().filter(|x| x.is_finite());
    // Adding +0 makes a zero of either sign +0.
    stats.min = finite().reduce(f32::min).unwrap_or(0.0) + 0.0;
    stats.max = finite().reduce(f32::max).unwrap_or(0.0) + 0.0;
    let mut sums = Sums::ZERO;
    let mut before = 0.0;
    for block in x.chunks(BLOCK) {
        let mut abs = [0f32; LANES];
        for (i, &x) in block.iter().enumerate() {
            let lane = i % LANES;
            let d = d(x);
            abs[lane] += if x.is_finite() { x.abs() } else { 0.0 };
            let (d, last) = (f64::from(d), f64::from(core::mem::replace(&mut before, d)));
            sums.d[lane] += d;
            sums.d2[lane] += d * d;
            sums.lag1[lane] += last * d;
        }
        for (sum, abs) in sums.abs.iter_mut().zip(abs) {
            *sum += f64::from(abs);
        }
    }
    stats.sum_abs = tree_sum(&sums.abs);
    stats.sum_d = tree_sum(&sums.d);
    stats.sum_d2 = tree_sum(&sums.d2);
    stats.sum_lag1 = tree_sum(&sums.lag1);
    stats
}

fn crosses(a: f32, b: f32) -> bool {
    (a >= 0.0 && b < 0.0) || (a < 0.0 && b >= 0.0)
}

/// [`crate::FrameKernels::histogram`].
pub(crate) fn histogram(x: &[f32], bins: &Bins, counts: &mut Counts) {
    counts.fill(0);
    for &x in x {
        counts[usize::from(bin_of(x, bins))] += 1;
    }
}

/// [`crate::FrameKernels::stats_and_histogram`].
pub(crate) fn stats_and_histogram(
    x: &[f32],
    _: Option<Peaks>,
    n_bins: usize,
    counts: &mut Counts,
    _: &[f32],
) -> FrameStats {
    let stats = stats(x);
    histogram(x, &Bins::over(&stats, n_bins), counts);
    stats
}

/// The bin of a sample.
fn bin_of(x: f32, bins: &Bins) -> u8 {
    debug_assert!(bins.n_bins <= BINS_MAX);
    let last = bins.n_bins - 1;
    #[expect(clippy::cast_precision_loss, reason = "at most 255")]
    let at = (x - bins.min) * bins.inverse_range * last as f32;
    // Not finite, or a range beyond what f32 holds.
    if !x.is_finite() || !at.is_finite() {
        return last.to_le_bytes()[0];
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "x ≥ min, and the cast saturates"
    )]
    let at = at as usize;
    at.min(last).to_le_bytes()[0]
}
