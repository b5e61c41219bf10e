//! Scans of a frame for its largest samples, eight to a vector.

use super::{load, padded};
use crate::statistics::Peaks;
use crate::vector::scan::Soon;
use core::arch::x86_64::*;

/// [`crate::frame::FrameKernels::max_abs`]. As the AVX-512 kernel.
#[target_feature(enable = "avx2,fma,popcnt")]
pub(crate) fn max_abs(x: &[f32]) -> f32 {
    scan::<false>(x, &[])
}

/// [`crate::frame::FrameKernels::max_abs_before`].
#[target_feature(enable = "avx2,fma,popcnt")]
pub(crate) fn max_abs_before(x: &[f32], next: &[f32]) -> f32 {
    if next.is_empty() {
        scan::<false>(x, next)
    } else {
        scan::<true>(x, next)
    }
}

#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn scan<const AHEAD: bool>(x: &[f32], next: &[f32]) -> f32 {
    let mut max = [_mm256_setzero_si256(); 8];
    if let (Some(head), Some(tail)) = (x.first_chunk::<8>(), x.last_chunk::<8>()) {
        max[0] = magnitude(load(head));
        max[1] = magnitude(load(tail));
        let at = x.as_ptr().align_offset(32).min(x.len());
        let (chunks, _) = x[at..].as_chunks::<8>();
        let (groups, rest) = chunks.as_chunks::<8>();
        let soon = Soon::new(x, at, next);
        for (g, group) in groups.iter().enumerate() {
            if AHEAD {
                soon.prefetch(8 * 8 * g, 4);
            }
            for (max, chunk) in max.iter_mut().zip(group) {
                *max = _mm256_max_epu32(*max, magnitude(load(chunk)));
            }
        }
        for (i, (max, chunk)) in max.iter_mut().zip(rest).enumerate() {
            if AHEAD {
                soon.prefetch(8 * (8 * groups.len() + i), 1);
            }
            *max = _mm256_max_epu32(*max, magnitude(load(chunk)));
        }
    } else {
        max[0] = magnitude(load(&padded::<8>(x)));
    }
    for half in [4, 2, 1] {
        for i in 0..half {
            max[i] = _mm256_max_epu32(max[i], max[i + half]);
        }
    }
    let max = _mm_max_epu32(
        _mm256_castsi256_si128(max[0]),
        _mm256_extracti128_si256::<1>(max[0]),
    );
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
    let max = f32::from_bits(_mm_cvtsi128_si32(max).cast_unsigned());
    if max.is_nan() { f32::NAN } else { max }
}

/// [`crate::frame::FrameKernels::peaks_before`].
#[target_feature(enable = "avx2,fma,popcnt")]
pub(crate) fn peaks_before(x: &[f32], next: &[f32]) -> Peaks {
    if next.is_empty() {
        scan_peaks::<false>(x, next)
    } else {
        scan_peaks::<true>(x, next)
    }
}

#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn scan_peaks<const AHEAD: bool>(x: &[f32], next: &[f32]) -> Peaks {
    let Some(&first) = x.first() else {
        return Peaks::NONE;
    };
    let (Some(head), Some(tail)) = (x.first_chunk::<8>(), x.last_chunk::<8>()) else {
        let mut all = [first; 8];
        all[..x.len()].copy_from_slice(x);
        let x = load_bits(&all);
        return join_peaks([x; 4], [x; 4]);
    };
    let (head, tail) = (load_bits(head), load_bits(tail));
    let (mut signed, mut unsigned) = ([head, tail, head, tail], [head, tail, head, tail]);
    let at = x.as_ptr().align_offset(32).min(x.len());
    let (chunks, _) = x[at..].as_chunks::<8>();
    let (groups, rest) = chunks.as_chunks::<8>();
    let soon = Soon::new(x, at, next);
    for (g, group) in groups.iter().enumerate() {
        if AHEAD {
            soon.prefetch(8 * 8 * g, 4);
        }
        for (i, chunk) in group.iter().enumerate() {
            let x = load_bits(chunk);
            signed[i % 4] = _mm256_max_epi32(signed[i % 4], x);
            unsigned[i % 4] = _mm256_max_epu32(unsigned[i % 4], x);
        }
    }
    for (i, chunk) in rest.iter().enumerate() {
        if AHEAD {
            soon.prefetch(8 * (8 * groups.len() + i), 1);
        }
        let x = load_bits(chunk);
        signed[0] = _mm256_max_epi32(signed[0], x);
        unsigned[0] = _mm256_max_epu32(unsigned[0], x);
    }
    join_peaks(signed, unsigned)
}

#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn join_peaks([a, b, c, d]: [__m256i; 4], [e, f, g, h]: [__m256i; 4]) -> Peaks {
    let signed = _mm256_max_epi32(_mm256_max_epi32(a, b), _mm256_max_epi32(c, d));
    let unsigned = _mm256_max_epu32(_mm256_max_epu32(e, f), _mm256_max_epu32(g, h));
    let halves = |x| (_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
    let ((a, b), (c, d)) = (halves(signed), halves(unsigned));
    let (signed, unsigned) = (_mm_max_epi32(a, b), _mm_max_epu32(c, d));
    let signed = _mm_max_epi32(signed, _mm_shuffle_epi32::<0b01_00_11_10>(signed));
    let unsigned = _mm_max_epu32(unsigned, _mm_shuffle_epi32::<0b01_00_11_10>(unsigned));
    let signed = _mm_max_epi32(signed, _mm_shuffle_epi32::<0b10_11_00_01>(signed));
    let unsigned = _mm_max_epu32(unsigned, _mm_shuffle_epi32::<0b10_11_00_01>(unsigned));
    Peaks {
        signed: _mm_cvtsi128_si32(signed),
        unsigned: _mm_cvtsi128_si32(unsigned).cast_unsigned(),
    }
}

/// Eight samples as bits.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn load_bits(from: &[f32; 8]) -> __m256i {
    _mm256_castps_si256(load(from))
}

/// |x| as integers.
#[target_feature(enable = "avx2,fma,popcnt")]
#[inline]
fn magnitude(x: __m256) -> __m256i {
    _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(i32::MAX))
}
