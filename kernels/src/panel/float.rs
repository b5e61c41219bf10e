//! Panels of the float types.
//!
//! F32 and F16: column after column, 16 rows each (64 and 32 bytes): a column is one vector to
//! convert and multiply. BF16: pairs of columns, `[16 rows][2]`, the operand of `vdpbf16ps`;
//! an odd last column has a partner of zeros (which is above 1% below 100 columns, where a matrix
//! has no panels then).

use super::{LINE_BYTES, PANEL_ROWS, PanelFormat, WeightType};

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl PanelFormat for F32 {
    const TYPE: WeightType = WeightType::F32;

    fn panel_bytes(n_cols: usize) -> usize {
        n_cols * PANEL_ROWS * 4
    }

    fn pack_block(panel: &mut [u8], _: usize, row: usize, index: usize, block: &[u8]) {
        panel[(index * PANEL_ROWS + row) * 4..][..4].copy_from_slice(block);
    }

    fn unpack_block(panel: &[u8], _: usize, row: usize, index: usize, block: &mut [u8]) {
        block.copy_from_slice(&panel[(index * PANEL_ROWS + row) * 4..][..4]);
    }
}

impl PanelFormat for F16 {
    const TYPE: WeightType = WeightType::F16;

    fn panel_bytes(n_cols: usize) -> usize {
        n_cols * PANEL_ROWS * 2
    }

    fn pack_block(panel: &mut [u8], _: usize, row: usize, index: usize, block: &[u8]) {
        panel[(index * PANEL_ROWS + row) * 2..][..2].copy_from_slice(block);
    }

    fn unpack_block(panel: &[u8], _: usize, row: usize, index: usize, block: &mut [u8]) {
        block.copy_from_slice(&panel[(index * PANEL_ROWS + row) * 2..][..2]);
    }
}

impl Bf16 {
    fn at(row: usize, index: usize) -> usize {
        index / 2 * LINE_BYTES + row * 4 + index % 2 * 2
    }
}

impl PanelFormat for Bf16 {
    const TYPE: WeightType = WeightType::BF16;

    fn panel_bytes(n_cols: usize) -> usize {
        n_cols.div_ceil(2) * LINE_BYTES
    }

    #[inline(always)]
    fn pack_block(panel: &mut [u8], n_cols: usize, row: usize, index: usize, block: &[u8]) {
        panel[Self::at(row, index)..][..2].copy_from_slice(block);
        if index + 1 == n_cols && n_cols % 2 == 1 {
            // Kernels multiply the partner; anything but a number times zero would show.
            panel[Self::at(row, n_cols)..][..2].fill(0);
        }
    }

    fn unpack_block(panel: &[u8], _: usize, row: usize, index: usize, block: &mut [u8]) {
        block.copy_from_slice(&panel[Self::at(row, index)..][..2]);
    }
}
