//! The gradient of attention: a unit is a text and a KV head, with all of its query heads.
//!
//! ```text
//! P = softmax(scale · Q Kᵀ)      dV += Pᵀ dO      dP = dO Vᵀ
//! dS = P ∘ (dP - Σ P ∘ dP)       dQ = scale · dS K      dK += scale · dSᵀ Q
//! ```
//!
//! Weights are computed once more, for [`QUERIES`] queries at a time from absolute positions on; heads and queries ascend.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the rows of a phase have one owner: a block's argument is one"
)]

use super::matrix::{Kept, Matrix};
use super::room::QUERIES;
use super::rows::{Turn, round};
use super::run::Run;
use crate::kernels::backward::{Product, transpose};
use crate::model::{Attention, Vector};
use crate::team::{Member, Stop};
use core::ops::Range;

/// A layer's attention.
pub(super) struct Block<'a> {
    pub(super) shape: &'a Attention,
    pub(super) kept: &'a Kept<'a>,
    pub(super) layer: usize,
}

/// A text and a head of keys.
struct Unit {
    rows: Range<usize>,
    head: usize,
}

/// Some queries of a head, and the keys that any of them sees.
struct Tile {
    /// The query head.
    head: usize,
    /// Positions of the queries.
    queries: Range<usize>,
    /// Positions of the keys.
    keys: Range<usize>,
}

impl<'a> Block<'a> {
    fn turns(&self, run: &Run<'a>) -> [Turn<'a>; 2] {
        let layer = &run.model.layers()[self.layer];
        let turn = |norm, is_query| Turn {
            shape: self.shape,
            norm: run.model.norm(layer, norm),
            is_query,
        };
        [turn(Vector::QueryNorm, true), turn(Vector::KeyNorm, false)]
    }

    /// Queries, keys and values of this rank's rows, as attention reads them. No barrier.
    pub(super) fn prepare(&self, run: &Run<'a>, member: &Member<'_>) {
        let (room, kept, [query, key]) = (run.room, self.kept, self.turns(run));
        for row in member.home_range(run.n_rows()) {
            let at = run.place(row);
            // SAFETY: a row is one rank's; kept rows are only read.
            unsafe {
                run.turn(
                    &query,
                    at,
                    kept.q.row(row),
                    room.q.of_width(kept.q.width).row_mut(row),
                );
                let k = room.k.of_width(kept.k.width).row_mut(row);
                run.turn(&key, at, kept.k.row(row), k);
                round(run.limits.type_k, k);
                let v = room.v.of_width(kept.v.width).row_mut(row);
                v.copy_from_slice(kept.v.row(row));
                round(run.limits.type_v, v);
            }
        }
    }

    /// The gradients of queries, keys and values; ends with a barrier.
    pub(super) fn run(&self, run: &Run<'a>, member: &mut Member<'_>) -> Result<(), Stop> {
        let n_heads = self.shape.n_head_kv;
        let n_texts = run.texts.lengths.len();
        member.share(n_texts * n_heads, |member, units| {
            for unit in units {
                let rows = run.texts.text(unit / n_heads);
                let head = unit % n_heads;
                self.unit(run, member.rank(), &Unit { rows, head });
            }
        });
        member.barrier()?;
        let (room, kept, [query, key]) = (run.room, self.kept, self.turns(run));
        for row in member.home_range(run.n_rows()) {
            let at = run.place(row);
            // SAFETY: a row is one rank's; kept rows are only read, and the rank's own row is free.
            unsafe {
                let own = run.own_row();
                let d = room.d_q.of_width(kept.q.width).row_mut(row);
                run.turn_back(&query, at, kept.q.row(row), d, own);
                let d = room.d_k.of_width(kept.k.width).row_mut(row);
                run.turn_back(&key, at, kept.k.row(row), d, own);
            }
        }
        member.barrier()
    }

    fn unit(&self, run: &Run<'a>, rank: usize, unit: &Unit) {
        let (shape, kept, room) = (self.shape, self.kept, run.room);
        let n = unit.rows.len();
        let [dim_k, dim_v] = [shape.head_dim_k, shape.head_dim_v];
        let own = &room.attention;
        // SAFETY: this rank's own room; queries, keys and values were written before the last barrier.
        let (k, v) = unsafe {
            (
                own.k.of(rank).write(0..dim_k * n),
                own.v.of(rank).write(0..dim_v * n),
            )
        };
        // SAFETY: as above.
        let columns = |rows: &Matrix<'_>, dim: usize, out: &mut [f32]| unsafe {
            transpose(
                &rows.rows_from(unit.rows.start)[unit.head * dim..],
                rows.width,
                n,
                dim,
                out,
            );
        };
        columns(&room.k.of_width(kept.k.width), dim_k, k);
        columns(&room.v.of_width(kept.v.width), dim_v, v);
        for row in unit.rows.clone() {
            // SAFETY: a head's gradients are one unit's.
            unsafe {
                room.d_k
                    .of_width(kept.k.width)
                    .piece(row, unit.head, dim_k)
                    .fill(0.0);
                room.d_v
                    .of_width(kept.v.width)
                    .piece(row, unit.head, dim_v)
                    .fill(0.0);
            }
        }
        for of_group in 0..shape.n_gqa() {
            let head = unit.head * shape.n_gqa() + of_group;
            for row in unit.rows.clone() {
                // SAFETY: as above.
                unsafe {
                    room.d_q
                        .of_width(kept.q.width)
                        .piece(row, head, dim_k)
                        .fill(0.0)
                };
            }
            for first in (0..n).step_by(QUERIES) {
                let queries = first..(first + QUERIES).min(n);
                let window = shape.window.unwrap_or(usize::MAX);
                let tile = Tile {
                    head,
                    keys: (first + 1).saturating_sub(window)..queries.end,
                    queries,
                };
                self.tile(run, rank, unit, &tile, [k, v]);
            }
        }
    }

    /// Keys that a query of a tile sees, counted from the tile's first.
    fn visible(&self, tile: &Tile, query: usize) -> Range<usize> {
        let window = self.shape.window.unwrap_or(usize::MAX);
        let first = (query + 1).saturating_sub(window).max(tile.keys.start);
        first - tile.keys.start..query + 1 - tile.keys.start
    }

    fn tile(&self, run: &Run<'a>, rank: usize, unit: &Unit, tile: &Tile, [k, v]: [&[f32]; 2]) {
        let (shape, kept, room) = (self.shape, self.kept, run.room);
        let n = unit.rows.len();
        let (m, n_keys, stride) = (tile.queries.len(), tile.keys.len(), n + 1);
        let [dim_k, dim_v] = [shape.head_dim_k, shape.head_dim_v];
        let own = &room.attention;
        // SAFETY: this rank's own room, whose last use is over.
        let (p, d) = unsafe {
            (
                own.p.of(rank).write(0..m * stride),
                own.d.of(rank).write(0..m * stride),
            )
        };
        let first = unit.rows.start + tile.queries.start;
        let mixed = room.d_mixed.of_width(kept.mixed.width);
        let q_rows = room.q.of_width(kept.q.width);
        // SAFETY: written before the last barrier, and only read in this phase.
        let (q, d_out) = unsafe {
            (
                &q_rows.rows_from(first)[tile.head * dim_k..],
                &mixed.rows_from(first)[tile.head * dim_v..],
            )
        };
        let of_columns = |a, a_stride, b: &[f32], out: &mut [f32], steps| {
            out.fill(0.0);
            let product = Product {
                a,
                a_strides: [a_stride, 1],
                b: &b[tile.keys.start..],
                b_stride: n,
                out: out.as_mut_ptr(),
                out_stride: stride,
                m,
                n: n_keys,
                steps,
            };
            // SAFETY: these outputs are this rank's alone.
            unsafe { run.product(&product) };
        };
        of_columns(q, q_rows.width, k, p, dim_k);
        self.weights(run, rank, tile, p, stride);
        of_columns(d_out, mixed.width, v, d, dim_v);
        self.score_gradients(run, rank, tile, p, d);
        self.add_gradients(run, unit, tile, [p, d]);
    }

    /// Adds the gradients of a tile's queries, and of its keys and values, by weights `p` and gradients of scores `d`.
    fn add_gradients(&self, run: &Run<'a>, unit: &Unit, tile: &Tile, [p, d]: [&[f32]; 2]) {
        let (shape, kept, room) = (self.shape, self.kept, run.room);
        let (m, n_keys, stride) = (tile.queries.len(), tile.keys.len(), unit.rows.len() + 1);
        let [dim_k, dim_v] = [shape.head_dim_k, shape.head_dim_v];
        let first = unit.rows.start + tile.queries.start;
        let first_key = unit.rows.start + tile.keys.start;
        let mixed = room.d_mixed.of_width(kept.mixed.width);
        let [q, k] = [room.q.of_width(kept.q.width), room.k.of_width(kept.k.width)];
        // SAFETY: written before the last barrier, and only read in this phase.
        let (queries, keys, d_out) = unsafe {
            (
                &q.rows_from(first)[tile.head * dim_k..],
                &k.rows_from(first_key)[unit.head * dim_k..],
                &mixed.rows_from(first)[tile.head * dim_v..],
            )
        };
        let d_q = room.d_q.of_width(kept.q.width);
        let product = Product {
            a: d,
            a_strides: [stride, 1],
            b: keys,
            b_stride: k.width,
            out: d_q.memory.pointer(first * d_q.width + tile.head * dim_k),
            out_stride: d_q.width,
            m,
            n: dim_k,
            steps: n_keys,
        };
        // SAFETY: these outputs are this rank's alone.
        unsafe { run.product(&product) };
        let to_keys = |a, b, b_stride, out: Matrix<'_>, dim: usize| {
            let product = Product {
                a,
                a_strides: [1, stride],
                b,
                b_stride,
                out: out.memory.pointer(first_key * out.width + unit.head * dim),
                out_stride: out.width,
                m: n_keys,
                n: dim,
                steps: m,
            };
            // SAFETY: these outputs are this rank's alone.
            unsafe { run.product(&product) };
        };
        to_keys(d, queries, q.width, room.d_k.of_width(kept.k.width), dim_k);
        to_keys(
            p,
            d_out,
            mixed.width,
            room.d_v.of_width(kept.v.width),
            dim_v,
        );
    }

    /// Makes weights of a tile's products; keys that a query does not see have weight 0.
    fn weights(&self, run: &Run<'a>, rank: usize, tile: &Tile, p: &mut [f32], stride: usize) {
        let (shape, own) = (self.shape, &run.room.attention);
        let layer = &run.model.layers()[self.layer];
        let sinks = run.model.vector(layer, Vector::Sinks);
        for (i, (query, row)) in tile
            .queries
            .clone()
            .zip(p.chunks_exact_mut(stride))
            .enumerate()
        {
            let seen = self.visible(tile, query);
            let scores = &mut row[seen.clone()];
            scores.iter_mut().for_each(|score| *score *= shape.scale);
            if shape.soft_cap > 0.0 {
                run.table.soft_cap(scores, shape.soft_cap);
                // SAFETY: this rank's own room.
                let capped = unsafe {
                    own.capped
                        .of(rank)
                        .write(i * stride..i * stride + seen.len())
                };
                capped.copy_from_slice(scores);
            }
            match sinks {
                Some(sinks) => {
                    // A score without a value, after the last that is seen.
                    row[seen.end] = sinks[tile.head];
                    run.table.softmax(&mut row[seen.start..=seen.end]);
                }
                None => run.table.softmax(scores),
            }
            row[..seen.start].fill(0.0);
            row[seen.end..].fill(0.0);
        }
    }

    /// Turns gradients of weights into gradients of scores.
    fn score_gradients(&self, run: &Run<'a>, rank: usize, tile: &Tile, p: &[f32], d: &mut [f32]) {
        let (shape, own) = (self.shape, &run.room.attention);
        let stride = d.len() / tile.queries.len();
        let rows = p.chunks_exact(stride).zip(d.chunks_exact_mut(stride));
        for (i, (query, (p, d))) in tile.queries.clone().zip(rows).enumerate() {
            let seen = self.visible(tile, query);
            let (weights, gradients) = (&p[seen.clone()], &mut d[seen.clone()]);
            let mean = run.kernels.dot(weights, gradients);
            run.kernels.softmax(weights, mean, shape.scale, gradients);
            if shape.soft_cap > 0.0 {
                // SAFETY: this rank's own room, written with the weights.
                let capped = unsafe {
                    own.capped
                        .of(rank)
                        .read(i * stride..i * stride + seen.len())
                };
                run.kernels.soft_cap(capped, shape.soft_cap, gradients);
            }
            d[..seen.start].fill(0.0);
            d[seen.end..].fill(0.0);
        }
    }
}
