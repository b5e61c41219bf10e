//! Products that read only columns whose codes are not 0.

use crate::neuron::Transpose;
use crate::panel::LINE_BYTES;
use crate::panel::PANEL_ROWS;
use crate::panel::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K, WeightType};
use crate::vector::neurons::{NeuronLine, skip_kernels};
use core::arch::x86_64::*;

skip_kernels!(__m512i, "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi");

impl NeuronLine for __m512i {
    #[inline(always)]
    fn interleave(c: [Self; 4]) -> [Self; 4] {
        // SAFETY: only kernels of tables with AVX-512 name this type; so in all that follow.
        unsafe {
            let low = [
                _mm512_unpacklo_epi8(c[0], c[1]),
                _mm512_unpacklo_epi8(c[2], c[3]),
            ];
            let high = [
                _mm512_unpackhi_epi8(c[0], c[1]),
                _mm512_unpackhi_epi8(c[2], c[3]),
            ];
            [
                _mm512_unpacklo_epi16(low[0], low[1]),
                _mm512_unpackhi_epi16(low[0], low[1]),
                _mm512_unpacklo_epi16(high[0], high[1]),
                _mm512_unpackhi_epi16(high[0], high[1]),
            ]
        }
    }

    #[inline(always)]
    fn dot(self, codes: Self, q: Self) -> Self {
        // SAFETY: as in `interleave`.
        unsafe { _mm512_dpbusd_epi32(self, codes, q) }
    }

    #[inline(always)]
    fn by_words([a, b]: [Self; 2]) -> [Self; 2] {
        // SAFETY: as in `interleave`.
        unsafe {
            let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
            let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
            [
                _mm512_permutex2var_epi32(a, even, b),
                _mm512_permutex2var_epi32(a, odd, b),
            ]
        }
    }

    #[inline(always)]
    fn by_quarters([a, b]: [Self; 2]) -> [Self; 2] {
        // SAFETY: as in `interleave`.
        unsafe {
            [
                _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
                _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
            ]
        }
    }

    #[inline(always)]
    fn sums([a, b, c, d]: [Self; 4]) -> Self {
        // SAFETY: as in `interleave`.
        unsafe {
            let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
        }
    }

    #[inline(always)]
    fn transpose_quarters([a, b, c, d]: [Self; 4]) -> [Self; 4] {
        // SAFETY: as in `interleave`.
        unsafe {
            let low = [
                _mm512_shuffle_i32x4::<0b01_00_01_00>(a, b),
                _mm512_shuffle_i32x4::<0b01_00_01_00>(c, d),
            ];
            let high = [
                _mm512_shuffle_i32x4::<0b11_10_11_10>(a, b),
                _mm512_shuffle_i32x4::<0b11_10_11_10>(c, d),
            ];
            let ([e, f], [g, h]) = (Self::by_quarters(low), Self::by_quarters(high));
            [e, f, g, h]
        }
    }

    #[inline(always)]
    fn ints(n: i32) -> Self {
        // SAFETY: as in `interleave`.
        unsafe { _mm512_set1_epi32(n) }
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        // SAFETY: as in `interleave`.
        unsafe { _mm512_add_epi32(self, other) }
    }

    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: as in `interleave`.
        unsafe { _mm512_add_epi32(self, _mm512_mullo_epi32(a, b)) }
    }

    #[inline(always)]
    fn add_words(self, a: Self, b: Self) -> Self {
        // SAFETY: as in `interleave`.
        unsafe { _mm512_dpwssd_epi32(self, a, b) }
    }

    #[inline(always)]
    fn to_floats(self) -> __m512 {
        // SAFETY: as in `interleave`.
        unsafe { _mm512_cvtepi32_ps(self) }
    }

    #[inline(always)]
    fn float(x: f32) -> __m512 {
        // SAFETY: as in `interleave`.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn product(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as in `interleave`.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn fma<const NEGATIVE: bool>(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as in `interleave`.
        unsafe {
            match NEGATIVE {
                true => _mm512_fnmadd_ps(a, b, c),
                false => _mm512_fmadd_ps(a, b, c),
            }
        }
    }

    #[inline(always)]
    unsafe fn twice(p: *const u8) -> Self {
        // SAFETY: by the caller.
        unsafe { _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    fn halves_of(byte: u8) -> [Self; 2] {
        // SAFETY: as in `interleave`.
        unsafe {
            let byte = byte.cast_signed();
            [
                _mm512_maskz_set1_epi8(u64::from(u32::MAX), byte),
                _mm512_maskz_set1_epi8(!u64::from(u32::MAX), byte),
            ]
        }
    }

    #[inline(always)]
    fn bits(word: u64) -> Self {
        // SAFETY: as in `interleave`.
        unsafe { _mm512_maskz_set1_epi8(word, 1) }
    }
}

pub(crate) const TRANSPOSE: Transpose = Transpose { rows, words, bytes };

/// [`Transpose::words`].
///
/// # Safety
/// - As many bytes are writable as the lines have; the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn words(lines: &[[u8; LINE_BYTES]], out: *mut u8) {
    for (i, line) in lines.iter().enumerate() {
        // SAFETY: by the caller.
        unsafe {
            let line = _mm512_loadu_si512(line.as_ptr().cast());
            let out: *mut __m256i = out.add(LINE_BYTES * i).cast();
            _mm256_storeu_si256(out, _mm512_cvtepi32_epi16(line));
            let high = _mm512_srli_epi32::<16>(line);
            _mm256_storeu_si256(out.add(1), _mm512_cvtepi32_epi16(high));
        }
    }
}

/// Where each byte of a line goes if the first bytes of its words come first.
const BYTES_FIRST: [u8; LINE_BYTES] = {
    let mut order = [0; LINE_BYTES];
    let mut i = 0u8;
    while i < 64 {
        order[i as usize] = i % 16 * 4 + i / 16;
        i += 1;
    }
    order
};

/// [`Transpose::bytes`].
///
/// # Safety
/// - As [`words`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
unsafe fn bytes(lines: &[[u8; LINE_BYTES]], out: *mut u8) {
    // SAFETY: by the caller; the order is a line.
    unsafe {
        let order = _mm512_loadu_si512(BYTES_FIRST.as_ptr().cast());
        for (i, line) in lines.iter().enumerate() {
            let line = _mm512_loadu_si512(line.as_ptr().cast());
            let line = _mm512_permutexvar_epi8(order, line);
            _mm512_storeu_si512(out.add(LINE_BYTES * i).cast(), line);
        }
    }
}

/// [`Transpose::rows`].
///
/// # Safety
/// - `16 n` bytes are readable of each row, and `4 n` lines writable; the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn rows(of: &[*const u8; PANEL_ROWS], n: usize, lines: *mut [u8; LINE_BYTES]) {
    for i in 0..n {
        // Rows j, 4 + j, 8 + j, 12 + j in the quarters of vector j.
        let mut quarters = [_mm512_setzero_si512(); 4];
        // SAFETY: by the caller.
        unsafe {
            for (j, quarters) in quarters.iter_mut().enumerate() {
                let at = |k: usize| of[4 * k + j].add(16 * i).cast();
                let first = _mm512_castsi128_si512(_mm_loadu_si128(at(0)));
                let two = _mm512_mask_broadcast_i32x4(first, 0xf0, _mm_loadu_si128(at(1)));
                let three = _mm512_mask_broadcast_i32x4(two, 0xf00, _mm_loadu_si128(at(2)));
                *quarters = _mm512_mask_broadcast_i32x4(three, 0xf000, _mm_loadu_si128(at(3)));
            }
            let [a, b, c, d] = quarters;
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            let out: *mut __m512i = lines.add(4 * i).cast();
            _mm512_storeu_si512(out, _mm512_unpacklo_epi64(ab, cd));
            _mm512_storeu_si512(out.add(1), _mm512_unpackhi_epi64(ab, cd));
            _mm512_storeu_si512(out.add(2), _mm512_unpacklo_epi64(ab_high, cd_high));
            _mm512_storeu_si512(out.add(3), _mm512_unpackhi_epi64(ab_high, cd_high));
        }
    }
}
