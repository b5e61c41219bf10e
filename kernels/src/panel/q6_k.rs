//! Q6_K panels: all `d` of the panel first (f16, `[super-block][16 rows]`, padded to a line),
//! then 3328 bytes per super-block of 256 columns:
//!
//! ```text
//!    0  scales[16][16]             i8, sub-block s of 16 columns, row r
//!  256  16 × [2 nibble lines, 1 high line]    one sub-block each, columns 16s..16s+16
//! ```
//!
//! Byte 4r+j of a high line holds the upper two bits of columns j, 4+j, 8+j, 12+j of its
//! sub-block, so that one line serves four steps. The padding makes a panel at most 0.95%
//! larger than GGUF and keeps every line aligned.

use super::{LINE_BYTES, PANEL_ROWS, PanelFormat, WeightType, code, set_codes};
use crate::blocks::q6_k;

pub(crate) struct Q6K;

/// Bytes of a super-block of 16 rows, without `d`.
pub(crate) const SUPER_BLOCK: usize = 3328;
/// Where the sub-blocks start.
pub(crate) const LINES: usize = 256;
/// Bytes of one sub-block of 16 columns.
pub(crate) const SUB_BLOCK: usize = 3 * LINE_BYTES;
/// Where the high line of a sub-block is.
pub(crate) const HIGH: usize = 2 * LINE_BYTES;

const _: () = assert!(SUPER_BLOCK == LINES + 16 * SUB_BLOCK);
const _: () = assert!(SUPER_BLOCK + 2 * PANEL_ROWS == 16 * 210);

impl Q6K {
    /// Bytes of the head with all `d`.
    pub(crate) fn head_bytes(n_cols: usize) -> usize {
        (n_cols / 256 * PANEL_ROWS * 2).next_multiple_of(LINE_BYTES)
    }
}

impl PanelFormat for Q6K {
    const TYPE: WeightType = WeightType::Q6_K;

    fn panel_bytes(n_cols: usize) -> usize {
        Self::head_bytes(n_cols) + n_cols / 256 * SUPER_BLOCK
    }

    fn pack_block(panel: &mut [u8], n_cols: usize, row: usize, index: usize, block: &[u8]) {
        panel[(index * PANEL_ROWS + row) * 2..][..2].copy_from_slice(&block[q6_k::D..][..2]);
        let out = &mut panel[Self::head_bytes(n_cols) + index * SUPER_BLOCK..][..SUPER_BLOCK];
        let codes = q6_k::codes(block);
        let (scales, subs) = out.split_at_mut(LINES);
        for (s, codes) in codes.as_chunks::<16>().0.iter().enumerate() {
            scales[s * 16 + row] = block[q6_k::SCALES + s];
            let sub = &mut subs[s * SUB_BLOCK..][..SUB_BLOCK];
            set_codes::<4>(sub, row, codes, 0);
            set_codes::<2>(&mut sub[HIGH..], row, codes, 4);
        }
    }

    fn unpack_block(panel: &[u8], n_cols: usize, row: usize, index: usize, block: &mut [u8]) {
        block[q6_k::D..][..2].copy_from_slice(&panel[(index * PANEL_ROWS + row) * 2..][..2]);
        let from = &panel[Self::head_bytes(n_cols) + index * SUPER_BLOCK..][..SUPER_BLOCK];
        let codes = core::array::from_fn(|c| {
            let (sub, col) = (&from[LINES + c / 16 * SUB_BLOCK..], c % 16);
            let high = sub[HIGH + 4 * row + col % 4] >> (col / 4 * 2);
            code::<4>(sub, row, col) | (high & 3) << 4
        });
        q6_k::set_codes(&codes, block);
        for s in 0..16 {
            block[q6_k::SCALES + s] = from[s * 16 + row];
        }
    }
}
