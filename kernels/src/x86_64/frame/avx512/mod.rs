//! Frame kernels, 16 samples to a vector.

mod scan;

pub(crate) use scan::{max_abs, max_abs_before, peaks_before};

use super::counting::{Counting, GROUP, Held, add};
use crate::contract::LANES;
use crate::statistics::{
    BINS_MAX, BLOCK, Bins, Counts, FrameStats, NEAR_ZERO, Peaks, Sums, entropy,
    stats_and_histogram_of_any, stats_of_any,
};
use crate::vector::signs::Signs;
use core::arch::asm;
use core::arch::x86_64::*;

/// Running sums and extremes.
struct State {
    first: __m512,
    min: __m512,
    max: __m512,
    /// |x| of the block so far, in f32.
    abs: __m512,
    /// Samples near zero.
    near_zero: __m512i,
    /// Low and high eight lanes.
    sum_abs: [__m512d; 2],
    sum_d: [__m512d; 2],
    sum_d2: [__m512d; 2],
    sum_lag1: [__m512d; 2],
    /// The last eight `d`.
    before: __m512d,
}

/// [`crate::frame::FrameKernels::stats`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
pub(crate) fn stats(x: &[f32]) -> FrameStats {
    pass::<false, false>(x, None).unwrap_or_else(|| stats_of_any(x))
}

/// [`crate::frame::FrameKernels::stats_and_histogram`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
fn extremes(x: &[f32]) -> [f32; 2] {
    let Some(&first) = x.first() else {
        return [0.0; 2];
    };
    let (mut min, mut max) = ([_mm512_set1_ps(first); 4], [_mm512_set1_ps(first); 4]);
    let (chunks, tail) = x.as_chunks::<LANES>();
    let (groups, rest) = chunks.as_chunks::<4>();
    for group in groups {
        for (i, chunk) in group.iter().enumerate() {
            min[i] = _mm512_min_ps(min[i], load(chunk));
            max[i] = _mm512_max_ps(max[i], load(chunk));
        }
    }
    for chunk in rest {
        min[0] = _mm512_min_ps(min[0], load(chunk));
        max[0] = _mm512_max_ps(max[0], load(chunk));
    }
    let (lanes, x) = (first_lanes(tail.len()), load_first(tail));
    min[1] = _mm512_mask_min_ps(min[1], lanes, min[1], x);
    max[1] = _mm512_mask_max_ps(max[1], lanes, max[1], x);
    let min = _mm512_min_ps(_mm512_min_ps(min[0], min[1]), _mm512_min_ps(min[2], min[3]));
    let max = _mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3]));
    [_mm512_reduce_min_ps(min), _mm512_reduce_max_ps(max)]
}

/// The statistics, with `COUNT` those but the extremes, which `counting` knows, and the histogram;
/// with `AHEAD` it prefetches. `None` where samples or their sums are not finite.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn pass<const COUNT: bool, const AHEAD: bool>(
    x: &[f32],
    mut counting: Option<Counting<'_>>,
) -> Option<FrameStats> {
    let Some(&first) = x.first() else {
        return Some(FrameStats::EMPTY);
    };
    let mut state = start(first);
    let mut signs = Signs::new(first);
    for (b, block) in x.chunks(BLOCK).enumerate() {
        let (groups, rest) = block.as_chunks::<GROUP>();
        for (g, group) in groups.iter().enumerate() {
            let quarters = group.as_chunks::<LANES>().0;
            let positive = match &mut counting {
                Some(counting) if COUNT => {
                    if AHEAD {
                        counting.prefetch(BLOCK * b + GROUP * g);
                    }
                    count_group(&mut state, quarters, counting, g)
                }
                _ => take_group(&mut state, quarters),
            };
            signs.take(positive, GROUP);
        }
        if !rest.is_empty() {
            if let Some(counting) = &counting
                && AHEAD
            {
                counting.prefetch(BLOCK * b + GROUP * groups.len());
            }
            signs.take(take_rest::<COUNT>(&mut state, rest), rest.len());
        }
        flush(&mut state);
    }
    let sums = Sums {
        abs: join(state.sum_abs),
        d: join(state.sum_d),
        d2: join(state.sum_d2),
        lag1: join(state.sum_lag1),
    };
    let extremes = match &counting {
        Some(counting) if COUNT => counting.extremes,
        _ => [
            _mm512_reduce_min_ps(state.min) + 0.0,
            _mm512_reduce_max_ps(state.max) + 0.0,
        ],
    };
    let n_near_zero = _mm512_reduce_add_epi32(state.near_zero).cast_unsigned() as usize;
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

/// Nothing taken in.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn start(first: f32) -> State {
    let zero = [_mm512_setzero_pd(); 2];
    State {
        first: _mm512_set1_ps(first),
        min: _mm512_set1_ps(first),
        max: _mm512_set1_ps(first),
        abs: _mm512_setzero_ps(),
        near_zero: _mm512_setzero_si512(),
        sum_abs: zero,
        sum_d: zero,
        sum_d2: zero,
        sum_lag1: zero,
        before: zero[0],
    }
}

/// Holds the compiler to the order in which these vectors are written here: what produces them comes before, what uses
/// them after. Otherwise it puts the sums of 64 samples before all their counts, which is farther than a core looks
/// ahead.
macro_rules! in_order {
    ($($name:ident = $x:expr),+) => {
        // SAFETY: a comment, and no instruction.
        unsafe {
            asm!(
                $(concat!("/* {", stringify!($name), "} */")),+,
                $($name = inout(zmm_reg) $x),+,
                options(nomem, nostack, preserves_flags),
            )
        }
    };
}

/// Takes 64 samples. Returns which are ≥ 0.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn take_group(state: &mut State, quarters: &[[f32; LANES]]) -> u64 {
    let mut positive = 0;
    for (q, x) in quarters.iter().enumerate() {
        let x = load(x);
        let d = measure::<false>(state, x, !0);
        sum(state, d);
        positive |= u64::from(is_positive(x)) << (LANES * q);
    }
    positive
}

/// Takes 64 samples and counts the held bins, which are replaced by the bins of these samples. Counts wait for stores
/// and sums for arithmetic: eight counts follow every half step of the sums.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn count_group(
    state: &mut State,
    quarters: &[[f32; LANES]],
    counting: &mut Counting<'_>,
    g: usize,
) -> u64 {
    let mut positive = 0;
    let mut at = [_mm512_setzero_si512(); 4];
    for (q, (x, at)) in quarters.iter().zip(&mut at).enumerate() {
        let x = load(x);
        let mut d = measure::<true>(state, x, !0);
        in_order!(
            low = d[0],
            high = d[1],
            abs = state.abs,
            near_zero = state.near_zero
        );
        counting.count_eight(g, 2 * q);
        in_order!(low = d[0], high = d[1]);
        sum(state, d);
        positive |= u64::from(is_positive(x)) << (LANES * q);
        *at = bins_of(x, &counting.bins);
        counting.count_eight(g, 2 * q + 1);
        let ([d, d1], [d2, d3], [lag1, lag2]) =
            (&mut state.sum_d, &mut state.sum_d2, &mut state.sum_lag1);
        in_order!(
            d = *d,
            d1 = *d1,
            d2 = *d2,
            d3 = *d3,
            lag1 = *lag1,
            lag2 = *lag2,
            before = state.before,
            at = *at
        );
    }
    hold(at, counting.hold(g));
    positive
}

/// Takes fewer than 64 samples. Returns which are ≥ 0.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn take_rest<const COUNT: bool>(state: &mut State, rest: &[f32]) -> u64 {
    let mut positive = 0;
    for (q, part) in rest.chunks(LANES).enumerate() {
        let x = load_first(part);
        let d = measure::<COUNT>(state, x, first_lanes(part.len()));
        sum(state, d);
        positive |= u64::from(is_positive(x)) << (LANES * q);
    }
    positive
}

/// Counts fewer than 64 samples.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn count_rest(counting: &mut Counting<'_>, rest: &[f32]) {
    let mut rest_bins = [0; GROUP];
    for (x, at) in rest.chunks(LANES).zip(rest_bins.as_chunks_mut::<LANES>().0) {
        *at = bytes_of(load_first(x), &counting.bins);
    }
    counting.count(&rest_bins[..rest.len()]);
}

/// Takes 16 samples but for the sums of d, of which those in `lanes` count and the others are
/// zero. With `COUNT` the extremes are known. Returns d.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn measure<const COUNT: bool>(state: &mut State, x: __m512, lanes: u16) -> [__m512d; 2] {
    let abs = _mm512_abs_ps(x);
    state.abs = _mm512_add_ps(state.abs, abs);
    if !COUNT {
        state.min = _mm512_mask_min_ps(state.min, lanes, state.min, x);
        state.max = _mm512_mask_max_ps(state.max, lanes, state.max, x);
    }
    let near_zero = _mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(lanes, abs, _mm512_set1_ps(NEAR_ZERO));
    let one = _mm512_set1_epi32(1);
    state.near_zero = _mm512_mask_add_epi32(state.near_zero, near_zero, state.near_zero, one);
    let d = _mm512_maskz_sub_ps(lanes, x, state.first);
    [
        _mm512_cvtps_pd(_mm512_castps512_ps256(d)),
        _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(d)),
    ]
}

/// Takes the d of 16 samples.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn sum(state: &mut State, [low, high]: [__m512d; 2]) {
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

/// Which samples are ≥ 0.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn is_positive(x: __m512) -> u16 {
    _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_setzero_ps())
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
    let out;
    // Of the intrinsic the compiler makes a permute that overwrites an operand, and copies it.
    // SAFETY: AVX-512F is enabled here; registers are all it touches.
    unsafe {
        asm!(
            "valignq {out}, {x}, {before}, 7",
            out = lateout(zmm_reg) out,
            x = in(zmm_reg) x,
            before = in(zmm_reg) before,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// [`crate::frame::FrameKernels::histogram`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
pub(crate) fn histogram(x: &[f32], bins: &Bins, counts: &mut Counts) {
    *counts = [0; BINS_MAX];
    let (chunks, tail) = x.as_chunks::<LANES>();
    let (groups, rest) = chunks.as_chunks::<4>();
    for group in groups {
        let mut at = [0; 4 * LANES];
        for (chunk, at) in group.iter().zip(at.as_chunks_mut::<LANES>().0) {
            *at = bytes_of(load(chunk), bins);
        }
        add(counts, &at);
    }
    for chunk in rest {
        add(counts, &bytes_of(load(chunk), bins));
    }
    add(counts, &bytes_of(load_first(tail), bins)[..tail.len()]);
}

/// [`crate::frame::FrameKernels::entropy`]'s sum: by a table in two registers if all counts are
/// small.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
pub(crate) fn sum_count_log2(counts: &Counts) -> u64 {
    let (halves, _) = entropy::SMALL.as_chunks::<LANES>();
    let (low, high) = (load_u32(&halves[0]), load_u32(&halves[1]));
    let last_small = _mm512_set1_epi32(0x1f);
    let (mut sums, mut most) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for counts in counts.as_chunks::<LANES>().0 {
        let c = load_u32(counts);
        most = _mm512_max_epu32(most, c);
        sums = _mm512_add_epi32(sums, _mm512_permutex2var_epi32(low, c, high));
    }
    if _mm512_cmpgt_epu32_mask(most, last_small) != 0 {
        return entropy::sum_count_log2(counts);
    }
    let low = _mm512_cvtepu32_epi64(_mm512_castsi512_si256(sums));
    let high = _mm512_cvtepu32_epi64(_mm512_extracti32x8_epi32::<1>(sums));
    _mm512_reduce_add_epi64(_mm512_add_epi64(low, high)).cast_unsigned()
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn load_u32(from: &[u32; LANES]) -> __m512i {
    // SAFETY: an unaligned load of the 64 bytes of `from`.
    unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
}

/// The bins of 16 samples. What is not finite converts to 2^31, above every bin.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn bytes_of(x: __m512, bins: &Bins) -> [u8; LANES] {
    let last = _mm512_cvttps_epi32(_mm512_set1_ps(bins.last()));
    let at = _mm512_cvtepi32_epi8(_mm512_min_epu32(bins_of(x, bins), last));
    let mut out = [0; LANES];
    // SAFETY: an unaligned store to the 16 bytes of `out`.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), at) };
    out
}

/// The bins of 16 samples, in 32 bits each and before the limit to the last bin: samples that [`Counting::new`] accepts
/// do not need the limit.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn bins_of(x: __m512, bins: &Bins) -> __m512i {
    let u = _mm512_mul_ps(
        _mm512_sub_ps(x, _mm512_set1_ps(bins.min)),
        _mm512_set1_ps(bins.inverse_range),
    );
    _mm512_cvttps_epi32(_mm512_mul_ps(u, _mm512_set1_ps(bins.last())))
}

/// Puts the bins of 64 samples where they are held, in an order that does not matter.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn hold([a, b, c, d]: [__m512i; 4], held: &mut Held) {
    let at = _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d));
    // SAFETY: an unaligned store to the 64 bytes of `held`.
    unsafe { _mm512_storeu_si512(held.as_mut_ptr().cast(), at) };
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn load(from: &[f32; LANES]) -> __m512 {
    // SAFETY: an unaligned load of the 64 bytes of `from`.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

/// Up to 16 numbers, padded with zeros. Memory after the slice is not touched.
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
