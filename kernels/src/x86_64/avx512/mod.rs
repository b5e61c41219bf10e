//! Kernels in AVX-512 with VNNI and the rest of the Ice Lake set.
//!
//! A vector is 16 rows of weights: one line of a panel, whose four bytes a row `vpdpbusd`
//! multiplies with four columns of one token, broadcast from memory. Two families of integer
//! types (`block`, `super_block`) have each
//!
//! - a product with few tokens, which unpacks lines in registers as it goes, and
//! - a product with many, which unpacks 256 columns of some panels into a buffer in the L1
//!   cache and multiplies them, two at a time, with tiles of six or four tokens: only the unpacking
//!   is compiled type by type. Tokens that fill no tile are few.
//!
//! How a type unpacks is in [`super::unpack`]. Outputs are the running sums between
//! groups of columns.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

pub(crate) mod attention;
mod block;
mod float;
pub(crate) mod quantize;
mod super_block;
mod tile;

pub(crate) use block::{matmul as block_matmul, unpack as unpack_blocks};
pub(crate) use float::{bf16_matmul, matmul as float_matmul};
pub(crate) use super_block::{
    matmul as super_block_matmul, min_sums, scaled, scaled_less_min, unpack as unpack_super_block,
};

use crate::args::Matmul;
use crate::panel::LINE_BYTES;
use crate::x86_64::rows::{Ahead, Int8Rows, Out};
use core::arch::x86_64::*;

/// Tokens and panels of a tile with a scale per 32 columns: its 12 dots and their 12 scaled sums stay in registers, for on Zen 4
/// a store takes the time of a `vpdpbusd`. That leaves eight loads for twelve of those.
const TILE_TOKENS: usize = 6;
/// See [`TILE_TOKENS`].
const TILE_PANELS: usize = 2;

/// Most tokens that lines in registers are multiplied with.
const FEW: usize = 4;
/// Sums that are computed side by side at least: each addition waits for the one before.
const CHAINS: usize = 2;

/// The tokens of `args` that fill tiles, and what is left, at most [`FEW`] tokens each. Up to
/// eight are faster without tiles.
fn split<'a>(
    args: &Matmul<'a>,
    tile_tokens: usize,
) -> (Matmul<'a>, impl Iterator<Item = Matmul<'a>>) {
    let (args, start, end) = (*args, args.tokens.start, args.tokens.end);
    let few = match end - start {
        n if n <= 2 * FEW => start,
        n => start + n / tile_tokens * tile_tokens,
    };
    let rest = (few..end).step_by(FEW);
    let rest = rest.map(move |first| args.part(first..(first + FEW).min(end)));
    (args.part(start..few), rest)
}

/// Walks over the tokens of `args` tile by tile: asks for what follows and calls `tile` with each
/// one's rows of `x` and its first token.
#[inline(always)]
fn for_tiles(
    args: &Matmul<'_>,
    x: Int8Rows,
    ahead: Ahead<TILE_PANELS>,
    mut tile: impl FnMut(Int8Rows, usize),
) {
    let n_tokens = args.tokens.end - args.tokens.start;
    // Not all at once: the CPU has room for a dozen or two.
    let n_parts = (n_tokens / TILE_TOKENS).min(8);
    for (i, token) in (0..n_tokens).step_by(TILE_TOKENS).enumerate() {
        if i < n_parts {
            ahead.part(i, n_parts);
        }
        let x = x.tokens(token);
        let next = token + TILE_TOKENS;
        let n_next = (n_tokens - next).min(TILE_TOKENS);
        x.tokens(TILE_TOKENS).prefetch(n_next);
        tile(x, token);
    }
}

/// Up to `T` tokens. Where there are fewer, the last is computed again: that costs less than code
/// for each number.
struct Few<const T: usize> {
    x: [Int8Rows; T],
    n: usize,
}

impl<const T: usize> Few<T> {
    /// The tokens of `args`: at least one.
    fn new(args: &Matmul<'_>, per_32: bool) -> Self {
        let x = Int8Rows::new(args, args.tokens.start, per_32);
        let n = args.tokens.end - args.tokens.start;
        Self {
            x: core::array::from_fn(|t| x.tokens(t.min(n - 1))),
            n,
        }
    }

    /// # Safety
    /// - The outputs are writable and nobody else's.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn store(&self, acc: &[__m512; T], out: Out) {
        for (t, acc) in acc[..self.n].iter().enumerate() {
            // SAFETY: by the caller.
            unsafe { out.store(t, *acc) };
        }
    }
}

impl Out {
    /// The running sums of token `t`, zero before the first group of columns.
    ///
    /// # Safety
    /// - The outputs are readable.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) unsafe fn running(self, t: usize, is_first: bool) -> __m512 {
        let mask = if is_first { 0 } else { self.mask };
        let at = self.at.wrapping_add(t * self.stride);
        // SAFETY: masked lanes are not accessed; the caller vouches for the others.
        unsafe { _mm512_maskz_loadu_ps(mask, at) }
    }

    /// # Safety
    /// - The outputs are writable and nobody else's.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(crate) unsafe fn store(self, t: usize, sums: __m512) {
        let at = self.at.wrapping_add(t * self.stride);
        // SAFETY: as in `running`.
        unsafe { _mm512_mask_storeu_ps(at, self.mask, sums) };
    }
}

/// Four bytes in all lanes.
///
/// # Safety
/// - Four bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn broadcast(p: *const u8) -> __m512i {
    // SAFETY: by the caller.
    _mm512_set1_epi32(unsafe { p.cast::<i32>().read_unaligned() })
}

/// Adds the dots of `n` byte lines of two panels, from `lines` on, with columns of some tokens.
///
/// A compiler that knew `n` would unroll the loop and do all of a token's lines before the next
/// token's: chains that wait for themselves, and more lines than registers. It must not know.
///
/// # Safety
/// - `n` lines are readable at each of `lines`, and as many columns at each of `x`.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
unsafe fn add_dots<const T: usize>(
    dots: &mut [[__m512i; TILE_PANELS]; T],
    n: usize,
    lines: [*const u8; TILE_PANELS],
    x: [*const u8; T],
) {
    for i in 0..n {
        // SAFETY: by the caller.
        unsafe {
            let w = lines.map(|lines| line(lines.add(LINE_BYTES * i)));
            for (dots, x) in dots.iter_mut().zip(x) {
                let x = broadcast(x.add(4 * i));
                for (dot, w) in dots.iter_mut().zip(w) {
                    *dot = _mm512_dpbusd_epi32(*dot, w, x);
                }
            }
        }
    }
}

/// # Safety
/// - Four bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn broadcast_float(p: *const u8) -> __m512 {
    // SAFETY: by the caller.
    _mm512_set1_ps(unsafe { p.cast::<f32>().read_unaligned() })
}

/// # Safety
/// - 64 bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn line(p: *const u8) -> __m512i {
    // SAFETY: by the caller.
    unsafe { _mm512_loadu_si512(p.cast()) }
}

/// 16 halves as f32.
///
/// # Safety
/// - 32 bytes are readable at `p`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn halves(p: *const u8) -> __m512 {
    // SAFETY: by the caller.
    _mm512_cvtph_ps(unsafe { _mm256_loadu_si256(p.cast()) })
}
