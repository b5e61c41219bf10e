//! Frame kernels, 16 samples to two vectors.

mod scan;

pub(crate) use scan::{max_abs, max_abs_before, peaks_before};

use super::counting::{Counting, GROUP, add};
use crate::contract::LANES;
use crate::statistics::{
    BINS_MAX, BLOCK, Bins, Counts, FrameStats, NEAR_ZERO, Peaks, Sums, stats_and_histogram_of_any,
    stats_of_any,
};
use crate::vector::signs::Signs;
use core::arch::x86_64::*;

/// Running sums and extremes of eight of the 16 lanes.
#[derive(Clone, Copy)]
struct Half {
    min: __m256,
    max: __m256,
    /// |x| of the block so far, in f32.
    abs: __m256,
    /// Low and high four lanes.
    sum_abs: [__m256d; 2],
    sum_d: [__m256d; 2],
    sum_d2: [__m256d; 2],
    sum_lag1: [__m256d; 2],
    near_zero: __m256i,
}

/// State passed from one half to the next.
struct Carry {
    first: __m256,
    /// The last four `d`.
    before: __m256d,
}

/// [`crate::frame::FrameKernels::stats`].
#[target_feature(enable = "avx2,fma,popcnt")]
pub(crate) fn stats(x: &[f32]) -> FrameStats {
    pass::<false, false>(x, None).unwrap_or_else(|| stats_of_any(x))
}

/// [`crate::frame::FrameKernels::stats_and_histogram`].
#[target_feature(enable = "avx2,fma,popcnt")]
pub(crate) fn stats_and_histogram(
    x: &[f32],
    peaks: Option<Peaks>,
    n_bins: usize,
    counts: &mut Counts,
    next: &[f32],
) -> FrameStats {
    if x.is_empty() {
        *counts = [0; BINS_MAX];
        return FrameStats::EMPTY;
    }
    let extremes = peaks
        .and_then(Peaks::extremes)
        .unwrap_or_else(|| extremes(x));
    let Some(counting) = Counting::new(x, extremes, n_bins, counts, next) else {
        let stats = stats(x);
        histogram(x, &Bins::over(&stats, n_bins), counts);
        return stats;
    };
    let stats = if next.is_empty() {
        pass::<true, false>(x, Some(counting))
    } else {
        pass::<true, true>(x, Some(counting))
    };
    stats.unwrap_or_else(|| stats_and_histogram_of_any(x, n_bins, counts))
}

/// The smallest and the largest of samples that are all finite; 0 for none.
#[target_feature(enable = "avx2,fma,popcnt")]
fn extremes(x: &[f32]) -> [f32; 2] {
    let Some(&first) = x.first() else {
        return [0.0; 2];
    };
    let (mut min, mut max) = ([_mm256_set1_ps(first); 4], [_mm256_set1_ps(first); 4]);
    let (chunks, tail) = x.as_chunks::<8>();
    let (groups, rest) = chunks.as_chunks::<4>();
    for group in groups {
        for (i, chunk) in group.iter().enumerate() {
            min[i] = _mm256_min_ps(min[i], load(chunk));
            max[i] = _mm256_max_ps(max[i], load(chunk));
        }
    }
    for chunk in rest {
        min[0] = _mm256_min_ps(min[0], load(chunk));
        max[0] = _mm256_max_ps(max[0], load(chunk));
    }
    let fold = |part: [__m256; 4], pick: fn(f32, f32) -> f32| {
        let lanes = part.map(|x| lanes(x));
        let lanes = lanes.as_flattened().iter().chain(tail);
        lanes.copied().fold(first, pick)
    };
    [fold(min, f32::min), fold(max, f32::max)]
}

/// The statistics, with `COUNT` those but the extremes, which `counting` knows, and the histogram;
/// with `AHEAD` it prefetches. `None` where samples or their sums are not finite.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn pass<const COUNT: bool, const AHEAD: bool>(
    x: &[f32],
    mut counting: Option<Counting<'_>>,
) -> Option<FrameStats> {
    let Some(&first) = x.first() else {
        return Some(FrameStats::EMPTY);
    };
    let mut halves = [start(first); 2];
    let mut carry = Carry {
        first: _mm256_set1_ps(first),
        before: _mm256_setzero_pd(),
    };
    let mut signs = Signs::new(first);
    let mut n_near_zero = 0;
    for (b, block) in x.chunks(BLOCK).enumerate() {
        let (groups, rest) = block.as_chunks::<GROUP>();
        for (g, group) in groups.iter().enumerate() {
            if let Some(counting) = &counting
                && AHEAD
            {
                counting.prefetch(BLOCK * b + GROUP * g);
            }
            let positive = take_group::<COUNT>(&mut halves, &mut carry, group, &mut counting, g);
            signs.take(positive, GROUP);
        }
        if !rest.is_empty() {
            if let Some(counting) = &counting
                && AHEAD
            {
                counting.prefetch(BLOCK * b + GROUP * groups.len());
            }
            let positive = take_rest::<COUNT>(&mut halves, &mut carry, rest);
            signs.take(positive, rest.len());
        }
        for half in &mut halves {
            n_near_zero += flush(half);
        }
    }
    let join = |pick: fn(&Half) -> [__m256d; 2]| join(halves.map(|half| pick(&half)));
    let sums = Sums {
        abs: join(|half| half.sum_abs),
        d: join(|half| half.sum_d),
        d2: join(|half| half.sum_d2),
        lag1: join(|half| half.sum_lag1),
    };
    let extremes = match &counting {
        Some(counting) if COUNT => counting.extremes,
        _ => {
            let fold = |part: [__m256; 2], pick: fn(f32, f32) -> f32| {
                let lanes = part.map(|part| lanes(part));
                lanes.as_flattened().iter().copied().fold(first, pick) + 0.0
            };
            [
                fold([halves[0].min, halves[1].min], f32::min),
                fold([halves[0].max, halves[1].max], f32::max),
            ]
        }
    };
    let stats = sums.stats(x, extremes, signs.count(), n_near_zero);
    if let Some(counting) = &mut counting
        && COUNT
    {
        counting.finish();
        let (_, rest) = x.as_chunks::<GROUP>();
        if !rest.is_empty() {
            count_rest(counting, rest);
        }
    }
    stats
}

/// Takes 64 samples, group `g` of a block; with `COUNT` counts the bins held in its place, which its own replace.
/// Returns which are ≥ 0.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn take_group<const COUNT: bool>(
    halves: &mut [Half; 2],
    carry: &mut Carry,
    group: &[f32; GROUP],
    counting: &mut Option<Counting<'_>>,
    g: usize,
) -> u64 {
    let mut positive = 0;
    for (q, quarter) in group.as_chunks::<LANES>().0.iter().enumerate() {
        let (pair, _) = quarter.as_chunks::<8>();
        for (i, (x, half)) in pair.iter().zip(&mut *halves).enumerate() {
            let (x, eighth) = (load(x), 2 * q + i);
            let mask = step::<false, COUNT>(half, carry, x, 8);
            positive |= u64::from(mask) << (8 * eighth);
            if let Some(counting) = counting
                && COUNT
            {
                counting.count_eight(g, eighth);
                counting.hold(g)[eighth] = u64::from_le_bytes(bytes(bins_of(x, &counting.bins)));
            }
        }
    }
    positive
}

/// Takes fewer than 64 samples. Returns which are ≥ 0.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn take_rest<const COUNT: bool>(halves: &mut [Half; 2], carry: &mut Carry, rest: &[f32]) -> u64 {
    let mut positive = 0;
    for (i, part) in rest.chunks(8).enumerate() {
        let x = load(&padded::<8>(part));
        let mask = step::<true, COUNT>(&mut halves[i % 2], carry, x, part.len());
        positive |= u64::from(mask) << (8 * i);
    }
    positive
}

/// Counts fewer than 64 samples.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn count_rest(counting: &mut Counting<'_>, rest: &[f32]) {
    let mut rest_bins = [0; GROUP];
    for (x, at) in rest.chunks(8).zip(rest_bins.as_chunks_mut::<8>().0) {
        *at = bytes_of(load(&padded::<8>(x)), &counting.bins);
    }
    counting.count(&rest_bins[..rest.len()]);
}

/// Nothing taken in.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn start(first: f32) -> Half {
    let zero = [_mm256_setzero_pd(); 2];
    Half {
        min: _mm256_set1_ps(first),
        max: _mm256_set1_ps(first),
        abs: _mm256_setzero_ps(),
        sum_abs: zero,
        sum_d: zero,
        sum_d2: zero,
        sum_lag1: zero,
        near_zero: _mm256_setzero_si256(),
    }
}

/// Takes eight samples; with `PARTIAL` only the first `n` count and the others are zero. With
/// `COUNT` the extremes are known. Returns which are ≥ 0.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn step<const PARTIAL: bool, const COUNT: bool>(
    half: &mut Half,
    carry: &mut Carry,
    x: __m256,
    n: usize,
) -> u8 {
    let counted = if PARTIAL {
        let n = _mm256_set1_epi32(i32::try_from(n).unwrap_or(8));
        _mm256_cmpgt_epi32(n, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
    } else {
        _mm256_set1_epi32(-1)
    };
    let abs = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
    half.abs = _mm256_add_ps(half.abs, abs);
    if !COUNT {
        let (mut low, mut high) = (x, x);
        if PARTIAL {
            let mask = _mm256_castsi256_ps(counted);
            low = _mm256_blendv_ps(half.min, x, mask);
            high = _mm256_blendv_ps(half.max, x, mask);
        }
        half.min = _mm256_min_ps(half.min, low);
        half.max = _mm256_max_ps(half.max, high);
    }
    let near_zero = _mm256_cmp_ps::<_CMP_LT_OQ>(abs, _mm256_set1_ps(NEAR_ZERO));
    let near_zero = _mm256_and_si256(_mm256_castps_si256(near_zero), counted);
    half.near_zero = _mm256_sub_epi32(half.near_zero, near_zero);
    let mut d = _mm256_sub_ps(x, carry.first);
    if PARTIAL {
        d = _mm256_and_ps(d, _mm256_castsi256_ps(counted));
    }
    let low = _mm256_cvtps_pd(_mm256_castps256_ps128(d));
    let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(d));
    let low_before = shift_in(carry.before, low);
    let high_before = shift_in(low, high);
    carry.before = high;
    half.sum_d[0] = _mm256_add_pd(half.sum_d[0], low);
    half.sum_d[1] = _mm256_add_pd(half.sum_d[1], high);
    half.sum_d2[0] = _mm256_fmadd_pd(low, low, half.sum_d2[0]);
    half.sum_d2[1] = _mm256_fmadd_pd(high, high, half.sum_d2[1]);
    half.sum_lag1[0] = _mm256_fmadd_pd(low_before, low, half.sum_lag1[0]);
    half.sum_lag1[1] = _mm256_fmadd_pd(high_before, high, half.sum_lag1[1]);

    let positive = _mm256_cmp_ps::<_CMP_GE_OQ>(x, _mm256_setzero_ps());
    _mm256_movemask_ps(positive).to_le_bytes()[0]
}

/// Ends a block: the f32 sums of |x| go to f64. Returns the near-zero samples in it.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn flush(half: &mut Half) -> usize {
    let abs = core::mem::replace(&mut half.abs, _mm256_setzero_ps());
    let low = _mm256_cvtps_pd(_mm256_castps256_ps128(abs));
    let high = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(abs));
    half.sum_abs[0] = _mm256_add_pd(half.sum_abs[0], low);
    half.sum_abs[1] = _mm256_add_pd(half.sum_abs[1], high);
    let near_zero = core::mem::replace(&mut half.near_zero, _mm256_setzero_si256());
    let mut counts = [0u32; 8];
    // SAFETY: an unaligned store to the 32 bytes of `counts`.
    unsafe { _mm256_storeu_si256(counts.as_mut_ptr().cast(), near_zero) };
    counts.iter().sum::<u32>() as usize
}

/// The last of `before` and the first three of `x`.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn shift_in(before: __m256d, x: __m256d) -> __m256d {
    let middle = _mm256_permute2f128_pd::<0x21>(before, x);
    _mm256_shuffle_pd::<0b0101>(middle, x)
}

/// [`crate::frame::FrameKernels::histogram`].
#[target_feature(enable = "avx2,fma,popcnt")]
pub(crate) fn histogram(x: &[f32], bins: &Bins, counts: &mut Counts) {
    *counts = [0; BINS_MAX];
    let (chunks, tail) = x.as_chunks::<8>();
    let (groups, rest) = chunks.as_chunks::<4>();
    for group in groups {
        let mut at = [0; 32];
        for (chunk, at) in group.iter().zip(at.as_chunks_mut::<8>().0) {
            *at = bytes_of(load(chunk), bins);
        }
        add(counts, &at);
    }
    for chunk in rest {
        add(counts, &bytes_of(load(chunk), bins));
    }
    add(
        counts,
        &bytes_of(load(&padded::<8>(tail)), bins)[..tail.len()],
    );
}

/// The bins of eight samples. What is not finite converts to 2^31, above every bin.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn bytes_of(x: __m256, bins: &Bins) -> [u8; 8] {
    let last = _mm256_cvttps_epi32(_mm256_set1_ps(bins.last()));
    bytes(_mm256_min_epu32(bins_of(x, bins), last))
}

/// The bins of eight samples, in 32 bits each and before the limit to the last bin: samples that [`Counting::new`]
/// accepts do not need the limit.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn bins_of(x: __m256, bins: &Bins) -> __m256i {
    let u = _mm256_mul_ps(
        _mm256_sub_ps(x, _mm256_set1_ps(bins.min)),
        _mm256_set1_ps(bins.inverse_range),
    );
    _mm256_cvttps_epi32(_mm256_mul_ps(u, _mm256_set1_ps(bins.last())))
}

#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn bytes(at: __m256i) -> [u8; 8] {
    let words = _mm_packus_epi32(
        _mm256_castsi256_si128(at),
        _mm256_extracti128_si256::<1>(at),
    );
    _mm_cvtsi128_si64(_mm_packus_epi16(words, words)).to_le_bytes()
}

#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn load(from: &[f32; 8]) -> __m256 {
    // SAFETY: an unaligned load of the 32 bytes of `from`.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn lanes(x: __m256) -> [f32; 8] {
    let mut out = [0.0; 8];
    // SAFETY: an unaligned store to the 32 bytes of `out`.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) };
    out
}

/// Up to `N` numbers, padded with zeros.
fn padded<const N: usize>(from: &[f32]) -> [f32; N] {
    let mut out = [0.0; N];
    out[..from.len()].copy_from_slice(from);
    out
}

#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn join(halves: [[__m256d; 2]; 2]) -> [f64; LANES] {
    let mut out = [0.0; LANES];
    for (quarter, out) in halves.as_flattened().iter().zip(out.as_chunks_mut::<4>().0) {
        // SAFETY: an unaligned store to the 32 bytes of `out`.
        unsafe { _mm256_storeu_pd(out.as_mut_ptr(), *quarter) };
    }
    out
}
