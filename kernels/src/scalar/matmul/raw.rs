//! Types without panels of their own: 256 columns of 16 rows are dequantised, then multiplied
//! as F32 weights are. The dequantisation is shared by a tile of tokens; nothing else is fast.

use super::{GroupKernel, Lanes, add_groups};
use crate::activation::ActivationLayout;
use crate::blocks;
use crate::contract::{Arith, GROUP};
use crate::panel::{PANEL_ROWS, PanelFormat, Raw};

impl<const TYPE: usize> GroupKernel for Raw<TYPE> {
    #[inline(always)]
    fn panel<F: Arith, const T: usize>(
        panel: &[u8],
        n_cols: usize,
        layout: &ActivationLayout,
        rows: &[&[u8]; T],
        acc: &mut [Lanes; T],
    ) {
        const { assert!(GROUP.is_multiple_of(Self::BLOCK_LEN)) };
        let x: [&[f32]; T] = core::array::from_fn(|t| layout.f32(rows[t]));
        let mut columns = [[0f32; PANEL_ROWS]; GROUP];
        let blocks = panel.chunks_exact(PANEL_ROWS * Self::BLOCK_BYTES);
        let mut blocks = blocks.take(n_cols / Self::BLOCK_LEN);
        for start in (0..n_cols).step_by(GROUP) {
            let columns = &mut columns[..(n_cols - start).min(GROUP)];
            for columns in columns.chunks_exact_mut(Self::BLOCK_LEN) {
                let rows = blocks.next().expect("as many blocks as columns have");
                dequantize::<TYPE>(rows, columns);
            }
            let mut sum = [[0f32; PANEL_ROWS]; T];
            for (col, w) in columns.iter().enumerate() {
                for (sum, x) in sum.iter_mut().zip(&x) {
                    F::fma_lanes(x[start + col], w, sum);
                }
            }
            add_groups(acc, &sum);
        }
    }
}

/// One block of 16 rows: `columns` (block length, 16).
fn dequantize<const TYPE: usize>(rows: &[u8], columns: &mut [Lanes]) {
    let mut values = [0f32; GROUP];
    let values = &mut values[..Raw::<TYPE>::BLOCK_LEN];
    let blocks = rows.chunks_exact(Raw::<TYPE>::BLOCK_BYTES);
    for (row, block) in blocks.enumerate() {
        blocks::dequantize_block(Raw::<TYPE>::TYPE.ggml(), block, values);
        for (column, value) in columns.iter_mut().zip(&*values) {
            column[row] = *value;
        }
    }
}
