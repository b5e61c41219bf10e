//! Panels of precision lanes: per 256 columns `[d: 8 blocks × 16 rows, f16][8 blocks of lines]`.
//!
//! A code has a plane for each power of two in its number of bits, the widest first: 3 = 2 + 1, 5 = 4 + 1, 7 = 4 + 2 + 1. A block
//! has the lines of 4 bits, then of 2, then of 1 ([`last_at`]). So LANE5 has the panels of Q5_0. A panel has exactly the size of its rows.

use super::{LINE_BYTES, PANEL_ROWS, PanelFormat, WeightType, code, set_codes};
use crate::blocks::lane;
use crate::contract::GROUP;

/// Panels of the lane of `BITS` bits.
pub(crate) struct Lane<const BITS: usize>;

/// Bytes of scales per block.
const D_BYTES: usize = PANEL_ROWS * 2;

impl<const BITS: usize> Lane<BITS> {
    /// Bytes of the lines of a block.
    pub(crate) const LINES: usize = BITS * LINE_BYTES;
    /// Where the lines of 2 bits and of 1 bit are.
    pub(crate) const PAIRS: usize = pairs_bit(BITS) * LINE_BYTES;
    pub(crate) const LAST: usize = last_bit(BITS) * LINE_BYTES;

    const _SIZE: () = assert!(PANEL_ROWS * lane::block_bytes(BITS) == D_BYTES + Self::LINES);

    /// Offsets of the scales and of the lines of block `index`.
    pub(crate) fn at(n_cols: usize, index: usize) -> (usize, usize) {
        const { Self::_SIZE };
        at(BITS, n_cols, index)
    }
}

/// The first of the bits in lines of 2 bits, where there are any.
pub(crate) const fn pairs_bit(bits: usize) -> usize {
    bits & 4
}

/// The last bit.
pub(crate) const fn last_bit(bits: usize) -> usize {
    bits & 6
}

/// Where byte line `step` of a block has its last bit, among the eight of a byte. Next to codes of 2 bits such that one shift
/// and one mask place the bits of two byte lines, 4 bits apart.
pub(crate) const fn last_at(bits: usize, step: usize) -> usize {
    match bits & 2 {
        0 => step,
        _ => [2, 3, 6, 7, 1, 0, 5, 4][step],
    }
}

fn at(bits: usize, n_cols: usize, index: usize) -> (usize, usize) {
    let (group, block) = (index / 8, index % 8);
    let lines = bits * LINE_BYTES;
    let start = group * 8 * (D_BYTES + lines);
    let blocks_in_group = ((n_cols - group * GROUP) / 32).min(8);
    (
        start + block * D_BYTES,
        start + blocks_in_group * D_BYTES + block * lines,
    )
}

/// [`PanelFormat::pack_block`] of all lanes: one function, because images are small.
#[inline(never)]
fn pack(bits: usize, panel: &mut [u8], n_cols: usize, row: usize, index: usize, block: &[u8]) {
    let (d, first_line) = at(bits, n_cols, index);
    panel[d + 2 * row..][..2].copy_from_slice(&block[..lane::QS]);
    let codes = lane::codes(bits, block);
    for (plane, first, lines) in planes(bits) {
        let lines = &mut panel[first_line + lines * LINE_BYTES..][..plane * LINE_BYTES];
        match plane {
            4 => set_codes::<4>(lines, row, &codes, first),
            2 => set_codes::<2>(lines, row, &codes, first),
            _ => {
                let mut ordered = [0; lane::COLS];
                for (step, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
                    ordered.as_chunks_mut().0[last_at(bits, step)] = *codes;
                }
                set_codes::<1>(lines, row, &ordered, first);
            }
        }
    }
}

/// [`PanelFormat::unpack_block`] of all lanes.
#[inline(never)]
fn unpack(bits: usize, panel: &[u8], n_cols: usize, row: usize, index: usize, block: &mut [u8]) {
    let (d, first_line) = at(bits, n_cols, index);
    block[..lane::QS].copy_from_slice(&panel[d + 2 * row..][..2]);
    let mut codes = [0; lane::COLS];
    for (plane, first, lines) in planes(bits) {
        let lines = &panel[first_line + lines * LINE_BYTES..];
        for (col, of_col) in codes.iter_mut().enumerate() {
            let found = match plane {
                4 => code::<4>(lines, row, col),
                2 => code::<2>(lines, row, col),
                _ => code::<1>(lines, row, 4 * last_at(bits, col / 4) + col % 4),
            };
            *of_col |= found << first;
        }
    }
    lane::set_codes(bits, &codes, block);
}

/// Each plane's bits, the first of them in a code, and its first line, which has the same number.
fn planes(bits: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let all = [
        (4, 0, 0),
        (2, pairs_bit(bits), pairs_bit(bits)),
        (1, last_bit(bits), last_bit(bits)),
    ];
    all.into_iter().filter(move |(plane, ..)| bits & plane != 0)
}

impl<const BITS: usize> PanelFormat for Lane<BITS> {
    const TYPE: WeightType = match BITS {
        3 => WeightType::LANE3,
        5 => WeightType::LANE5,
        _ => WeightType::LANE7,
    };

    fn panel_bytes(n_cols: usize) -> usize {
        n_cols / 32 * (D_BYTES + Self::LINES)
    }

    fn pack_block(panel: &mut [u8], n_cols: usize, row: usize, index: usize, block: &[u8]) {
        pack(BITS, panel, n_cols, row, index, block);
    }

    fn unpack_block(panel: &[u8], n_cols: usize, row: usize, index: usize, block: &mut [u8]) {
        unpack(BITS, panel, n_cols, row, index, block);
    }
}
