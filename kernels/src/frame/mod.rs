//! Statistics of a frame of samples, for the gate in front of a model.
//!
//! Any length, any alignment; nothing outside the slice is read. All kernels give the same bits:
//!
//! - Maxima, minima and counts are order-free. A zero minimum or maximum is +0.
//! - Sums are over `d = x - first`, rounded to f32: the difference takes a constant offset away,
//!   which would cancel otherwise. Products of two f32 are exact in f64, so fused and separate
//!   multiply-adds agree.
//! - Sums have 16 f64 lanes (lane l takes samples l, l + 16, …) and a fixed tree
//!   (+8, +4, +2, +1). `sum_abs` adds up blocks of `BLOCK` samples in f32 lanes first.
//! - A sample that is not finite is counted, and left out of everything but `max_abs` and
//!   `n_crossings`. Kernels hand frames with such samples to the scalar one.

use crate::cpu::CpuFeatures;
use crate::statistics::{entropy, scalar};
use crate::tuning::Tuning;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use crate::x86_64::frame as x86;
use core::fmt;

pub use crate::statistics::{BINS_MAX, Bins, Counts, FrameStats, NEAR_ZERO, Peaks};

/// [`FrameKernels::stats_and_histogram`].
type StatsAndHistogram = unsafe fn(&[f32], Option<Peaks>, usize, &mut Counts, &[f32]) -> FrameStats;

/// The frame kernels of one instruction-set level, part of a [`crate::KernelTable`].
///
/// Only this module hands them out, to CPUs that have their features: holding one is the proof
/// that its functions may run here.
pub struct FrameKernels {
    name: &'static str,
    requires: CpuFeatures,
    max_abs: unsafe fn(&[f32]) -> f32,
    max_abs_before: unsafe fn(&[f32], &[f32]) -> f32,
    peaks_before: unsafe fn(&[f32], &[f32]) -> Peaks,
    stats: unsafe fn(&[f32]) -> FrameStats,
    histogram: unsafe fn(&[f32], &Bins, &mut Counts),
    stats_and_histogram: StatsAndHistogram,
    sum_count_log2: unsafe fn(&Counts) -> u64,
}

impl fmt::Debug for FrameKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameKernels")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

pub(crate) static SCALAR: FrameKernels = FrameKernels {
    name: "scalar",
    requires: CpuFeatures::empty(),
    max_abs: scalar::max_abs,
    max_abs_before: scalar::max_abs_before,
    peaks_before: scalar::peaks_before,
    stats: scalar::stats,
    histogram: scalar::histogram,
    stats_and_histogram: scalar::stats_and_histogram,
    sum_count_log2: entropy::sum_count_log2,
};

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) static AVX2: FrameKernels = FrameKernels {
    name: "avx2",
    requires: CpuFeatures::AVX2.union(CpuFeatures::FMA),
    max_abs: x86::avx2::max_abs,
    max_abs_before: x86::avx2::max_abs_before,
    peaks_before: x86::avx2::peaks_before,
    stats: x86::avx2::stats,
    histogram: x86::avx2::histogram,
    stats_and_histogram: x86::avx2::stats_and_histogram,
    sum_count_log2: entropy::sum_count_log2,
};

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) static AVX512: FrameKernels = FrameKernels {
    name: "avx512",
    requires: CpuFeatures::AVX512.union(CpuFeatures::AVX2),
    max_abs: x86::avx512::max_abs,
    max_abs_before: x86::avx512::max_abs_before,
    peaks_before: x86::avx512::peaks_before,
    stats: x86::avx512::stats,
    histogram: x86::avx512::histogram,
    stats_and_histogram: x86::avx512::stats_and_histogram,
    sum_count_log2: x86::avx512::sum_count_log2,
};

/// All of this build, slowest first.
static ALL: &[&FrameKernels] = &[
    &SCALAR,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    &AVX2,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    &AVX512,
];

impl FrameKernels {
    /// All that need only features in `cpu`, slowest first; never empty.
    pub fn available(cpu: CpuFeatures) -> impl DoubleEndedIterator<Item = &'static Self> {
        let cpu = cpu & CpuFeatures::detect();
        let all = ALL.iter().copied();
        all.filter(move |kernels| cpu.contains(kernels.requires))
    }

    /// The fastest for `cpu`.
    pub fn best(cpu: CpuFeatures) -> &'static Self {
        Self::available(cpu).next_back().unwrap_or(&SCALAR)
    }

    /// The ones called `name`, if `cpu` runs them.
    pub fn by_name(name: &str, cpu: CpuFeatures) -> Option<&'static Self> {
        Self::available(cpu).find(|kernels| kernels.name == name)
    }

    /// The instruction set's name, as `--isa` takes it.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The largest magnitude: NaN if any sample is NaN, 0 for no samples. The gate's scan.
    #[inline]
    pub fn max_abs(&self, x: &[f32]) -> f32 {
        // SAFETY: holding the kernels proves the features; the operand is a slice.
        unsafe { (self.max_abs)(x) }
    }

    /// [`Self::max_abs`] of `x`. Meanwhile prefetches `next`, a frame that is scanned soon, line by line, for as many
    /// samples as `x` has. A core's own prefetching ends at every page; with this a stream of frames is read at memory
    /// speed. `next` is never read. Where [`scans_by_frames`] is false, the lines shortly ahead in `x` and after its
    /// end are prefetched instead.
    #[inline]
    pub fn max_abs_before(&self, x: &[f32], next: &[f32]) -> f32 {
        // SAFETY: as in `max_abs`.
        unsafe { (self.max_abs_before)(x, next) }
    }

    /// As [`Self::max_abs_before`], of the largest samples on both sides of zero: for frames that
    /// probably get a histogram, which takes the extremes.
    #[inline]
    pub fn peaks_before(&self, x: &[f32], next: &[f32]) -> Peaks {
        // SAFETY: as in `max_abs`.
        unsafe { (self.peaks_before)(x, next) }
    }

    /// All statistics, in one pass.
    #[inline]
    pub fn stats(&self, x: &[f32]) -> FrameStats {
        // SAFETY: as in `max_abs`.
        unsafe { (self.stats)(x) }
    }

    /// Counts the samples per bin, of which none may be below `bins.min`. A sample that is not finite
    /// counts in the last bin.
    ///
    /// # Panics
    /// If `bins.n_bins` is not `1..=`[`BINS_MAX`].
    #[inline]
    pub fn histogram(&self, x: &[f32], bins: &Bins, counts: &mut Counts) {
        assert!((1..=BINS_MAX).contains(&bins.n_bins));
        // SAFETY: as in `max_abs`.
        unsafe { (self.histogram)(x, bins, counts) }
    }

    /// [`Self::stats`], and [`Self::histogram`] of `n_bins` bins [`Bins::over`] them, together: the histogram waits for
    /// stores and the sums for arithmetic, so that both in one loop take little longer than either. `peaks` are the
    /// peaks of `x`, if known. Prefetches all of `next` as [`Self::max_abs_before`] does, however many frames it has:
    /// this function takes several times as long as memory needs for one.
    ///
    /// # Panics
    /// If `n_bins` is not `1..=`[`BINS_MAX`].
    #[inline]
    pub fn stats_and_histogram(
        &self,
        x: &[f32],
        peaks: Option<Peaks>,
        n_bins: usize,
        counts: &mut Counts,
        next: &[f32],
    ) -> FrameStats {
        assert!((1..=BINS_MAX).contains(&n_bins));
        // SAFETY: as in `max_abs`.
        unsafe { (self.stats_and_histogram)(x, peaks, n_bins, counts, next) }
    }

    /// The entropy of a histogram in bits, `log2 n - Σ c log2 c / n` with n samples and counts c.
    /// The sum is one of whole numbers, products rounded to 2^-20.
    ///
    /// 0 for fewer than two samples.
    #[inline]
    pub fn entropy(&self, counts: &Counts, n: usize) -> f64 {
        if n < 2 {
            return 0.0;
        }
        // SAFETY: as in `max_abs`.
        let sum = unsafe { (self.sum_count_log2)(counts) };
        #[expect(
            clippy::cast_precision_loss,
            reason = "below 2^53 for frames below 2^27 samples"
        )]
        let (sum, n) = (sum as f64, n as f64);
        const UNIT: f64 = 1.0 / (1u64 << entropy::FRACTION_BITS) as f64;
        (entropy::log2(n) - sum * UNIT / n).max(0.0) + 0.0
    }
}

/// Whether this CPU gains from a scan that prefetches whole later frames; otherwise it gains only from lines a little
/// ahead.
#[must_use]
pub fn scans_by_frames() -> bool {
    Tuning::detect().scan.by_frames
}

/// Frames to prefetch on this CPU while features of one are computed.
#[must_use]
pub fn frames_ahead() -> usize {
    Tuning::detect().scan.n_frames
}

#[cfg(test)]
mod tests;
