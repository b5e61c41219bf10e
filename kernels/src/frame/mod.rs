//! Statistics of a frame of samples, for the gate in front of a model.
//!
//! Any length, any alignment; nothing outside the slice is read. All kernels give the same bits:
//!
//! - Maxima, minima and counts are order-free. A zero minimum or maximum is +0.
//! - Sums are over `d = x - first`, rounded to f32: the difference takes a constant offset away,
//!   which would cancel otherwise. Products of two f32 are exact in f64, so fused and separate
//!   multiply-adds agree.
//! - Sums have [`LANES`] f64 lanes (lane l takes samples l, l + 16, …) and a fixed tree
//!   (+8, +4, +2, +1). `sum_abs` adds up blocks of `BLOCK` samples in f32 lanes first.
//! - A sample that is not finite is counted, and left out of everything but `max_abs` and
//!   `n_crossings`. Kernels hand frames with such samples to the scalar one.

mod scalar;

use crate::contract::LANES;
use crate::cpu::CpuFeatures;
#[cfg(target_arch = "x86_64")]
use crate::x86_64::frame as x86;
use core::fmt;

/// Samples whose absolute values are added in f32 before they go to f64.
pub(crate) const BLOCK: usize = 256;
/// A sample below this magnitude is near zero (`zf` in the features).
pub const NEAR_ZERO: f32 = 1e-8;
/// Most bins of a histogram.
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

impl FrameStats {
    /// Of no samples.
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

/// Samples per bin; bins from `n_bins` on hold none.
pub type Counts = [u32; BINS_MAX];

/// The frame kernels of one instruction-set level, part of a [`crate::KernelTable`].
///
/// Only this module hands them out, to CPUs that have their features: holding one is the proof
/// that its functions may run here.
pub struct FrameKernels {
    name: &'static str,
    requires: CpuFeatures,
    max_abs: unsafe fn(&[f32]) -> f32,
    stats: unsafe fn(&[f32]) -> FrameStats,
    histogram: unsafe fn(&[f32], &Bins, &mut Counts),
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
    stats: scalar::stats,
    histogram: scalar::histogram,
};

#[cfg(target_arch = "x86_64")]
pub(crate) static AVX2: FrameKernels = FrameKernels {
    name: "avx2",
    requires: CpuFeatures::AVX2.union(CpuFeatures::FMA),
    max_abs: x86::avx2::max_abs,
    stats: x86::avx2::stats,
    histogram: x86::avx2::histogram,
};

#[cfg(target_arch = "x86_64")]
pub(crate) static AVX512: FrameKernels = FrameKernels {
    name: "avx512",
    requires: CpuFeatures::AVX512.union(CpuFeatures::AVX2),
    max_abs: x86::avx512::max_abs,
    stats: x86::avx512::stats,
    histogram: x86::avx512::histogram,
};

/// All of this build, slowest first.
static ALL: &[&FrameKernels] = &[
    &SCALAR,
    #[cfg(target_arch = "x86_64")]
    &AVX2,
    #[cfg(target_arch = "x86_64")]
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

    /// All statistics, in one pass.
    #[inline]
    pub fn stats(&self, x: &[f32]) -> FrameStats {
        // SAFETY: as in `max_abs`.
        unsafe { (self.stats)(x) }
    }

    /// Counts the samples per bin. A sample that is not finite counts in the last bin.
    ///
    /// # Panics
    /// If `bins.n_bins` is not `1..=`[`BINS_MAX`].
    #[inline]
    pub fn histogram(&self, x: &[f32], bins: &Bins, counts: &mut Counts) {
        assert!((1..=BINS_MAX).contains(&bins.n_bins));
        // SAFETY: as in `max_abs`.
        unsafe { (self.histogram)(x, bins, counts) }
    }
}

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
#[cfg(target_arch = "x86_64")]
#[cold]
pub(crate) fn stats_of_any(x: &[f32]) -> FrameStats {
    scalar::stats(x)
}

/// Counts bins, one per sample, into two histograms in turn. An increment waits for the one before
/// it in the same place, which two halve; more are slower to clear and to add up than they save
/// (1024 samples of noise, in cycles: 990 with one, 1150 with two, 1510 with four; of one value it
/// is one that takes longest).
#[derive(Debug)]
pub(crate) struct Tally([Counts; 2]);

impl Tally {
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self([[0; BINS_MAX]; 2])
    }

    #[inline(always)]
    pub(crate) fn add<const N: usize>(&mut self, bins: &[u8; N]) {
        for (i, &bin) in bins.iter().enumerate() {
            self.0[i % 2][usize::from(bin)] += 1;
        }
    }

    #[inline(always)]
    pub(crate) fn add_one(&mut self, bin: u8) {
        self.0[0][usize::from(bin)] += 1;
    }

    #[inline(always)]
    pub(crate) fn finish(&self, counts: &mut Counts) {
        for ((count, a), b) in counts.iter_mut().zip(&self.0[0]).zip(&self.0[1]) {
            *count = a + b;
        }
    }
}

#[cfg(test)]
mod tests;
