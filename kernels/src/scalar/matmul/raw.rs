//! Types without panels of their own: 256 columns of 16 rows are dequantised, then multiplied
//! as F32 weights are. The dequantisation is shared by a tile of tokens; nothing else is fast.

use super::{GroupKernel, Lanes, PanelProduct, TILE, add_groups};
use crate::WeightType;
use crate::blocks;
use crate::contract::{Arith, GROUP};
use crate::panel::PANEL_ROWS;

/// The kernels of all raw types, which differ only in how they are dequantised.
pub(crate) struct Raw;

impl GroupKernel for Raw {
    #[inline(always)]
    fn panel<F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
        let (ty, n_cols) = (product.ty.ggml(), product.n_cols);
        let block_len = ty.block_len();
        assert!(GROUP.is_multiple_of(block_len));
        let mut x: [&[f32]; TILE] = [&[]; TILE];
        for (x, row) in x.iter_mut().zip(product.rows) {
            *x = product.layout.f32(row);
        }
        let x = &x[..product.rows.len()];
        let mut columns = [[0f32; PANEL_ROWS]; GROUP];
        let blocks = product.panel.chunks_exact(PANEL_ROWS * ty.block_bytes());
        let mut blocks = blocks.take(n_cols / block_len);
        for start in (0..n_cols).step_by(GROUP) {
            let columns = &mut columns[..(n_cols - start).min(GROUP)];
            for columns in columns.chunks_exact_mut(block_len) {
                let rows = blocks.next().expect("as many blocks as columns have");
                dequantize(product.ty, rows, columns);
            }
            let mut sum = [[0f32; PANEL_ROWS]; TILE];
            for (col, w) in columns.iter().enumerate() {
                for (sum, x) in sum.iter_mut().zip(x) {
                    F::fma_lanes(x[start + col], w, sum);
                }
            }
            add_groups(acc, &sum);
        }
    }
}

/// One block of 16 rows: `columns` (block length, 16).
fn dequantize(ty: WeightType, rows: &[u8], columns: &mut [Lanes]) {
    let ty = ty.ggml();
    let mut values = [0f32; GROUP];
    let values = &mut values[..ty.block_len()];
    for (row, block) in rows.chunks_exact(ty.block_bytes()).enumerate() {
        blocks::dequantize_block(ty, block, values);
        for (column, value) in columns.iter_mut().zip(&*values) {
            column[row] = *value;
        }
    }
}
