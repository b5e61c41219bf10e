//! Kernels in AVX2, FMA and F16C.
//!
//! A line of a panel is two vectors, eight rows each. Four columns of a row multiply in
//! `vpmaddubsw`, whose sums of two products are added in 16 bits as long as they fit: eight lines
//! of 4-bit codes, 8 · 2 · 15 · 127 = 30,480. Codes of 8 bits are signed and give their sign to
//! the columns, and are added in 32 bits at once: 2 · 128 · 127 = 32,512; or they are multiplied as two
//! of 4 bits. Integer scales are what the sums of 16 bits are multiplied with when they are widened.
//!
//! Types with a scale per 32 columns (`block`) and with exact sums over 256 (`super_block`) each have a product with
//! one token, which unpacks lines in registers, and one with several, which unpacks 256 columns of a panel into the L1
//! cache and multiplies them with tiles of one to four tokens; the tiles of four tokens in `block` are assembly
//! (`tile`). The tile of one token also serves integer rows after the last panel and sums that are added to outputs.
//! Floats (`float`) are multiplied column by column.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

pub(crate) mod attention;
pub(crate) mod block;
mod float;
mod line;
pub(crate) mod lora;
pub(crate) mod neurons;
pub(crate) mod recurrent;
pub(crate) mod super_block;
mod tile;

pub(crate) use block::matmul as block_matmul;
pub(crate) use float::matmul as float_matmul;
pub(crate) use super_block::matmul as super_block_matmul;

use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::vector::rows::Out;
use crate::vector::unpack::Line;
use core::arch::x86_64::*;

/// 16 rows of four bytes, or of an i32.
type Ints = [__m256i; 2];
/// 16 rows of an f32.
type Floats = [__m256; 2];

/// Tokens of a tile: their sums of 16 bits, a line of weights and a broadcast fill the registers.
const TILE_TOKENS: usize = 4;

/// Codes of 8 bits, signed; else a type's largest code.
const SIGNED: u8 = 255;

/// How many lines of codes up to `max` are added in 16 bits.
const fn lines_per_sum(max: u8) -> usize {
    match max {
        SIGNED => 1,
        _ => 32_767 / (2 * 127 * max as usize),
    }
}

/// Adds to `sums` the dots of `N` lines with columns of some tokens, times `scale`, a pair of
/// equal i16 in each lane. `line(i)` is the i-th line, codes up to `MAX`.
///
/// # Safety
/// - `4 * N` columns are readable at each of `x`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_dots<const N: usize, const MAX: u8, const T: usize>(
    sums: &mut [Ints; T],
    line: impl Fn(usize) -> Ints,
    x: [*const u8; T],
    scale: Ints,
) {
    let n_lines = const { lines_per_sum(MAX) };
    let mut words = [[_mm256_setzero_si256(); 2]; T];
    for i in 0..N {
        let w = line(i);
        for (words, x) in words.iter_mut().zip(x) {
            // SAFETY: by the caller.
            let q = _mm256_set1_epi32(unsafe { x.add(4 * i).cast::<i32>().read_unaligned() });
            for (words, w) in words.iter_mut().zip(w) {
                let products = match MAX {
                    SIGNED => _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w)),
                    _ => _mm256_maddubs_epi16(w, q),
                };
                *words = match i % n_lines {
                    0 => products,
                    _ => _mm256_add_epi16(*words, products),
                };
            }
        }
        if i % n_lines == n_lines - 1 || i == N - 1 {
            for (sums, words) in sums.iter_mut().zip(words) {
                for half in 0..2 {
                    let wide = _mm256_madd_epi16(words[half], scale[half]);
                    sums[half] = _mm256_add_epi32(sums[half], wide);
                }
            }
        }
    }
}

/// Line `i` of a buffer.
///
/// # Safety
/// - The line is readable.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn line(lines: *const [u8; LINE_BYTES], i: usize) -> Ints {
    // SAFETY: by the caller.
    unsafe { Ints::load(lines.add(i).cast()) }
}

/// 16 numbers of 32 bits.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn ints(from: &[i32; PANEL_ROWS]) -> Ints {
    // SAFETY: 64 bytes.
    unsafe { Ints::load(from.as_ptr().cast()) }
}

/// The running sums of token `t`; zero in rows that are not there.
///
/// # Safety
/// - The outputs are readable.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn load_out(out: &Out, t: usize) -> Floats {
    let at = out.at.wrapping_add(t * out.stride);
    // SAFETY: masked lanes are not accessed; the caller vouches for the others.
    unsafe {
        match out.mask {
            u16::MAX => [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))],
            mask => {
                let lanes = lanes(mask);
                let upper = _mm256_maskload_ps(at.wrapping_add(8), lanes[1]);
                [_mm256_maskload_ps(at, lanes[0]), upper]
            }
        }
    }
}

/// # Safety
/// - The outputs are writable, and nothing else accesses them.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn store_out(out: &Out, t: usize, sums: Floats) {
    let at = out.at.wrapping_add(t * out.stride);
    // SAFETY: as in `load_out`.
    unsafe {
        match out.mask {
            u16::MAX => {
                _mm256_storeu_ps(at, sums[0]);
                _mm256_storeu_ps(at.add(8), sums[1]);
            }
            mask => {
                let lanes = lanes(mask);
                for half in 0..2 {
                    _mm256_maskstore_ps(at.wrapping_add(8 * half), lanes[half], sums[half]);
                }
            }
        }
    }
}

/// Lanes whose bit is set, all ones.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn lanes(mask: u16) -> Ints {
    let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    let low = _mm256_and_si256(_mm256_set1_epi32((mask & 0xff).into()), bits);
    let high = _mm256_and_si256(_mm256_set1_epi32((mask >> 8).into()), bits);
    [
        _mm256_cmpeq_epi32(low, bits),
        _mm256_cmpeq_epi32(high, bits),
    ]
}

/// Bytes 128 too large, signed.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn signed(line: Ints) -> Ints {
    let offset = _mm256_set1_epi8(-128);
    [
        _mm256_xor_si256(line[0], offset),
        _mm256_xor_si256(line[1], offset),
    ]
}

/// Lines 128 too large, signed.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn make_signed(lines: &mut [[u8; LINE_BYTES]]) {
    for line in lines {
        // SAFETY: 64 bytes.
        unsafe { signed(Ints::load(line.as_ptr())).store(line.as_mut_ptr()) };
    }
}
