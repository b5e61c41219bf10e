//! Q8_0 panels: per 256 columns `[d: 8 blocks × 16 rows, f16][64 byte lines, codes +128]`.
//!
//! 544 bytes per 32 columns, exactly GGUF's size; the last group of a row may hold fewer than
//! eight blocks. Data starts at multiples of 32 bytes.

use super::{LINE_BYTES, PANEL_ROWS, PanelFormat, WeightType, code, set_codes};
use crate::blocks::q8_0::QS;
use crate::contract::GROUP;

pub(crate) struct Q8_0;

/// Bytes of scales per block of 32 columns.
const D_BYTES: usize = PANEL_ROWS * 2;
/// Bytes of lines per block.
const LINES: usize = 8 * LINE_BYTES;

impl Q8_0 {
    /// Offsets of the scales and of the lines of block `index`.
    pub(crate) fn at(n_cols: usize, index: usize) -> (usize, usize) {
        let (group, block) = (index / 8, index % 8);
        let start = group * 8 * (D_BYTES + LINES);
        let blocks_in_group = ((n_cols - group * GROUP) / 32).min(8);
        (
            start + block * D_BYTES,
            start + blocks_in_group * D_BYTES + block * LINES,
        )
    }
}

impl PanelFormat for Q8_0 {
    const TYPE: WeightType = WeightType::Q8_0;

    fn panel_bytes(n_cols: usize) -> usize {
        n_cols / 32 * (D_BYTES + LINES)
    }

    #[inline(always)]
    fn pack_block(panel: &mut [u8], n_cols: usize, row: usize, index: usize, block: &[u8]) {
        let (d, lines) = Self::at(n_cols, index);
        panel[d + 2 * row..][..2].copy_from_slice(&block[..2]);
        let codes: [u8; 32] = core::array::from_fn(|col| block[QS + col] ^ 0x80);
        set_codes::<8>(&mut panel[lines..], row, &codes, 0);
    }

    fn unpack_block(panel: &[u8], n_cols: usize, row: usize, index: usize, block: &mut [u8]) {
        let (d, lines) = Self::at(n_cols, index);
        block[..2].copy_from_slice(&panel[d + 2 * row..][..2]);
        for (col, q) in block[QS..].iter_mut().enumerate() {
            *q = code::<8>(&panel[lines..], row, col) ^ 0x80;
        }
    }
}
