//! A line of a panel in one vector.

use crate::blocks::SixBits;
use crate::panel::PANEL_ROWS;
use crate::vector::unpack::Line;
use crate::x86_64::scales::six_bits;
use core::arch::x86_64::*;

impl Line for __m512i {
    type Floats = __m512;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self {
        // SAFETY: by the caller.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut u8) {
        // SAFETY: by the caller.
        unsafe { _mm512_storeu_si512(p.cast(), self) }
    }

    #[inline(always)]
    fn splat(byte: u8) -> Self {
        // SAFETY: only kernels of tables with AVX-512 name this type; so in all that follow.
        unsafe { _mm512_set1_epi8(byte.cast_signed()) }
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        unsafe { _mm512_and_si512(self, other) }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        unsafe { _mm512_or_si512(self, other) }
    }

    #[inline(always)]
    fn shift(self, n: i32) -> Self {
        // SAFETY: as in `splat`.
        unsafe {
            match n >= 0 {
                true => _mm512_sll_epi16(self, _mm_cvtsi32_si128(n)),
                false => _mm512_srl_epi16(self, _mm_cvtsi32_si128(-n)),
            }
        }
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16]) -> Self {
        // SAFETY: as in `splat`; the table has 16 bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, self)
        }
    }

    #[inline(always)]
    unsafe fn widen(p: *const u8) -> Self {
        // SAFETY: by the caller.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
    }

    #[inline(always)]
    unsafe fn widen_twice(p: *const u8) -> Self {
        // SAFETY: by the caller.
        let words = unsafe { Self::widen(p) };
        words.pair(words)
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        unsafe { _mm512_add_epi8(self, other) }
    }

    #[inline(always)]
    fn pair(self, upper: Self) -> Self {
        // SAFETY: as in `splat`.
        unsafe { _mm512_mask_blend_epi16(0xaaaa_aaaa, self, _mm512_slli_epi32::<16>(upper)) }
    }

    #[inline(always)]
    fn six_bits(packed: &[[u8; PANEL_ROWS]], at: SixBits) -> [u8; PANEL_ROWS] {
        six_bits(packed, at)
    }

    #[inline(always)]
    unsafe fn halves(p: *const u8) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn exponents(p: *const u8) -> __m512 {
        // SAFETY: by the caller.
        unsafe {
            let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let one = _mm512_set1_epi32(1);
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, one));
            let denormal = _mm512_slli_epi32::<21>(_mm512_add_epi32(e, one));
            let is_denormal = _mm512_cmple_epu32_mask(e, one);
            _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_denormal, normal, denormal))
        }
    }

    #[inline(always)]
    fn floats(numbers: &[f32; PANEL_ROWS]) -> __m512 {
        // SAFETY: as in `splat`; 16 numbers.
        unsafe { _mm512_loadu_ps(numbers.as_ptr()) }
    }

    #[inline(always)]
    fn store_floats(numbers: __m512, out: &mut [f32; PANEL_ROWS]) {
        // SAFETY: as in `floats`.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), numbers) }
    }
}
