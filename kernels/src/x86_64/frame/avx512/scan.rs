//! Scans of a frame for its largest samples, 16 to a vector.

use super::{first_lanes, load, load_first};
use crate::contract::LANES;
use crate::statistics::Peaks;
use crate::tuning::Tuning;
use crate::vector::scan::Soon;
use crate::x86_64::frame::avx2;
use core::arch::x86_64::*;

/// [`crate::frame::FrameKernels::max_abs`].
///
/// `vrangeps` takes the larger magnitude of two in one operation, but a number before a NaN; one
/// comparison of two vectors each finds those. Maxima may take a sample twice, so the ends are two
/// overlapping vectors, and all loads between them are aligned.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
pub(crate) fn max_abs(x: &[f32]) -> f32 {
    scan::<false>(x, &[])
}

/// [`crate::frame::FrameKernels::max_abs_before`].
///
/// Where a scan does not go by frames it reads halves of lines, as AVX2 does: AMD's prefetchers follow
/// such a stream sooner.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
pub(crate) fn max_abs_before(x: &[f32], next: &[f32]) -> f32 {
    if next.is_empty() {
        scan::<false>(x, next)
    } else if Tuning::detect().scan.by_frames {
        scan::<true>(x, next)
    } else {
        avx2::max_abs_before(x, next)
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn scan<const AHEAD: bool>(x: &[f32], next: &[f32]) -> f32 {
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
        let soon = Soon::new(x, at, next);
        for (g, group) in groups.iter().enumerate() {
            if AHEAD {
                soon.prefetch(8 * LANES * g, 8);
            }
            for i in 0..4 {
                let (a, b) = (load(&group[2 * i]), load(&group[2 * i + 1]));
                max[2 * i] = larger(max[2 * i], a);
                max[2 * i + 1] = larger(max[2 * i + 1], b);
                ordered[i] = _mm512_mask_cmp_ps_mask::<_CMP_ORD_Q>(ordered[i], a, b);
            }
        }
        for (i, (max, chunk)) in max.iter_mut().zip(rest).enumerate() {
            if AHEAD {
                soon.prefetch(LANES * (8 * groups.len() + i), 1);
            }
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

/// [`crate::frame::FrameKernels::peaks_before`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
pub(crate) fn peaks_before(x: &[f32], next: &[f32]) -> Peaks {
    if next.is_empty() {
        scan_peaks::<false>(x, next)
    } else {
        scan_peaks::<true>(x, next)
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn scan_peaks<const AHEAD: bool>(x: &[f32], next: &[f32]) -> Peaks {
    let Some(first) = x.first() else {
        return Peaks::NONE;
    };
    let (Some(head), Some(tail)) = (x.first_chunk::<LANES>(), x.last_chunk::<LANES>()) else {
        let lanes = first_lanes(x.len());
        let first = _mm512_set1_epi32(first.to_bits().cast_signed());
        let x = _mm512_mask_mov_epi32(first, lanes, _mm512_castps_si512(load_first(x)));
        return join_peaks([x; 4], [x; 4]);
    };
    let (head, tail) = (load_bits(head), load_bits(tail));
    let (mut signed, mut unsigned) = ([head, tail, head, tail], [head, tail, head, tail]);
    let at = x.as_ptr().align_offset(64).min(x.len());
    let (chunks, _) = x[at..].as_chunks::<LANES>();
    let (groups, rest) = chunks.as_chunks::<8>();
    let soon = Soon::new(x, at, next);
    for (g, group) in groups.iter().enumerate() {
        if AHEAD {
            soon.prefetch(8 * LANES * g, 8);
        }
        for (i, chunk) in group.iter().enumerate() {
            let x = load_bits(chunk);
            signed[i % 4] = _mm512_max_epi32(signed[i % 4], x);
            unsigned[i % 4] = _mm512_max_epu32(unsigned[i % 4], x);
        }
    }
    for (i, chunk) in rest.iter().enumerate() {
        if AHEAD {
            soon.prefetch(LANES * (8 * groups.len() + i), 1);
        }
        let x = load_bits(chunk);
        signed[0] = _mm512_max_epi32(signed[0], x);
        unsigned[0] = _mm512_max_epu32(unsigned[0], x);
    }
    join_peaks(signed, unsigned)
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn join_peaks([a, b, c, d]: [__m512i; 4], [e, f, g, h]: [__m512i; 4]) -> Peaks {
    let signed = _mm512_max_epi32(_mm512_max_epi32(a, b), _mm512_max_epi32(c, d));
    let unsigned = _mm512_max_epu32(_mm512_max_epu32(e, f), _mm512_max_epu32(g, h));
    Peaks {
        signed: _mm512_reduce_max_epi32(signed),
        unsigned: _mm512_reduce_max_epu32(unsigned),
    }
}

/// 16 samples as bits.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,popcnt")]
#[inline]
fn load_bits(from: &[f32; LANES]) -> __m512i {
    _mm512_castps_si512(load(from))
}
