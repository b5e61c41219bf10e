//! How integer types unpack, in vectors of either width: codes to unsigned bytes, scales to f32 or to signed bytes.
//!
//! A panel's line is 16 rows of four bytes. [`Line`] is what unpacking needs of vectors that hold
//! one, so that each type is written once, for AVX2 and for AVX-512.
//!
//! Here and in kernels lines are not mapped by closures: the functions that call those are compiled
//! without the features, and each operation becomes a call when they are not inlined.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

mod blocks;
mod super_blocks;

pub(crate) use blocks::{Block, BlockKind, UnpackedBlocks, unpack_blocks};
pub(crate) use super_blocks::{
    SubBlockBytes, SuperBlock, SuperBlockKind, UnpackedSuperBlock, numbers, pairs,
    unpack_super_block,
};

use crate::panel::PANEL_ROWS;
use core::arch::x86_64::*;

/// A line of a panel in registers. Only for code compiled with the features of its vectors.
pub(crate) trait Line: Copy {
    /// A number for each of 16 rows.
    type Floats: Copy;

    /// # Safety
    /// - 64 bytes are readable at `p`; the CPU has the features.
    unsafe fn load(p: *const u8) -> Self;

    /// # Safety
    /// - 64 bytes are writable at `p`; the CPU has the features.
    unsafe fn store(self, p: *mut u8);

    /// `byte` in all 64 bytes.
    fn splat(byte: u8) -> Self;

    fn and(self, other: Self) -> Self;

    fn or(self, other: Self) -> Self;

    /// Words of 16 bits shifted left by `n` bits, or right by `-n`.
    fn shift(self, n: i32) -> Self;

    /// The table's entry for each byte, 0..16.
    fn lookup(self, table: &[u8; 16]) -> Self;

    /// 16 signed bytes as integers of 32 bits.
    ///
    /// # Safety
    /// - 16 bytes are readable at `p`; the CPU has the features.
    unsafe fn widen(p: *const u8) -> Self;

    /// 16 signed bytes as pairs of equal words.
    ///
    /// # Safety
    /// - As [`Line::widen`].
    unsafe fn widen_twice(p: *const u8) -> Self;

    /// Sums of bytes, without carries.
    fn add(self, other: Self) -> Self;

    /// The lower words of each integer of 32 bits, `upper`'s above one's own.
    fn pair(self, upper: Self) -> Self;

    /// 16 halves as f32.
    ///
    /// # Safety
    /// - 32 bytes are readable at `p`; the CPU has the features.
    unsafe fn halves(p: *const u8) -> Self::Floats;

    /// 16 numbers.
    fn floats(numbers: &[f32; PANEL_ROWS]) -> Self::Floats;

    /// Writes 16 numbers.
    fn store_floats(numbers: Self::Floats, out: &mut [f32; PANEL_ROWS]);
}

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
    unsafe fn halves(p: *const u8) -> __m512 {
        // SAFETY: by the caller.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
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
    unsafe fn halves(p: *const u8) -> [__m256; 2] {
        // SAFETY: by the caller.
        unsafe {
            let (low, high) = (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(16).cast()));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
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

/// Nibble lines as pairs of byte lines.
///
/// # Safety
/// - 64 bytes are readable for each pair from `p` on; the CPU has the features of `L`.
#[inline(always)]
unsafe fn nibbles<L: Line, const BYTE_LINES: usize>(p: *const u8) -> [L; BYTE_LINES] {
    let mask = L::splat(0xf);
    let mut out = [mask; BYTE_LINES];
    for (i, pair) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        // SAFETY: by the caller.
        let codes = unsafe { L::load(p.add(64 * i)) };
        *pair = [codes.and(mask), codes.shift(-4).and(mask)];
    }
    out
}

/// Puts bit s of every byte of `high` into bit `at` of byte line s.
#[inline(always)]
fn add_bit<L: Line>(high: L, at: i32, lines: &mut [L; 8]) {
    let bit = L::splat(1 << at);
    for (line, s) in lines.iter_mut().zip([0, 1, 2, 3, 4, 5, 6, 7]) {
        *line = line.or(high.shift(at - s).and(bit));
    }
}
