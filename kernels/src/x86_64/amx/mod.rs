//! Products of int8 types with many tokens by AMX tiles.
//!
//! 16 unpacked lines of a panel are the second operand of a tile product as stored, and 16 rows of activations the
//! first, so nothing is rearranged. A group of 256 columns of two panels is unpacked by AVX-512 and multiplied with 32
//! tokens at a time (`block`, `wide`) or 16 (`super_block`). Few tokens are multiplied by `avx512`, with
//! bit-identical results.
//!
//! Tile instructions overlap with vectors, and loads, stores and products of tiles with each other, only
//! where the kinds take turns with a few vectors between any two. So AVX-512 scales and adds earlier
//! sums row by row in between. While tiles multiply, one of the two 512-bit units only adds: every
//! second sum becomes a float by additions.
//!
//! The tile instructions are a parameter, so that the algorithm is also tested with an emulation.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

mod block;
mod planes;
mod super_block;
mod tiles;
mod wide;

pub(crate) use block::matmul as block_matmul;
pub(crate) use super_block::matmul as super_block_matmul;
#[cfg(test)]
pub(crate) use tiles::Emulated;
pub(crate) use tiles::Hardware;

use crate::args::Matmul;
use crate::panel::PANEL_ROWS;
use crate::vector::rows::Out;
use crate::x86_64::avx512::Product;
use core::arch::x86_64::*;
use tiles::ROWS;

/// Panels that are multiplied side by side.
const PANELS: usize = 2;
/// Tokens that are multiplied side by side.
const TOKENS: usize = 2 * ROWS;
/// Squares of a chunk of tokens, whose outputs are kept close together until they are complete: at their final place
/// they are far apart, and each group would fetch them again.
const NEAR: usize = 4;

/// Outputs, or sums, of two panels × 32 tokens.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Square<T>([[[T; PANEL_ROWS]; TOKENS]; PANELS]);

impl Square<f32> {
    const ZERO: Self = Self([[[0.0; _]; _]; _]);
}

impl Square<i32> {
    const ZERO: Self = Self([[[0; _]; _]; _]);
}

/// Multiplies as many tokens as fill tiles by `tiled`, up to `n_max` at a time and of much the same
/// number, and the rest by `rest`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has what the
///   functions need. `args.store` is `Set` or `Continue`.
/// - `n_max` is a multiple of [`TOKENS`], or no limit; `tiled` takes all such numbers of tokens up to it.
#[inline(never)] // Not in the products of each type.
unsafe fn split(args: &Matmul<'_>, n_max: usize, tiled: Product, rest: Product) {
    let (start, end) = (args.tokens.start, args.tokens.end);
    let n = (end - start) / TOKENS * TOKENS;
    let n_chunks = n.div_ceil(n_max).max(1);
    let step = (n / TOKENS).div_ceil(n_chunks).max(1) * TOKENS;
    for from in (start..start + n).step_by(step) {
        // SAFETY: by the caller; `n` and `step` are multiples of `TOKENS`, `step` at most `n_max`.
        unsafe { tiled(&args.part(from..(from + step).min(start + n))) };
    }
    // SAFETY: by the caller.
    unsafe { rest(&args.part(start + n..end)) };
}

/// Reads the outputs of the columns before of two panels from row `row` on, which [`write`] wrote.
///
/// # Safety
/// - As [`write`].
#[target_feature(enable = "avx512f")]
unsafe fn read(args: &Matmul<'_>, row: usize, near: &mut [Square<f32>]) {
    let outs = [0, PANEL_ROWS].map(|r| Out::new(args, row + r));
    for token in 0..args.tokens.end - args.tokens.start {
        for (p, out) in outs.iter().enumerate() {
            let y = &mut near[token / TOKENS].0[p][token % TOKENS];
            // SAFETY: by the caller; a row of a square is a whole, aligned vector.
            unsafe { _mm512_store_ps(y.as_mut_ptr(), out.running(token, false)) };
        }
    }
}

/// Writes complete outputs of two panels from row `row` on.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`]; the CPU has AVX-512F.
#[target_feature(enable = "avx512f")]
unsafe fn write(args: &Matmul<'_>, row: usize, near: &[Square<f32>]) {
    let outs = [0, PANEL_ROWS].map(|r| Out::new(args, row + r));
    for token in 0..args.tokens.end - args.tokens.start {
        for (p, out) in outs.iter().enumerate() {
            let y = &near[token / TOKENS].0[p][token % TOKENS];
            // SAFETY: by the caller; a row of a square is a whole, aligned vector.
            unsafe { out.store(token, _mm512_load_ps(y.as_ptr())) };
        }
    }
}
