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

use crate::blocks::SixBits;
use crate::panel::PANEL_ROWS;

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

    /// The six bits of each row at `at`, less 32. Compilers find no vectors in this text.
    #[inline(always)]
    fn six_bits(packed: &[[u8; PANEL_ROWS]], at: SixBits) -> [u8; PANEL_ROWS] {
        let mut out = [0; PANEL_ROWS];
        for (out, (low, high)) in out
            .iter_mut()
            .zip(packed[at.low].iter().zip(&packed[at.high]))
        {
            let (low, high) = (low >> at.low_shift & 0xf, high >> at.high_shift & 3);
            *out = (low | high << 4).wrapping_sub(32);
        }
        out
    }

    /// 16 halves as f32.
    ///
    /// # Safety
    /// - 32 bytes are readable at `p`; the CPU has the features.
    unsafe fn halves(p: *const u8) -> Self::Floats;

    /// 16 exponents of MXFP4 as f32 ([`crate::blocks::mxfp4::scale`]).
    ///
    /// # Safety
    /// - 16 bytes are readable at `p`; the CPU has the features.
    unsafe fn exponents(p: *const u8) -> Self::Floats;

    /// 16 numbers.
    fn floats(numbers: &[f32; PANEL_ROWS]) -> Self::Floats;

    /// Writes 16 numbers.
    fn store_floats(numbers: Self::Floats, out: &mut [f32; PANEL_ROWS]);
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
