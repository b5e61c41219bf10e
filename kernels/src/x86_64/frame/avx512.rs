//! Frame kernels, 16 samples to a vector.

use crate::contract::LANES;
use crate::frame::{
    BLOCK, Bins, Counts, FrameStats, NEAR_ZERO, Sums, Tally, stats_of_any, tree_sum,
};
use core::arch::x86_64::*;

/// [`crate::frame::FrameKernels::max_abs`].
///
/// `vrangeps` takes the larger magnitude of two in one operation, but a number before a NaN; one
/// comparison of two vectors each finds those. Maxima may take a sample twice, so the ends are two
/// overlapping vectors, and all loads between them are aligned.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
pub(crate) fn max_abs(x: &[f32]) -> f32 {
    let mut max = [_mm512_setzero_ps(); 8];
    // Lanes without a NaN so far.
    let mut ordered = [!0u16; 4];
    if let (Some(head), Some(tail)) = (x.first_chunk::<LANES>(), x.last_chunk::<LANES>()) {
        let (head, tail) = (load(head), load(tail));
        max[0] = larger(max[0], head);
        max[1] = larger(max[1], tail);
        ordered[0] = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(head, tail);
        let at = x.as_ptr().align_offset(64).min(x.len());
        let (chunks, _) = x[at..].as_chunks::<LANES>();
        let (groups, rest) = chunks.as_chunks::<8>();
        for group in groups {
            for i in 0..4 {
                let (a, b) = (load(&group[2 * i]), load(&group[2 * i + 1]));
                max[2 * i] = larger(max[2 * i], a);
                max[2 * i + 1] = larger(max[2 * i + 1], b);
                ordered[i] = _mm512_mask_cmp_ps_mask::<_CMP_ORD_Q>(ordered[i], a, b);
            }
        }
        for (max, chunk) in max.iter_mut().zip(rest) {
            let x = load(chunk);
            *max = larger(*max, x);
            ordered[1] = _mm512_mask_cmp_ps_mask::<_CMP_ORD_Q>(ordered[1], x, x);
        }
    } else {
        let x = load_first(x);
        max[0] = larger(max[0], x);
        ordered[0] = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x);
    }
    if ordered[0] & ordered[1] & ordered[2] & ordered[3] != u16::MAX {
        return f32::NAN;
    }
    for half in [4, 2, 1] {
        for i in 0..half {
            max[i] = larger(max[i], max[i + half]);
        }
    }
    _mm512_reduce_max_ps(max[0])
}

/// The larger magnitude in every lane; the number where one is a NaN.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn larger(a: __m512, b: __m512) -> __m512 {
    /// The larger of two magnitudes, as a positive number.
    const MAX_MAGNITUDE: i32 = 0b1011;
    _mm512_range_ps::<MAX_MAGNITUDE>(a, b)
}

/// Running sums and extremes.
struct State {
    first: __m512,
    min: __m512,
    max: __m512,
    /// |x| of the block so far, in f32.
    abs: __m512,
    /// Low and high eight lanes.
    sum_abs: [__m512d; 2],
    sum_d: [__m512d; 2],
    sum_d2: [__m512d; 2],
    sum_lag1: [__m512d; 2],
    /// The last eight `d`.
    before: __m512d,
    /// Whether the last sample was ≥ 0.
    positive: u32,
    n_crossings: u32,
    n_near_zero: u32,
}

/// [`crate::frame::FrameKernels::stats`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
pub(crate) fn stats(x: &[f32]) -> FrameStats {
    let (Some(&first), Some(&last)) = (x.first(), x.last()) else {
        return FrameStats::EMPTY;
    };
    let zero = [_mm512_setzero_pd(); 2];
    let mut state = State {
        first: _mm512_set1_ps(first),
        min: _mm512_set1_ps(first),
        max: _mm512_set1_ps(first),
        abs: _mm512_setzero_ps(),
        sum_abs: zero,
        sum_d: zero,
        sum_d2: zero,
        sum_lag1: zero,
        before: zero[0],
        positive: u32::from(first >= 0.0),
        n_crossings: 0,
        n_near_zero: 0,
    };
    // Counts of 32 bits do not overflow within a part.
    const PART: usize = 1 << 30;
    let (mut n_crossings, mut n_near_zero) = (0, 0);
    for part in x.chunks(PART) {
        for block in part.chunks(BLOCK) {
            let (chunks, tail) = block.as_chunks::<LANES>();
            for chunk in chunks {
                step(&mut state, load(chunk), !0);
            }
            if !tail.is_empty() {
                step(&mut state, load_first(tail), first_lanes(tail.len()));
            }
            flush(&mut state);
        }
        n_crossings += core::mem::take(&mut state.n_crossings) as usize;
        n_near_zero += core::mem::take(&mut state.n_near_zero) as usize;
    }
    let sums = Sums {
        abs: join(state.sum_abs),
        d: join(state.sum_d),
        d2: join(state.sum_d2),
        lag1: join(state.sum_lag1),
    };
    let sum_abs = tree_sum(&sums.abs);
    // Also where sums of finite samples overflow, which then happens again.
    if !sum_abs.is_finite() {
        return stats_of_any(x);
    }
    let min = _mm512_reduce_min_ps(state.min) + 0.0;
    let max = _mm512_reduce_max_ps(state.max) + 0.0;
    FrameStats {
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
        sum_d: tree_sum(&sums.d),
        sum_d2: tree_sum(&sums.d2),
        sum_lag1: tree_sum(&sums.lag1),
    }
}

/// Takes 16 samples, of which those in `lanes` count and the others are zero.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn step(state: &mut State, x: __m512, lanes: u16) {
    let abs = _mm512_abs_ps(x);
    state.abs = _mm512_add_ps(state.abs, abs);
    state.min = _mm512_mask_min_ps(state.min, lanes, state.min, x);
    state.max = _mm512_mask_max_ps(state.max, lanes, state.max, x);
    let near_zero = _mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(lanes, abs, _mm512_set1_ps(NEAR_ZERO));
    state.n_near_zero += u32::from(near_zero).count_ones();
    let positive = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_setzero_ps());
    let before = u32::from(positive) << 1 | state.positive;
    state.n_crossings += ((u32::from(positive) ^ before) & u32::from(lanes)).count_ones();
    state.positive = u32::from(positive) >> 15;

    let d = _mm512_maskz_sub_ps(lanes, x, state.first);
    let low = _mm512_cvtps_pd(_mm512_castps512_ps256(d));
    let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(d));
    let low_before = shift_in(state.before, low);
    let high_before = shift_in(low, high);
    state.before = high;
    state.sum_d[0] = _mm512_add_pd(state.sum_d[0], low);
    state.sum_d[1] = _mm512_add_pd(state.sum_d[1], high);
    state.sum_d2[0] = _mm512_fmadd_pd(low, low, state.sum_d2[0]);
    state.sum_d2[1] = _mm512_fmadd_pd(high, high, state.sum_d2[1]);
    state.sum_lag1[0] = _mm512_fmadd_pd(low_before, low, state.sum_lag1[0]);
    state.sum_lag1[1] = _mm512_fmadd_pd(high_before, high, state.sum_lag1[1]);
}

/// Ends a block: the f32 sums of |x| go to f64.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn flush(state: &mut State) {
    let abs = core::mem::replace(&mut state.abs, _mm512_setzero_ps());
    let low = _mm512_cvtps_pd(_mm512_castps512_ps256(abs));
    let high = _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(abs));
    state.sum_abs[0] = _mm512_add_pd(state.sum_abs[0], low);
    state.sum_abs[1] = _mm512_add_pd(state.sum_abs[1], high);
}

/// The last of `before` and the first seven of `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn shift_in(before: __m512d, x: __m512d) -> __m512d {
    let (x, before) = (_mm512_castpd_si512(x), _mm512_castpd_si512(before));
    _mm512_castsi512_pd(_mm512_alignr_epi64::<7>(x, before))
}

/// [`crate::frame::FrameKernels::histogram`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
pub(crate) fn histogram(x: &[f32], bins: &Bins, counts: &mut Counts) {
    let mut tally = Tally::new();
    let (chunks, tail) = x.as_chunks::<LANES>();
    let (groups, rest) = chunks.as_chunks::<4>();
    for group in groups {
        let mut at = [0; 4 * LANES];
        for (chunk, at) in group.iter().zip(at.as_chunks_mut::<LANES>().0) {
            *at = bins_of(load(chunk), bins);
        }
        tally.add(&at);
    }
    for chunk in rest {
        tally.add(&bins_of(load(chunk), bins));
    }
    let at = bins_of(load_first(tail), bins);
    at.iter()
        .take(tail.len())
        .for_each(|&bin| tally.add_one(bin));
    tally.finish(counts);
}

/// The bins of 16 samples. What is not finite converts to 2^31, above every bin.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn bins_of(x: __m512, bins: &Bins) -> [u8; LANES] {
    #[expect(clippy::cast_precision_loss, reason = "at most 255")]
    let last = (bins.n_bins - 1) as f32;
    let u = _mm512_mul_ps(
        _mm512_sub_ps(x, _mm512_set1_ps(bins.min)),
        _mm512_set1_ps(bins.inverse_range),
    );
    let last = _mm512_set1_ps(last);
    let at = _mm512_cvttps_epi32(_mm512_mul_ps(u, last));
    let at = _mm512_min_epu32(at, _mm512_cvttps_epi32(last));
    let at = _mm512_cvtepi32_epi8(at);
    let mut out = [0; LANES];
    // SAFETY: an unaligned store to the 16 bytes of `out`.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), at) };
    out
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn load(from: &[f32; LANES]) -> __m512 {
    // SAFETY: an unaligned load of the 64 bytes of `from`.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

/// Up to 16 numbers and zeros behind them. What is behind the slice is not touched.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn load_first(from: &[f32]) -> __m512 {
    debug_assert!(from.len() <= LANES);
    // SAFETY: lanes outside the mask are not read, so this reads the slice alone.
    unsafe { _mm512_maskz_loadu_ps(first_lanes(from.len()), from.as_ptr()) }
}

/// A mask of the first `n` lanes, n ≤ 16.
fn first_lanes(n: usize) -> u16 {
    u16::MAX
        .checked_shr(16 - u32::try_from(n.min(LANES)).unwrap_or(16))
        .unwrap_or(0)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn join(halves: [__m512d; 2]) -> [f64; LANES] {
    let mut out = [0.0; LANES];
    for (half, out) in halves.into_iter().zip(out.as_chunks_mut::<8>().0) {
        // SAFETY: an unaligned store to the 64 bytes of `out`.
        unsafe { _mm512_storeu_pd(out.as_mut_ptr(), half) };
    }
    out
}
