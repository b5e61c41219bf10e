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

pub(crate) mod entropy;
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

impl Bins {
    /// Where nothing is counted.
    pub(crate) const NONE: Self = Self {
        min: 0.0,
        inverse_range: 0.0,
        n_bins: 1,
    };

    /// `n_bins` bins over the range of a frame with these statistics.
    pub fn over(stats: &FrameStats, n_bins: usize) -> Self {
        Self {
            min: stats.min,
            inverse_range: 1.0 / (stats.max - stats.min),
            n_bins,
        }
    }
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
    stats_and_histogram: unsafe fn(&[f32], usize, &mut Counts) -> FrameStats,
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
    stats: scalar::stats,
    histogram: scalar::histogram,
    stats_and_histogram: scalar::stats_and_histogram,
    sum_count_log2: entropy::sum_count_log2,
};

#[cfg(target_arch = "x86_64")]
pub(crate) static AVX2: FrameKernels = FrameKernels {
    name: "avx2",
    requires: CpuFeatures::AVX2.union(CpuFeatures::FMA),
    max_abs: x86::avx2::max_abs,
    stats: x86::avx2::stats,
    histogram: x86::avx2::histogram,
    stats_and_histogram: x86::avx2::stats_and_histogram,
    sum_count_log2: entropy::sum_count_log2,
};

#[cfg(target_arch = "x86_64")]
pub(crate) static AVX512: FrameKernels = FrameKernels {
    name: "avx512",
    requires: CpuFeatures::AVX512.union(CpuFeatures::AVX2),
    max_abs: x86::avx512::max_abs,
    stats: x86::avx512::stats,
    histogram: x86::avx512::histogram,
    stats_and_histogram: x86::avx512::stats_and_histogram,
    sum_count_log2: x86::avx512::sum_count_log2,
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

    /// [`Self::stats`], and [`Self::histogram`] of `n_bins` bins [`Bins::over`] them, together:
    /// the histogram waits for stores and the sums for arithmetic, so that the two in one loop
    /// take little longer than one of them.
    ///
    /// # Panics
    /// If `n_bins` is not `1..=`[`BINS_MAX`].
    #[inline]
    pub fn stats_and_histogram(&self, x: &[f32], n_bins: usize, counts: &mut Counts) -> FrameStats {
        assert!((1..=BINS_MAX).contains(&n_bins));
        // SAFETY: as in `max_abs`.
        unsafe { (self.stats_and_histogram)(x, n_bins, counts) }
    }

    /// Asks for samples that are looked at soon, so that memory works while something else is
    /// computed. A hint: reads nothing.
    #[inline]
    pub fn prefetch(&self, x: &[f32]) {
        #[cfg(target_arch = "x86_64")]
        for line in x.chunks(16) {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: SSE is part of x86-64, and a prefetch reads nothing that a program sees.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = x;
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
        (entropy::log2(n) - sum * UNIT / n).max(0.0)
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

    /// The statistics of `x`, or `None` where samples or their sums are not finite.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn stats(
        &self,
        x: &[f32],
        [min, max]: [f32; 2],
        n_crossings: usize,
        n_near_zero: usize,
    ) -> Option<FrameStats> {
        let sum_abs = tree_sum(&self.abs);
        // Also where sums of finite samples overflow, which then happens again.
        if !sum_abs.is_finite() {
            return None;
        }
        let (first, last) = (x.first()?, x.last()?);
        Some(FrameStats {
            len: x.len(),
            max_abs: max.max(-min),
            min,
            max,
            first: first + 0.0,
            last_d: last - first + 0.0,
            n_crossings,
            n_near_zero,
            n_non_finite: 0,
            sum_abs,
            sum_d: tree_sum(&self.d),
            sum_d2: tree_sum(&self.d2),
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
#[cfg(target_arch = "x86_64")]
#[cold]
pub(crate) fn stats_of_any(x: &[f32]) -> FrameStats {
    scalar::stats(x)
}

/// As [`stats_of_any`].
#[cfg(target_arch = "x86_64")]
#[cold]
pub(crate) fn stats_and_histogram_of_any(
    x: &[f32],
    n_bins: usize,
    counts: &mut Counts,
) -> FrameStats {
    scalar::stats_and_histogram(x, n_bins, counts)
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

    /// The first `n` alone.
    #[inline(always)]
    pub(crate) fn add_first(&mut self, bins: &[u8], n: usize) {
        for &bin in &bins[..n] {
            self.0[0][usize::from(bin)] += 1;
        }
    }

    #[inline(always)]
    pub(crate) fn finish(&self, counts: &mut Counts) {
        for ((count, a), b) in counts.iter_mut().zip(&self.0[0]).zip(&self.0[1]) {
            *count = a + b;
        }
    }
}

/// The histogram of a frame whose extremes are known, in the making.
#[derive(Debug)]
pub(crate) struct Counting {
    /// Smallest and largest sample. A zero is +0.
    pub(crate) extremes: [f32; 2],
    pub(crate) bins: Bins,
    pub(crate) tally: Tally,
    /// Bins of the block before. They are counted one block late: a count that waits for the
    /// bins of its own samples would hold up the sums that are computed beside it.
    pub(crate) held: [[u8; LANES]; BLOCK / LANES],
    pub(crate) n_held: usize,
}

impl Counting {
    #[inline(always)]
    pub(crate) fn new(extremes: [f32; 2], n_bins: usize) -> Self {
        let extremes = extremes.map(|x| x + 0.0);
        let [min, max] = extremes;
        let stats = FrameStats {
            min,
            max,
            ..FrameStats::EMPTY
        };
        Self {
            extremes,
            bins: Bins::over(&stats, n_bins),
            tally: Tally::new(),
            held: [[0; LANES]; BLOCK / LANES],
            n_held: 0,
        }
    }

    /// Ends a block of `n_chunks` whole chunks and the `n` first bins of `tail`.
    #[inline(always)]
    pub(crate) fn end_block(&mut self, n_chunks: usize, tail: &[u8; LANES], n: usize) {
        let left = self.held[..self.n_held].iter().skip(n_chunks);
        left.for_each(|held| self.tally.add(held));
        self.n_held = n_chunks;
        self.tally.add_first(tail, n);
    }

    #[inline(always)]
    pub(crate) fn finish(&mut self, counts: &mut Counts) {
        let held = self.held[..self.n_held].iter();
        held.for_each(|held| self.tally.add(held));
        self.tally.finish(counts);
    }
}

/// Neighbours of which one is ≥ 0 and the other not, in a block of `n` samples. Bit l of `signs[i]` says whether sample
/// 16 i + l is ≥ 0, and bit 0 of `before` whether the one before the block was; then the last is.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn crossings(signs: &[u16; BLOCK / LANES], n: usize, before: &mut u64) -> usize {
    let mut count = 0;
    for (i, four) in signs.as_chunks::<4>().0.iter().enumerate() {
        let word = word(four);
        let valid = match n.saturating_sub(64 * i) {
            n @ 0..64 => (1 << n) - 1,
            _ => u64::MAX,
        };
        let changed = (word ^ (word << 1 | *before)) & valid;
        count += changed.count_ones() as usize;
        *before = word >> 63;
    }
    count
}

/// Bits set in the masks of a block.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn count_ones(masks: &[u16; BLOCK / LANES]) -> usize {
    let words = masks.as_chunks::<4>().0.iter().map(word);
    words.map(|word| word.count_ones() as usize).sum()
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn word(four: &[u16; 4]) -> u64 {
    let [a, b, c, d] = four.map(u64::from);
    a | b << 16 | c << 32 | d << 48
}

#[cfg(test)]
mod tests;
