//! Quantisation of activation groups. The compiler's vectors of the reference take more than twice
//! as long: it reduces and packs each sixteen numbers by themselves.

use super::broadcast_float;
use crate::activation::{BLOCK_COLS, GroupNumbers, Int8Group};
use crate::contract::{GROUP, MAGIC};
use crate::scalar::elementwise::{AMAX_MIN, GroupQuantizer};
use core::arch::x86_64::*;

/// Vectors of a group.
const VECTORS: usize = GROUP / 16;

/// By vectors of the Ice Lake set.
pub(crate) struct Avx512;

impl GroupQuantizer for Avx512 {
    #[inline(always)]
    unsafe fn quantize_group<const N: usize>(x: &[f32; GROUP], out: Int8Group) {
        // SAFETY: only tables of these features name this type; else by the caller.
        unsafe { quantize_group::<N>(x, out) }
    }
}

/// # Safety
/// - As [`GroupQuantizer::quantize_group`]; the CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi")]
#[inline]
unsafe fn quantize_group<const N: usize>(x: &[f32; GROUP], out: Int8Group) {
    const { assert!(N == GROUP || N == BLOCK_COLS) }
    let mut vectors = [_mm512_setzero_ps(); VECTORS];
    for (vector, x) in vectors.iter_mut().zip(x.as_chunks::<16>().0) {
        // SAFETY: 16 numbers.
        *vector = unsafe { _mm512_loadu_ps(x.as_ptr()) };
    }
    // Of eight blocks, or the same eight times.
    let amax = if N == GROUP {
        largest(&vectors)
    } else {
        largest_of_blocks(&vectors)
    };
    let (d, inverse, finite) = scales(amax);
    let mut inverses = [0f32; 8];
    // SAFETY: a scale for each of GROUP / N blocks, by the caller; eight numbers.
    unsafe {
        if N == GROUP {
            _mm_store_ss(out.d, _mm256_castps256_ps128(d));
        } else {
            _mm256_storeu_ps(out.d, d);
        }
        _mm256_storeu_ps(inverses.as_mut_ptr(), inverse);
    }
    let zero = _mm512_setzero_si512();
    let ones = _mm512_set1_epi8(1);
    let (mut sums, mut magnitudes) = ([zero; 4], [zero; 4]);
    for line in 0..4 {
        let mut codes = [_mm512_setzero_si512(); 4];
        for (i, codes) in codes.iter_mut().enumerate() {
            let block = (4 * line + i) / 2;
            // Zero where the scale is NaN.
            let mask = if finite >> block & 1 == 1 { !0 } else { 0 };
            // SAFETY: one of eight numbers.
            let inverse = unsafe { broadcast_float((&raw const inverses[block]).cast()) };
            let x = _mm512_mul_ps(vectors[4 * line + i], inverse);
            *codes = _mm512_castps_si512(_mm512_maskz_add_ps(mask, x, _mm512_set1_ps(MAGIC)));
        }
        let q = low_bytes(&codes);
        // SAFETY: four lines of 64 codes, by the caller.
        unsafe { _mm512_storeu_si512(out.q.add(64 * line).cast(), q) };
        sums[line] = _mm512_dpbusd_epi32(zero, ones, q);
        magnitudes[line] = _mm512_dpbusd_epi32(zero, _mm512_abs_epi8(q), ones);
    }
    let sums = sums_of_16(&sums);
    // SAFETY: 16 sums, by the caller.
    unsafe { _mm256_storeu_si256(out.sums.cast(), sums) };
    if N == GROUP {
        // SAFETY: the group has one scale; by the caller.
        unsafe { more_sums(sums, sums_of_16(&magnitudes), &mut *out.numbers()) };
    }
}

/// The numbers of a group that follow from sums over 16 columns, of codes and of magnitudes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn more_sums(sums: __m256i, magnitudes: __m256i, numbers: &mut GroupNumbers) {
    let one = _mm256_set1_epi16(1);
    let sums_of_32 = _mm256_madd_epi16(sums, one);
    // With P and N the summed magnitudes of positive and of negative codes, P + N is the sum of all magnitudes and P −
    // N the plain sum, so max(P, N) = (P + N + |P − N|) / 2.
    let most = _mm256_add_epi32(
        _mm256_madd_epi16(magnitudes, one),
        _mm256_abs_epi32(sums_of_32),
    );
    let most = _mm256_cvtepi32_epi16(_mm256_srli_epi32::<1>(most));
    // SAFETY: eight sums.
    unsafe {
        let to = numbers.sums_of_32.as_mut_ptr().cast();
        _mm_storeu_si128(to, _mm256_cvtepi32_epi16(sums_of_32));
    }
    let [low, high] = [
        _mm256_castsi256_si128(magnitudes),
        _mm256_extracti128_si256::<1>(magnitudes),
    ];
    numbers.most_of_16 = largest_word(_mm_max_epu16(low, high));
    numbers.most_of_32 = largest_word(most);
}

/// The largest of eight words.
#[target_feature(enable = "avx512f,sse4.1")]
#[inline]
fn largest_word(x: __m128i) -> u16 {
    let least = _mm_minpos_epu16(_mm_xor_si128(x, _mm_set1_epi16(-1)));
    #[expect(clippy::cast_possible_truncation, reason = "the lowest word")]
    let least = _mm_cvtsi128_si32(least).cast_unsigned() as u16;
    !least
}

/// The magnitudes' bits: they compare as integers, so that NaN is the largest.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn magnitude(x: __m512) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fff_ffff))
}

/// The largest magnitude of all, in eight lanes.
#[target_feature(enable = "avx512f,avx512dq")]
#[inline]
fn largest(x: &[__m512; VECTORS]) -> __m256i {
    let mut max = [_mm512_setzero_si512(); 4];
    for (i, x) in x.iter().enumerate() {
        max[i % 4] = _mm512_max_epu32(max[i % 4], magnitude(*x));
    }
    let max = _mm512_max_epu32(
        _mm512_max_epu32(max[0], max[1]),
        _mm512_max_epu32(max[2], max[3]),
    );
    _mm256_set1_epi32(_mm512_reduce_max_epu32(max).cast_signed())
}

/// The largest magnitude of each 32 columns: pairs of vectors fold to eight lanes each, and eight
/// of those fold as they are transposed.
#[target_feature(enable = "avx512f,avx512dq,avx2")]
#[inline]
fn largest_of_blocks(x: &[__m512; VECTORS]) -> __m256i {
    let mut b = [_mm256_setzero_si256(); 8];
    for (b, [even, odd]) in b.iter_mut().zip(x.as_chunks::<2>().0) {
        let max = _mm512_max_epu32(magnitude(*even), magnitude(*odd));
        *b = _mm256_max_epu32(
            _mm512_castsi512_si256(max),
            _mm512_extracti64x4_epi64::<1>(max),
        );
    }
    let max = |a, b| _mm256_max_epu32(a, b);
    let halves = |a, b| max(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let quarters = |a, b| max(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let four = [
        quarters(halves(b[0], b[1]), halves(b[2], b[3])),
        quarters(halves(b[4], b[5]), halves(b[6], b[7])),
    ];
    max(
        _mm256_permute2x128_si256::<0x20>(four[0], four[1]),
        _mm256_permute2x128_si256::<0x31>(four[0], four[1]),
    )
}

/// Scales, what columns are multiplied by to become codes, and which scales are finite.
#[target_feature(enable = "avx512f,avx512vl,avx512dq")]
#[inline]
fn scales(amax: __m256i) -> (__m256, __m256, u8) {
    let finite = _mm256_cmplt_epu32_mask(amax, _mm256_set1_epi32(0x7f80_0000));
    let amax = _mm256_castsi256_ps(amax);
    // False for NaN.
    let counts = finite & _mm256_cmp_ps_mask::<_CMP_GE_OQ>(amax, _mm256_set1_ps(AMAX_MIN));
    let most = _mm256_set1_ps(127.0);
    let d = _mm256_maskz_div_ps(counts, amax, most);
    let d = _mm256_mask_mov_ps(_mm256_set1_ps(f32::NAN), finite, d);
    (d, _mm256_maskz_div_ps(counts, most, amax), finite)
}

/// The lowest byte of each integer.
#[target_feature(enable = "avx512f,avx512vbmi")]
#[inline]
fn low_bytes(x: &[__m512i; 4]) -> __m512i {
    const LOWEST: [u8; 64] = {
        let mut at = [0; 64];
        let mut i = 0;
        while i < 32 {
            // Of the first operand, then of the second.
            at[i as usize] = 4 * i;
            i += 1;
        }
        at
    };
    // SAFETY: 64 bytes.
    let lowest = unsafe { _mm512_loadu_si512(LOWEST.as_ptr().cast()) };
    let first = _mm512_permutex2var_epi8(x[0], lowest, x[1]);
    let second = _mm512_permutex2var_epi8(x[2], lowest, x[3]);
    _mm512_inserti64x4::<1>(first, _mm512_castsi512_si256(second))
}

/// Sums of each four integers, given the sums of each four codes: all within 16 bits.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn sums_of_16(x: &[__m512i; 4]) -> __m256i {
    let one = _mm512_set1_epi16(1);
    // Lane by lane of 128 bits: eight pairs of sums, then four of four vectors.
    let first = _mm512_madd_epi16(_mm512_packs_epi32(x[0], x[1]), one);
    let second = _mm512_madd_epi16(_mm512_packs_epi32(x[2], x[3]), one);
    let sums = _mm512_madd_epi16(_mm512_packs_epi32(first, second), one);
    // Vector by vector instead of lane by lane.
    let order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    _mm512_cvtepi32_epi16(_mm512_permutexvar_epi32(order, sums))
}
