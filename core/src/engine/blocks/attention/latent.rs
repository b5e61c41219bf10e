//! Latent attention: one row for a token stands for the keys and values of all its heads.
//!
//! ```text
//! absorb    latent row and turned part of the key                strips        |
//! emit      queries, or the row that they are made of            strips        |
//!           norm of the latent row; stored; norm of that row     rows          |
//!           queries of that row                                  strips        | q
//!           turned part of each query; the rest quantised        rows          |
//!           queries against latent rows                          heads         |
//!           attention                                            (tile, group) |
//!           outputs quantised                                    rows          |
//!           outputs of each head                                 heads         |
//! ```
//!
//! `q`: in models that compute queries from a row of their own. The projections from latent rows to keys and values are
//! absorbed: a query is multiplied by its head's `attn_k_b` once, and a head's output by its `attn_v_b`. That is one
//! form for prompts and for single tokens, so that bits do not depend on how a prompt is cut.
//!
//! Source: DeepSeek-AI 2024, arXiv 2405.04434.

use super::Block;
use crate::engine::adapt::Adapted;
use crate::engine::blocks::MixerInput;
use crate::engine::epilogue::Epilogue;
use crate::engine::limits::EngineLimits;
use crate::engine::linear::Linear;
use crate::engine::pass::{RowsRoom, activations, activations_of};
use crate::engine::rows::{Order, Rows};
use crate::engine::runner::Runner;
use crate::engine::scratch::Room;
use crate::kernels::activation::ActivationLayout;
use crate::kernels::hadamard::hadamard;
use crate::memory::{MemoryError, Shared};
use crate::model::{Attention, Latent, ModelConfig, Site, Vector};
use crate::team::Stop;
use crate::trace::Phase;

/// Memory of latent attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatentRoom<'m> {
    /// Rows that queries are computed from, (n_batch, q_rank).
    q_a: Shared<'m, f32>,
    /// Queries of all heads before they are absorbed, later the input of the output projection,
    /// (n_batch, n_head * head length).
    pub(super) heads: Shared<'m, f32>,
    /// The heads quantised, head by head: (n_head, n_batch) rows; before that, the rows that queries are computed from.
    rows: Shared<'m, u8>,
    n_batch: usize,
}

impl<'m> LatentRoom<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let kinds = activations_of(config, limits).mixed;
        let row_bytes = |len: usize| match len {
            0 => 0,
            _ => ActivationLayout::new(len, kinds).row_bytes(),
        };
        let shapes = || {
            let latent = |shape: &Attention| Some((shape.n_head, shape.latent?));
            config.attentions().filter_map(latent)
        };
        let bytes = |(n_head, latent): (usize, Latent)| {
            let head = row_bytes(latent.head_dim_nope).max(row_bytes(latent.kv_rank));
            (n_head * head).max(row_bytes(latent.q_rank))
        };
        let width = |(n_head, latent): (usize, Latent)| {
            n_head * (latent.head_dim_nope + latent.head_dim_rope).max(latent.head_dim_v)
        };
        let n_batch = limits.n_batch;
        let q_rank = shapes().map(|(_, latent)| latent.q_rank).max();
        Ok(Self {
            q_a: room.buffer(n_batch, q_rank.unwrap_or(0))?,
            heads: room.buffer(n_batch, shapes().map(width).max().unwrap_or(0))?,
            rows: room.buffer(n_batch, shapes().map(bytes).max().unwrap_or(0))?,
            n_batch,
        })
    }

    /// The rows of a head.
    fn of_head(&self, head: usize, layout: &ActivationLayout) -> Shared<'m, u8> {
        let bytes = self.n_batch * layout.row_bytes();
        self.rows.part(head * bytes..(head + 1) * bytes)
    }
}

impl<'p> Block<'p> {
    /// Everything before the output projection, whose input is in f32 then.
    pub(super) fn attend_latent(
        self,
        runner: &mut Runner<'p, '_>,
        latent: &Latent,
        input: MixerInput<'p>,
    ) -> Result<bool, Stop> {
        let (index, n) = (self.at.index, runner.n_rows);
        self.project_latent(runner, latent, input)?;
        let order = runner.order;
        let q_layout = self.layout_of(latent.q_rank);
        runner.share(Phase::Qkv, index, n.max(input.n_all), |rank, row| {
            if row < input.n_all {
                self.store_latent(rank, latent, order, row);
            }
            if let Some(layout) = q_layout.filter(|_| row < n) {
                self.norm_query_row(rank, latent, &layout, row);
            }
            0
        });
        runner.barrier(index)?;
        if n == 0 {
            return Ok(false);
        }
        if let Some(layout) = q_layout {
            // SAFETY: the rows were written before the last barrier.
            let rows = unsafe { activations(&self.room.latent.rows, &layout, n) };
            let weight = self.pass.model.matrix(self.at.weights, Site::AttnQB);
            let epilogue = Epilogue::Store(self.query_heads(latent));
            let query = runner.linear(index, Site::AttnQB, rows, n, weight, epilogue);
            runner.linears(Phase::Qkv, index, &mut [query])?;
        }
        let nope = self.layout(latent.head_dim_nope);
        runner.share(Phase::Qkv, index, n, |_, row| {
            self.split_query(latent, &nope, order, row);
            0
        });
        runner.barrier(index)?;
        let absorbed = Rows {
            memory: self.room.q,
            stride: self.shape.n_query(),
        };
        self.each_head(runner, Site::AttnKB, &nope, absorbed, self.shape.head_dim_k)?;
        self.rotate_queries(runner)?;
        self.attend_shared(runner)?;
        runner.barrier(index)?;
        let ranks = self.layout(latent.kv_rank);
        runner.share(Phase::AttentionQuantize, index, n, |_, row| {
            self.quantize_outputs(latent, &ranks, row);
            0
        });
        runner.barrier(index)?;
        let outputs = Rows {
            memory: self.room.latent.heads,
            stride: self.shape.n_mixed(),
        };
        self.each_head(runner, Site::AttnVB, &ranks, outputs, latent.head_dim_v)?;
        Ok(false)
    }

    /// Rotates queries if the keys in the cache are rotated; ends with a barrier.
    fn rotate_queries(&self, runner: &mut Runner<'p, '_>) -> Result<(), Stop> {
        let (len, n) = (self.pages.config.rotation.k, self.shape.n_query());
        if len == 0 {
            return Ok(());
        }
        runner.share(Phase::Qkv, self.at.index, runner.n_rows, |_, row| {
            // SAFETY: written before the last barrier; a row is one worker's.
            hadamard(unsafe { self.room.q.write(row * n..(row + 1) * n) }, len);
            0
        });
        runner.barrier(self.at.index)
    }

    /// Projects the latent rows of all tokens, and the queries of the rows computed further or the rows they come from.
    fn project_latent(
        &self,
        runner: &mut Runner<'p, '_>,
        latent: &Latent,
        input: MixerInput<'p>,
    ) -> Result<(), Stop> {
        let (index, n) = (self.at.index, runner.n_rows);
        let linear = |runner: &Runner<'p, '_>, site, n, rows| {
            let weight = self.pass.model.matrix(self.at.weights, site);
            runner.linear(index, site, input.input, n, weight, Epilogue::Store(rows))
        };
        let rows = linear(runner, Site::AttnKvA, input.n_all, self.whole_keys());
        let query = match latent.q_rank {
            0 => linear(runner, Site::AttnQ, n, self.query_heads(latent)),
            stride => {
                let memory = self.room.latent.q_a;
                linear(runner, Site::AttnQA, n, Rows { memory, stride })
            }
        };
        // Strips of few queries and strips of many rows would not divide evenly in one phase.
        if n < input.n_all {
            runner.linears(Phase::Qkv, index, &mut [query])?;
            return runner.linears(Phase::Qkv, index, &mut [rows]);
        }
        runner.linears(Phase::Qkv, index, &mut [query, rows])
    }

    const fn query_heads(&self, latent: &Latent) -> Rows<'p> {
        Rows {
            memory: self.room.latent.heads,
            stride: self.shape.n_head * (latent.head_dim_nope + latent.head_dim_rope),
        }
    }

    fn layout(&self, len: usize) -> ActivationLayout {
        let kinds = activations_of(self.pass.config(), self.pass.limits).mixed;
        ActivationLayout::new(len, kinds)
    }

    /// As [`Self::layout`]; `None` for a row that does not exist.
    fn layout_of(&self, len: usize) -> Option<ActivationLayout> {
        (len > 0).then(|| self.layout(len))
    }

    /// Normalises a token's latent row, rotates what follows it, and stores both.
    fn store_latent(&self, rank: usize, latent: &Latent, order: Order, row: usize) {
        let (pass, n) = (self.pass, self.shape.n_key());
        // SAFETY: a row is one worker's, and was written before the last barrier.
        let key = unsafe { self.room.k.write(row * n..(row + 1) * n) };
        let entry = pass.common.entry(order, row);
        let (value, turned) = key.split_at_mut(latent.kv_rank);
        let norm = pass.model.norm(self.at.weights, Vector::LatentNorm);
        pass.norm_in_place(rank, value, norm);
        if let Some(rope) = self.shape.rope {
            pass.rotate(rope, entry, latent.head_dim_rope, turned);
        }
        // SAFETY: this worker's own row; its last use, the norm, is over.
        let copy = unsafe { pass.common.norms.of(rank).write(0..latent.kv_rank) };
        copy.copy_from_slice(value);
        pass.store_values(self.pages, self.layer, entry, 0, copy);
        pass.store_keys(self.pages, self.layer, entry, 0, key);
    }

    /// Normalises and quantises the row that a token's queries are made of.
    fn norm_query_row(&self, rank: usize, latent: &Latent, layout: &ActivationLayout, row: usize) {
        let (pass, n) = (self.pass, latent.q_rank);
        let room = &self.room.latent;
        // SAFETY: as in `store_latent`.
        let x = unsafe { room.q_a.write(row * n..(row + 1) * n) };
        let norm = pass.model.norm(self.at.weights, Vector::QueryANorm);
        pass.norm_in_place(rank, x, norm);
        pass.quantize(x, layout, room.rows.pointer(row * layout.row_bytes()));
    }

    /// Rotates the rotated part of a token's queries into the place where attention reads it; quantises the rest.
    fn split_query(&self, latent: &Latent, layout: &ActivationLayout, order: Order, row: usize) {
        let (pass, shape, room) = (self.pass, self.shape, &self.room.latent);
        let head_dim = latent.head_dim_nope + latent.head_dim_rope;
        let start = row * shape.n_head * head_dim;
        // SAFETY: written before the last barrier; a row is one worker's.
        let heads = unsafe { room.heads.write(start..start + shape.n_head * head_dim) };
        let entry = pass.common.entry(order, row);
        for (i, head) in heads.chunks_exact_mut(head_dim).enumerate() {
            if let Some(temperature) = &shape.temperature {
                pass.heat(temperature, entry, head);
            }
            let (nope, turned) = head.split_at_mut(latent.head_dim_nope);
            if let Some(rope) = shape.rope {
                pass.rotate(rope, entry, latent.head_dim_rope, turned);
            }
            let at = row * shape.n_query() + i * shape.head_dim_k + latent.kv_rank;
            // SAFETY: these columns are this row's, and no other phase's.
            let to = unsafe { self.room.q.write(at..at + latent.head_dim_rope) };
            to.copy_from_slice(turned);
            let rows = room.of_head(i, layout);
            pass.quantize(nope, layout, rows.pointer(row * layout.row_bytes()));
        }
    }

    /// Quantises the outputs of a token's heads, each of which is a sum of latent rows.
    fn quantize_outputs(&self, latent: &Latent, layout: &ActivationLayout, row: usize) {
        let n = self.shape.n_out();
        // SAFETY: written before the last barrier.
        let out = unsafe { self.room.out.read(row * n..(row + 1) * n) };
        for (i, head) in out.chunks_exact(latent.kv_rank).enumerate() {
            let rows = self.room.latent.of_head(i, layout);
            let row = rows.pointer(row * layout.row_bytes());
            self.pass.quantize(head, layout, row);
        }
    }

    /// Multiplies the rows of each head by its matrix, into columns of `to` that are `stride` apart; ends with a
    /// barrier.
    fn each_head(
        &self,
        runner: &mut Runner<'p, '_>,
        site: Site,
        layout: &ActivationLayout,
        to: Rows<'p>,
        stride: usize,
    ) -> Result<(), Stop> {
        let (pass, index, n) = (self.pass, self.at.index, runner.n_rows);
        let linear = |runner: &Runner<'p, '_>, head: usize| -> Linear<'p> {
            let rows = RowsRoom {
                memory: self.room.latent.of_head(head, layout),
                layout: *layout,
            };
            // SAFETY: the rows were written before the last barrier.
            let rows = unsafe { activations(&rows.memory, &rows.layout, n) };
            let weight = pass.model.head_matrix(self.at.weights, site, head);
            let start = head * stride;
            let memory = to.memory.part(start..to.memory.len());
            let to = Rows { memory, ..to };
            let part = u32::try_from(head).ok();
            let linear = runner.linear(index, site, rows, n, weight, Epilogue::Store(to));
            let linear = Linear { part, ..linear };
            Linear {
                adapted: pass.adapts(linear.at(site)).then_some(Adapted::Tile),
                ..linear
            }
        };
        let start = runner.now();
        let mut bytes = 0;
        let heads = runner.member.home_range(self.shape.n_head);
        let rank = runner.member.rank();
        for head in heads {
            let linear = linear(runner, head);
            bytes += linear.run(pass, rank, 0..linear.n_strips());
        }
        runner.record(Phase::Qkv, index, start, bytes);
        runner.barrier(index)
    }
}
