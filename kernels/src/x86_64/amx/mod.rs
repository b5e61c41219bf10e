//! Products of int8 types with many tokens by AMX tiles.
//!
//! 16 unpacked lines of a panel are the second operand of a tile product as they lie, and 16 rows
//! of activations the first, so nothing is laid out anew. A group of 256 columns of up to two
//! panels is unpacked by AVX-512 and multiplied with 16 or 32 tokens at a time (`block`,
//! `super_block`). While tiles are multiplied, AVX-512 scales and adds the sums of the tiles
//! before. Fewer than 16 tokens are the products of `avx512`, bit for bit the same.
//!
//! The tile instructions are a parameter, so that the algorithm is also tested with an emulation.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

mod block;
mod super_block;
mod tiles;

pub(crate) use block::matmul as block_matmul;
pub(crate) use super_block::matmul as super_block_matmul;
#[cfg(test)]
pub(crate) use tiles::Emulated;
pub(crate) use tiles::Hardware;

use crate::args::Matmul;
use crate::panel::PANEL_ROWS;
use tiles::ROWS;

/// Panels that are unpacked side by side.
const PANELS: usize = 2;

/// Sums of 16 tokens × 16 rows.
type Sums = [[i32; PANEL_ROWS]; ROWS];

/// The part of `args` that whole tiles of tokens cover, and the rest; parts may be empty.
fn whole_tiles<'a>(args: &Matmul<'a>) -> [Matmul<'a>; 2] {
    let (start, end) = (args.tokens.start, args.tokens.end);
    let middle = end - (end - start) % ROWS;
    let tiles = Matmul {
        tokens: (start..middle).into(),
        ..*args
    };
    let rest = Matmul {
        tokens: (middle..end).into(),
        out: args.out.wrapping_add((middle - start) * args.out_stride),
        ..*args
    };
    [tiles, rest]
}
