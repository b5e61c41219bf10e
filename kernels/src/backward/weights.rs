//! Weights and gradients in the order in which backward products read them.

use crate::blocks;
use crate::contract::GROUP;
use crate::half::f32_to_bf16;
use crate::panel::PanelLayout;
use core::ops::Range;

/// Writes `rows` rows of `x`, `stride` apart, as columns of `out`: element (i, j) of `x` becomes (j, i), `rows` elements
/// from one j to the next.
///
/// # Panics
/// If `x` or `out` is too short.
pub fn transpose(x: &[f32], stride: usize, rows: usize, n: usize, out: &mut [f32]) {
    each_block(rows, n, |i, j| out[j * rows + i] = x[i * stride + j]);
}

/// As [`transpose`], rounded to bf16: a pair holds columns `2 j` and `2 j + 1` of a row, so that `out` is (⌈n/2⌉, rows).
/// After an odd number of columns the last pair's second is 0.
///
/// # Panics
/// If `x` or `out` is too short.
pub fn pack_pairs(x: &[f32], stride: usize, rows: usize, n: usize, out: &mut [u32]) {
    each_block(rows, n.div_ceil(2), |i, pair| {
        let row = &x[i * stride..i * stride + n];
        out[pair * rows + i] = pair_at(row, 2 * pair);
    });
}

/// A row as pairs of bf16.
///
/// # Panics
/// If `out` is too short.
pub fn pairs_of(row: &[f32], out: &mut [u32]) {
    for (i, out) in out[..row.len().div_ceil(2)].iter_mut().enumerate() {
        *out = pair_at(row, 2 * i);
    }
}

#[inline(always)]
fn pair_at(row: &[f32], at: usize) -> u32 {
    let low = u32::from(f32_to_bf16(row[at]));
    let high = row.get(at + 1).map_or(0, |x| u32::from(f32_to_bf16(*x)));
    low | high << 16
}

/// Visits a matrix by blocks of 16 × 16, so that neither side leaves the caches.
#[inline(always)]
fn each_block(rows: usize, n: usize, mut visit: impl FnMut(usize, usize)) {
    for j in (0..n).step_by(16) {
        for i in (0..rows).step_by(16) {
            for j in j..(j + 16).min(n) {
                for i in i..(i + 16).min(rows) {
                    visit(i, j);
                }
            }
        }
    }
}

impl PanelLayout {
    /// The values of some columns of some rows, dequantised from the whole matrix, column after column: element (row,
    /// column) is at `column · rows.len() + row`, both counted from the first.
    ///
    /// # Panics
    /// If rows or columns are out of range, columns are no whole blocks, a slice's size does not match, or the matrix is
    /// stored by neuron.
    pub fn dequantize_columns(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        panels: &[u8],
        out: &mut [f32],
    ) {
        let (n_rows, ty) = (rows.len(), self.ty().ggml());
        assert!(rows.end <= self.n_rows() && cols.end <= self.n_cols());
        assert!(
            cols.start.is_multiple_of(ty.block_len()) && cols.end.is_multiple_of(ty.block_len())
        );
        assert_eq!(out.len(), n_rows * cols.len());
        let mut values = [0f32; GROUP];
        let mut buffer = [0u8; GROUP * size_of::<f32>()];
        for (i, row) in rows.enumerate() {
            for first in cols.clone().step_by(GROUP) {
                let some = first..(first + GROUP).min(cols.end);
                let values = &mut values[..some.len()];
                blocks::dequantize_row(
                    ty,
                    self.gguf_columns(row, some, panels, &mut buffer),
                    values,
                );
                let columns = out[(first - cols.start) * n_rows..].chunks_exact_mut(n_rows);
                for (column, value) in columns.zip(&*values) {
                    column[i] = *value;
                }
            }
        }
    }
}
