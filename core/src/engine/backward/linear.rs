//! The gradients of a linear layer: of its input, through the frozen weights, and of its adapter.
//!
//! ```text
//! dx = dy · W + u · A       u = scale · dy · B      columns of dx are shared out
//! dA += uᵀ · x              t = scale · x · Aᵀ      columns of A
//! dB += dyᵀ · t                                     rows of B
//! ```
//!
//! A tile of weights is dequantised once for all tokens. It is multiplied with the gradients column after column, so that a
//! vector holds tokens, and weights of any type are read as their panels hold them.

use super::TrainedPair;
use super::matrix::Matrix;
use super::room::{GradientType, TILE};
use super::run::Run;
use crate::kernels::backward::{PairProduct, Product, pack_pairs, pairs_of, transpose};
use crate::kernels::panel::PANEL_ROWS;
use crate::memory::Shared;
use crate::model::Weight;
use crate::team::{Member, Stop};
use core::ops::Range;

/// A linear layer, and what its gradients are made of.
pub(super) struct Linear<'a> {
    pub(super) weight: Weight<'a>,
    /// Its inputs, (n_rows, n_in).
    pub(super) x: Matrix<'a>,
    /// The gradients of its outputs, (n_rows, n_out).
    pub(super) dy: Matrix<'a>,
    /// Where the gradients of its inputs are written, or added; `None` if nothing below needs them.
    pub(super) dx: Option<Matrix<'a>>,
    pub(super) adds: bool,
    pub(super) pair: Option<&'a TrainedPair<'a>>,
    pub(super) n_rows: usize,
}

impl Linear<'_> {
    const fn n_in(&self) -> usize {
        self.weight.layout.n_cols()
    }

    /// Computes all gradients; ends with a barrier.
    pub(super) fn run(&self, run: &Run<'_>, member: &mut Member<'_>) -> Result<(), Stop> {
        if self.dx.is_none() && self.pair.is_none() {
            return Ok(());
        }
        if self.dx.is_some() {
            self.pack_columns(run, member);
        }
        if let Some(pair) = self.pair {
            self.project(run, member, pair);
        }
        member.barrier()?;
        let unit = self.weight.layout.ty().ggml().block_len().max(32);
        let units = member.home_range(self.n_in().div_ceil(unit));
        let columns = units.start * unit..(units.end * unit).min(self.n_in());
        if let Some(dx) = &self.dx {
            let mut first = columns.start;
            while first < columns.end {
                let some = first..(first + TILE).min(columns.end);
                self.input_gradient(run, member.rank(), dx, some.clone());
                first = some.end;
            }
        }
        if let Some(pair) = self.pair {
            self.adapter_gradients(run, pair, columns, member.home_range(self.weight.n_rows));
        }
        member.barrier()
    }

    /// The gradients of its outputs, column after column: this rank's columns.
    fn pack_columns(&self, run: &Run<'_>, member: &Member<'_>) {
        let (n, n_out, room) = (self.n_rows, self.weight.n_rows, &run.room.linear);
        let panels = member.home_range(n_out.div_ceil(PANEL_ROWS));
        let columns = panels.start * PANEL_ROWS..(panels.end * PANEL_ROWS).min(n_out);
        if columns.is_empty() {
            return;
        }
        // SAFETY: gradients of outputs were written before the last barrier, and only read in this phase.
        let dy = unsafe { &self.dy.rows_from(0)[columns.start..] };
        let stride = self.dy.width;
        match run.limits.gradients {
            GradientType::F32 => {
                // SAFETY: these columns are this rank's.
                let out = unsafe { room.columns.write(columns.start * n..columns.end * n) };
                transpose(dy, stride, n, columns.len(), out);
            }
            GradientType::Bf16 => {
                let pairs = columns.start / 2..columns.end.div_ceil(2);
                // SAFETY: as above; panels hold whole pairs.
                let out = unsafe { room.pairs.write(pairs.start * n..pairs.end * n) };
                pack_pairs(dy, stride, n, columns.len(), out);
            }
        }
    }

    /// `t` and `u` of this rank's rows.
    fn project(&self, run: &Run<'_>, member: &Member<'_>, pair: &TrainedPair<'_>) {
        let (n, rank, room) = (self.n_rows, pair.rank, &run.room.linear);
        let rows = member.home_range(n);
        if rows.is_empty() {
            return;
        }
        let of = |out: &Shared<'_, f32>, x: &Matrix<'_>, width, b: &[f32]| {
            // SAFETY: these rows are this rank's.
            let sums = unsafe { out.write(rows.start * rank..rows.end * rank) };
            sums.fill(0.0);
            // SAFETY: inputs and gradients of outputs are only read in this phase.
            let a = unsafe { x.rows_from(rows.start) };
            let product = Product {
                a,
                a_strides: [x.width, 1],
                b,
                b_stride: rank,
                out: sums.as_mut_ptr(),
                out_stride: rank,
                m: rows.len(),
                n: rank,
                steps: width,
            };
            // SAFETY: these outputs are this rank's alone.
            unsafe { run.product(&product) };
            sums.iter_mut().for_each(|sum| *sum *= pair.scale);
        };
        of(&room.down, &self.x, self.n_in(), pair.a_columns);
        of(&room.up, &self.dy, self.weight.n_rows, pair.b);
        for row in rows {
            // SAFETY: written above.
            let up = unsafe { room.up.read(row * rank..(row + 1) * rank) };
            for (j, up) in up.iter().enumerate() {
                // SAFETY: this column's element of the row is this rank's.
                unsafe { room.up_columns.pointer(j * n + row).write(*up) };
            }
        }
    }

    /// `dx` of up to [`TILE`] columns.
    fn input_gradient(&self, run: &Run<'_>, rank: usize, dx: &Matrix<'_>, columns: Range<usize>) {
        let (n, room) = (self.n_rows, &run.room.linear);
        // SAFETY: these columns are this rank's.
        let out = unsafe { room.inputs.write(columns.start * n..columns.end * n) };
        out.fill(0.0);
        for first in (0..self.weight.n_rows).step_by(TILE) {
            let rows = first..(first + TILE).min(self.weight.n_rows);
            self.add_tile(run, rank, rows, columns.clone(), out.as_mut_ptr());
        }
        if let Some(pair) = self.pair {
            let product = Product {
                a: &pair.a_columns[columns.start * pair.rank..],
                a_strides: [pair.rank, 1],
                // SAFETY: written before the last barrier.
                b: unsafe { room.up_columns.read(0..pair.rank * n) },
                b_stride: n,
                out: out.as_mut_ptr(),
                out_stride: n,
                m: columns.len(),
                n,
                steps: pair.rank,
            };
            // SAFETY: these outputs are this rank's alone.
            unsafe { run.product(&product) };
        }
        for row in 0..n {
            let start = row * dx.width;
            // SAFETY: these columns are this rank's.
            let target = unsafe { dx.memory.write(start + columns.start..start + columns.end) };
            for (target, column) in target.iter_mut().zip(out.chunks_exact(n)) {
                *target = if self.adds {
                    *target + column[row]
                } else {
                    column[row]
                };
            }
        }
    }

    /// Adds the products of a tile of weights.
    fn add_tile(
        &self,
        run: &Run<'_>,
        rank: usize,
        rows: Range<usize>,
        columns: Range<usize>,
        out: *mut f32,
    ) {
        let (n, room, weight) = (self.n_rows, &run.room.linear, &self.weight);
        let (m, steps) = (columns.len(), rows.len());
        let tile = room.tile.of(rank);
        // SAFETY: this rank's own tile, whose last use is over.
        let values = unsafe { tile.write(0..m * steps) };
        let in_tensor = weight.first_row + rows.start..weight.first_row + rows.end;
        weight
            .layout
            .dequantize_columns(in_tensor, columns, weight.panels, values);
        if let Some(factor) = weight.factor {
            values.iter_mut().for_each(|value| *value *= factor);
        }
        match run.limits.gradients {
            GradientType::F32 => {
                let product = Product {
                    a: values,
                    a_strides: [steps, 1],
                    // SAFETY: written before the last barrier.
                    b: unsafe { room.columns.read(rows.start * n..rows.end * n) },
                    b_stride: n,
                    out,
                    out_stride: n,
                    m,
                    n,
                    steps,
                };
                // SAFETY: these outputs are this rank's alone.
                unsafe { run.product(&product) };
            }
            GradientType::Bf16 => {
                let pairs = steps.div_ceil(2);
                // SAFETY: this rank's own tile.
                let packed = unsafe { room.tile_pairs.of(rank).write(0..m * pairs) };
                for (column, out) in values
                    .chunks_exact(steps)
                    .zip(packed.chunks_exact_mut(pairs))
                {
                    pairs_of(column, out);
                }
                let first = rows.start / 2;
                let product = PairProduct {
                    a: packed,
                    a_stride: pairs,
                    // SAFETY: written before the last barrier.
                    b: unsafe { room.pairs.read(first * n..(first + pairs) * n) },
                    b_stride: n,
                    out,
                    out_stride: n,
                    m,
                    n,
                    steps: pairs,
                };
                // SAFETY: these outputs are this rank's alone.
                unsafe { run.pair_product(&product) };
            }
        }
    }

    /// Adds the gradients of these columns of A and rows of B, text by text.
    fn adapter_gradients(
        &self,
        run: &Run<'_>,
        pair: &TrainedPair<'_>,
        columns: Range<usize>,
        rows: Range<usize>,
    ) {
        let (n, room, rank) = (self.n_rows, &run.room.linear, pair.rank);
        let gradients = &run.gradients;
        for text in run.texts.rows() {
            if !columns.is_empty() {
                let product = Product {
                    // SAFETY: written before the last barrier.
                    a: unsafe { room.up_columns.read(text.start..rank * n) },
                    a_strides: [n, 1],
                    // SAFETY: inputs are only read in this phase.
                    b: unsafe { &self.x.rows_from(text.start)[columns.start..] },
                    b_stride: self.x.width,
                    out: gradients.pointer(pair.gradient_a + columns.start),
                    out_stride: self.n_in(),
                    m: rank,
                    n: columns.len(),
                    steps: text.len(),
                };
                // SAFETY: these outputs are this rank's alone.
                unsafe { run.product(&product) };
            }
            if !rows.is_empty() {
                let product = Product {
                    // SAFETY: gradients of outputs are only read in this phase.
                    a: unsafe { &self.dy.rows_from(text.start)[rows.start..] },
                    a_strides: [1, self.dy.width],
                    // SAFETY: written before the last barrier.
                    b: unsafe { room.down.read(text.start * rank..text.end * rank) },
                    b_stride: rank,
                    out: gradients.pointer(pair.gradient_b + rows.start * rank),
                    out_stride: rank,
                    m: rows.len(),
                    n: rank,
                    steps: text.len(),
                };
                // SAFETY: these outputs are this rank's alone.
                unsafe { run.product(&product) };
            }
        }
    }
}
