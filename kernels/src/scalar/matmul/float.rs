//! Float types: a column of 16 weights is the vector.

use super::{GroupKernel, Lanes, PanelProduct, TILE, add_groups, halves};
use crate::contract::{Arith, GROUP, flush};
use crate::half::bf16_to_f32;
use crate::panel::{self, LINE_BYTES, PANEL_ROWS, PanelFormat};

/// A column of 16 weights.
trait FloatFormat: PanelFormat {
    fn column<F: Arith>(panel: &[u8], col: usize) -> Lanes;
}

impl FloatFormat for panel::F32 {
    #[inline(always)]
    fn column<F: Arith>(panel: &[u8], col: usize) -> Lanes {
        let bytes: &[u8; 64] = panel[col * 64..].first_chunk().expect("whole columns");
        core::array::from_fn(|row| {
            f32::from_le_bytes(*bytes[4 * row..].first_chunk().expect("16 floats"))
        })
    }
}

impl FloatFormat for panel::F16 {
    #[inline(always)]
    fn column<F: Arith>(panel: &[u8], col: usize) -> Lanes {
        halves::<F>(panel, col * 2 * PANEL_ROWS)
    }
}

macro_rules! float_kernels {
    ($($format:ty),*) => {$(
        impl GroupKernel for $format {
            #[inline(always)]
            fn panel<F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
                let mut x: [&[f32]; TILE] = [&[]; TILE];
                for (x, row) in x.iter_mut().zip(product.rows) {
                    *x = product.layout.f32(row);
                }
                let (x, n_cols) = (&x[..product.rows.len()], product.n_cols);
                for start in (0..n_cols).step_by(GROUP) {
                    let mut sum = [[0f32; PANEL_ROWS]; TILE];
                    for col in start..n_cols.min(start + GROUP) {
                        let w = <$format>::column::<F>(product.panel, col);
                        for (sum, x) in sum.iter_mut().zip(x) {
                            F::fma_lanes(x[col], &w, sum);
                        }
                    }
                    add_groups(acc, &sum);
                }
            }
        }
    )*};
}

float_kernels!(panel::F32, panel::F16);

impl GroupKernel for panel::Bf16 {
    #[inline(always)]
    fn panel<F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]) {
        let mut x: [&[u16]; TILE] = [&[]; TILE];
        for (x, row) in x.iter_mut().zip(product.rows) {
            *x = product.layout.bf16(row);
        }
        let x = &x[..product.rows.len()];
        let (lines, _) = product.panel.as_chunks::<LINE_BYTES>();
        let lines = &lines[..product.n_cols.div_ceil(2)];
        for (g, lines) in lines.chunks(GROUP / 2).enumerate() {
            let mut sum = [[0f32; PANEL_ROWS]; TILE];
            for (i, line) in lines.iter().enumerate() {
                let col = g * GROUP + 2 * i;
                let w = F::bf16_pairs(line);
                for (sum, x) in sum.iter_mut().zip(x) {
                    let x = [x[col], x[col + 1]].map(|x| flush(bf16_to_f32(x)));
                    F::bf16_step_lanes(x, &w, sum);
                }
            }
            add_groups(acc, &sum);
        }
    }
}
