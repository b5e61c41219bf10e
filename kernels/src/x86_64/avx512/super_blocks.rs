//! How types with exact sums over 256 columns unpack.

use super::{add_bit, line, nibbles};
use crate::blocks::iq4_xs;
use crate::panel;
use crate::panel::{iq4_xs as iq4_xs_panel, q2_k, q3_k, q4_k, q5_k, q6_k};
use crate::scalar::matmul::IntegerFormat;
use core::arch::x86_64::*;

/// A type whose lines and scales of columns are vectors.
pub(crate) trait SuperBlock: IntegerFormat {
    /// Byte lines of columns `32 * run..32 * run + 32` of the super-block at `p`.
    ///
    /// # Safety
    /// - A super-block is readable at `p`; the CPU has the Ice Lake set.
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8];
}

impl SuperBlock for panel::Q4K {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        // SAFETY: by the caller.
        unsafe { nibbles(p.add(q4_k::LINES + 256 * run)) }
    }
}

impl SuperBlock for panel::Q5K {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        let p = p.wrapping_add(q4_k::LINES + q5_k::SUB_BLOCK * run);
        // SAFETY: by the caller.
        let (mut lines, high) = unsafe { (nibbles(p), line(p.add(q5_k::HIGH))) };
        add_bit(high, 16, &mut lines);
        lines
    }
}

impl SuperBlock for panel::Q6K {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        let upper = _mm512_set1_epi8(0x30);
        let mut out = [upper; 8];
        for (half, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let p = p.wrapping_add(q6_k::LINES + q6_k::SUB_BLOCK * (2 * run + half));
            // SAFETY: by the caller.
            let (low, high) = unsafe { (nibbles::<4>(p), line(p.add(q6_k::HIGH))) };
            let high = [
                _mm512_slli_epi16::<4>(high),
                _mm512_slli_epi16::<2>(high),
                high,
                _mm512_srli_epi16::<2>(high),
            ];
            for (out, (low, high)) in out.iter_mut().zip(low.into_iter().zip(high)) {
                // low | (high & upper)
                *out = _mm512_ternarylogic_epi32::<0xf8>(low, high, upper);
            }
        }
        out
    }
}

/// The four byte lines of a line of 2-bit codes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn two_bits(codes: __m512i) -> [__m512i; 4] {
    let mask = _mm512_set1_epi8(3);
    [
        _mm512_and_si512(codes, mask),
        _mm512_and_si512(_mm512_srli_epi16::<2>(codes), mask),
        _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask),
        _mm512_and_si512(_mm512_srli_epi16::<6>(codes), mask),
    ]
}

/// The eight byte lines of two lines of 2-bit codes at `p`.
///
/// # Safety
/// - Two lines are readable at `p`.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
unsafe fn two_lines(p: *const u8) -> [__m512i; 8] {
    // SAFETY: by the caller.
    let [a, b] = unsafe { [two_bits(line(p)), two_bits(line(p.add(64)))] };
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

impl SuperBlock for panel::Q3K {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        let p = p.wrapping_add(q3_k::LINES + q3_k::RUN * run);
        // SAFETY: by the caller.
        let (mut lines, high) = unsafe { (two_lines(p), line(p.add(q3_k::HIGH))) };
        add_bit(high, 4, &mut lines);
        lines
    }
}

impl SuperBlock for panel::Q2K {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        // SAFETY: by the caller.
        unsafe { two_lines(p.add(q2_k::LINES + 128 * run)) }
    }
}

impl SuperBlock for panel::Iq4Xs {
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn lines(p: *const u8, run: usize) -> [__m512i; 8] {
        // SAFETY: by the caller; the table has 16 bytes.
        let (mut lines, table) = unsafe {
            let lines = nibbles::<8>(p.add(iq4_xs_panel::LINES + 256 * run));
            (lines, _mm_loadu_si128(iq4_xs::VALUES.as_ptr().cast()))
        };
        let table = _mm_xor_si128(table, _mm_set1_epi8(-128));
        let table = _mm512_broadcast_i32x4(table);
        for line in &mut lines {
            *line = _mm512_shuffle_epi8(table, *line);
        }
        lines
    }
}
