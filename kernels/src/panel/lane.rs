//! Panels of precision lanes: per 256 columns `[d: 8 blocks × 16 rows, f16][8 blocks of lines]`.
//!
//! A code has a plane for each power of two in its number of bits, the widest first: 3 = 2 + 1, 5 = 4 + 1, 7 = 4 + 2 + 1. A block
//! has the lines of 4 bits, then of 2, then of 1. So LANE5 has the panels of Q5_0. A panel has exactly the size of its rows.

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
    /// Where the lines of 2 bits and those of 1 bit are.
    pub(crate) const PAIRS: usize = (BITS & 4) * LINE_BYTES;
    pub(crate) const LAST: usize = (BITS & 6) * LINE_BYTES;
    /// The first bit of each in a code.
    pub(crate) const PAIRS_BIT: usize = BITS & 4;
    pub(crate) const LAST_BIT: usize = BITS & 6;

    const _SIZE: () = assert!(PANEL_ROWS * lane::block_bytes(BITS) == D_BYTES + Self::LINES);

    /// Offsets of the scales and of the lines of block `index`.
    pub(crate) fn at(n_cols: usize, index: usize) -> (usize, usize) {
        const { Self::_SIZE };
        let (group, block) = (index / 8, index % 8);
        let start = group * 8 * (D_BYTES + Self::LINES);
        let blocks_in_group = ((n_cols - group * GROUP) / 32).min(8);
        (
            start + block * D_BYTES,
            start + blocks_in_group * D_BYTES + block * Self::LINES,
        )
    }
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
        let (d, lines) = Self::at(n_cols, index);
        panel[d + 2 * row..][..2].copy_from_slice(&block[..lane::QS]);
        let lines = &mut panel[lines..][..Self::LINES];
        let codes = lane::codes::<BITS>(block);
        let (wide, last) = lines.split_at_mut(Self::LAST);
        let (wide, pairs) = wide.split_at_mut(Self::PAIRS);
        set_codes::<4>(wide, row, &codes, 0);
        set_codes::<2>(pairs, row, &codes, Self::PAIRS_BIT);
        set_codes::<1>(last, row, &codes, Self::LAST_BIT);
    }

    fn unpack_block(panel: &[u8], n_cols: usize, row: usize, index: usize, block: &mut [u8]) {
        let (d, lines) = Self::at(n_cols, index);
        block[..lane::QS].copy_from_slice(&panel[d + 2 * row..][..2]);
        let lines = &panel[lines..][..Self::LINES];
        let codes = core::array::from_fn(|col| {
            let mut of_col = code::<1>(&lines[Self::LAST..], row, col) << Self::LAST_BIT;
            if BITS & 2 != 0 {
                of_col |= code::<2>(&lines[Self::PAIRS..], row, col) << Self::PAIRS_BIT;
            }
            if BITS & 4 != 0 {
                of_col |= code::<4>(lines, row, col);
            }
            of_col
        });
        lane::set_codes::<BITS>(&codes, block);
    }
}
