//! A line of a panel in two vectors.

use crate::blocks::SixBits;
use crate::panel::PANEL_ROWS;
use crate::vector::unpack::Line;
use crate::x86_64::scales::six_bits;
use core::arch::x86_64::*;

/// Half of [`Line::exponents`]. A closure would be called, and not be part of the loop.
///
/// # Safety
/// - 8 bytes are readable at `p`; the CPU has AVX2.
#[inline(always)]
unsafe fn eight_exponents(p: *const u8) -> __m256 {
    // SAFETY: by the caller.
    unsafe {
        let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        let one = _mm256_set1_epi32(1);
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, one));
        let denormal = _mm256_slli_epi32::<21>(_mm256_add_epi32(e, one));
        let is_normal = _mm256_cmpgt_epi32(e, one);
        _mm256_castsi256_ps(_mm256_blendv_epi8(denormal, normal, is_normal))
    }
}

impl Line for [__m256i; 2] {
    type Floats = [__m256; 2];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: by the caller.
        unsafe {
            [
                _mm256_loadu_si256(p.cast()),
                _mm256_loadu_si256(p.add(32).cast()),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: by the caller.
        unsafe {
            _mm256_storeu_si256(p.cast(), self[0]);
            _mm256_storeu_si256(p.add(32).cast(), self[1]);
        }
    }

    #[inline(always)]
    fn splat(byte: u8) -> Self {
        // SAFETY: only kernels of tables with AVX2 name this type; so in all that follow.
        [unsafe { _mm256_set1_epi8(byte.cast_signed()) }; 2]
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        unsafe {
            [
                _mm256_and_si256(self[0], other[0]),
                _mm256_and_si256(self[1], other[1]),
            ]
        }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        unsafe {
            [
                _mm256_or_si256(self[0], other[0]),
                _mm256_or_si256(self[1], other[1]),
            ]
        }
    }

    #[inline(always)]
    fn shift(self, n: i32) -> Self {
        // SAFETY: as in `splat`.
        unsafe {
            let count = _mm_cvtsi32_si128(n.abs());
            match n >= 0 {
                true => [
                    _mm256_sll_epi16(self[0], count),
                    _mm256_sll_epi16(self[1], count),
                ],
                false => [
                    _mm256_srl_epi16(self[0], count),
                    _mm256_srl_epi16(self[1], count),
                ],
            }
        }
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16]) -> Self {
        // SAFETY: as in `splat`; the table has 16 bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [
                _mm256_shuffle_epi8(table, self[0]),
                _mm256_shuffle_epi8(table, self[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn widen(p: *const u8) -> Self {
        // SAFETY: by the caller.
        unsafe {
            let bytes = _mm_loadu_si128(p.cast());
            let upper = _mm_unpackhi_epi64(bytes, bytes);
            [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(upper)]
        }
    }

    #[inline(always)]
    unsafe fn widen_twice(p: *const u8) -> Self {
        // SAFETY: by the caller.
        unsafe {
            let bytes = _mm_loadu_si128(p.cast());
            let (low, high) = (
                _mm_unpacklo_epi8(bytes, bytes),
                _mm_unpackhi_epi8(bytes, bytes),
            );
            [_mm256_cvtepi8_epi16(low), _mm256_cvtepi8_epi16(high)]
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        unsafe {
            [
                _mm256_add_epi8(self[0], other[0]),
                _mm256_add_epi8(self[1], other[1]),
            ]
        }
    }

    #[inline(always)]
    fn pair(self, upper: Self) -> Self {
        // SAFETY: as in `splat`.
        unsafe {
            let upper = [
                _mm256_slli_epi32::<16>(upper[0]),
                _mm256_slli_epi32::<16>(upper[1]),
            ];
            [
                _mm256_blend_epi16::<0xaa>(self[0], upper[0]),
                _mm256_blend_epi16::<0xaa>(self[1], upper[1]),
            ]
        }
    }

    #[inline(always)]
    fn six_bits(packed: &[[u8; PANEL_ROWS]], at: SixBits) -> [u8; PANEL_ROWS] {
        six_bits(packed, at)
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> [__m256; 2] {
        // SAFETY: by the caller.
        unsafe {
            let (low, high) = (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(16).cast()));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn exponents(p: *const u8) -> [__m256; 2] {
        // SAFETY: by the caller.
        unsafe { [eight_exponents(p), eight_exponents(p.add(8))] }
    }

    #[inline(always)]
    fn floats(numbers: &[f32; PANEL_ROWS]) -> [__m256; 2] {
        // SAFETY: as in `splat`; 16 numbers.
        unsafe {
            let p = numbers.as_ptr();
            [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))]
        }
    }

    #[inline(always)]
    fn store_floats(numbers: [__m256; 2], out: &mut [f32; PANEL_ROWS]) {
        // SAFETY: as in `floats`.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), numbers[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), numbers[1]);
        }
    }
}
