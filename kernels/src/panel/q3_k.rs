//! Q3_K panels: all `d` of the panel first (f16, `[super-block][16 rows]`), then 1728 bytes per
//! super-block of 256 columns; exactly GGUF's size:
//!
//! ```text
//!    0  scales[12][16]             GGUF's twelve bytes of packed 6-bit scales, row r
//!  192  8 × [2 low lines, 1 high line]    columns 32s..32s+32 each
//! ```
//!
//! Bits 2s..2s+2 of byte 4r+j of a low line are the low bits of column 4s+j of its 16 columns,
//! bit s of byte 4r+j of a high line the third bit of column 4s+j of its 32. `d` is apart so
//! that lines are whole where the number of super-blocks is even; else they start at multiples
//! of 32 bytes.

use super::{LINE_BYTES, PANEL_ROWS, PanelFormat, WeightType, code, set_codes};
use crate::blocks::q3_k;

pub(crate) struct Q3K;

/// Bytes of a super-block of 16 rows, without `d`.
pub(crate) const SUPER_BLOCK: usize = 1728;
/// Where the lines start: the bytes of the scales.
pub(crate) const LINES: usize = q3_k::SCALE_BYTES * PANEL_ROWS;
/// Bytes of the lines of 32 columns.
pub(crate) const RUN: usize = 3 * LINE_BYTES;
/// Where the high line is among them.
pub(crate) const HIGH: usize = 2 * LINE_BYTES;

const _: () = assert!(SUPER_BLOCK == LINES + 8 * RUN);
const _: () = assert!(SUPER_BLOCK + 2 * PANEL_ROWS == 16 * 110);

impl Q3K {
    /// Bytes of the head with all `d`.
    pub(crate) fn head_bytes(n_cols: usize) -> usize {
        n_cols / 256 * PANEL_ROWS * 2
    }
}

impl PanelFormat for Q3K {
    const TYPE: WeightType = WeightType::Q3_K;

    fn panel_bytes(n_cols: usize) -> usize {
        Self::head_bytes(n_cols) + n_cols / 256 * SUPER_BLOCK
    }

    fn pack_block(panel: &mut [u8], n_cols: usize, row: usize, index: usize, block: &[u8]) {
        panel[(index * PANEL_ROWS + row) * 2..][..2].copy_from_slice(&block[q3_k::D..][..2]);
        let out = &mut panel[Self::head_bytes(n_cols) + index * SUPER_BLOCK..][..SUPER_BLOCK];
        for (i, byte) in block[q3_k::SCALES..q3_k::D].iter().enumerate() {
            out[i * PANEL_ROWS + row] = *byte;
        }
        let codes = q3_k::codes(block);
        let runs = out[LINES..].chunks_exact_mut(RUN);
        for (run, codes) in runs.zip(codes.as_chunks::<32>().0) {
            set_codes::<2>(run, row, codes, 0);
            set_codes::<1>(&mut run[HIGH..], row, codes, 2);
        }
    }

    fn unpack_block(panel: &[u8], n_cols: usize, row: usize, index: usize, block: &mut [u8]) {
        block[q3_k::D..][..2].copy_from_slice(&panel[(index * PANEL_ROWS + row) * 2..][..2]);
        let from = &panel[Self::head_bytes(n_cols) + index * SUPER_BLOCK..][..SUPER_BLOCK];
        for (i, byte) in block[q3_k::SCALES..q3_k::D].iter_mut().enumerate() {
            *byte = from[i * PANEL_ROWS + row];
        }
        let codes = core::array::from_fn(|col| {
            let run = &from[LINES + col / 32 * RUN..][..RUN];
            code::<2>(run, row, col % 32) | code::<1>(&run[HIGH..], row, col % 32) << 2
        });
        q3_k::set_codes(&codes, block);
    }
}
