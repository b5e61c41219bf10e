//! Products of types with a scale per 32 columns, which lines of bytes unpack.

use super::line::Bytes;
use crate::activation::blocks_in_group;
use crate::contract::{GROUP, fma};
use crate::scalar::matmul::{Lanes, PanelProduct};
use crate::vector::unpack::{Block, UnpackedBlocks, unpack_blocks};

/// A [`PanelFn`](crate::scalar::matmul::PanelFn).
pub(crate) fn panel_product<B: Block>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
    let (panel, n_cols) = (product.panel, product.n_cols);
    let mut w = UnpackedBlocks::EMPTY;
    for g in 0..n_cols.div_ceil(GROUP) {
        // SAFETY: the panel is whole.
        unsafe { unpack_blocks::<B, Bytes>(panel.as_ptr(), n_cols, g, &mut w) };
        for (row, acc) in product.rows.iter().zip(acc.iter_mut()) {
            let (d, q, sums) = product.layout.int8_32(row, g);
            for b in 0..blocks_in_group(n_cols, g) {
                let q_sum = i32::from(sums[2 * b]) + i32::from(sums[2 * b + 1]);
                for (r, acc) in acc.iter_mut().enumerate() {
                    let code = |col: usize| i32::from(w.lines[col / 4][4 * r + col % 4]);
                    let cols = 32 * b..32 * b + 32;
                    let dot: i32 = cols.map(|col| code(col) * i32::from(q[col])).sum();
                    let dot = dot - i32::from(B::OFFSET) * q_sum;
                    *acc = fma(w.d[b][r] * d[b], dot as f32, *acc);
                    if B::MIN {
                        *acc = fma(w.m[b][r] * d[b], q_sum as f32, *acc);
                    }
                }
            }
        }
    }
}
