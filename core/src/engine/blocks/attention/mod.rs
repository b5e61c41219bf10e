//! Attention over the keys and values of earlier tokens.
//!
//! ```text
//! absorb    K, V; rotate; store keys and values       strips of heads         | h
//! emit      Q; rotate                                 strips of heads         | h
//!           attention                                 (tile, KV head)         |
//!           quantise the attention output             rows, or with the heads | s h
//!           output projection, added to the stream    strips                  |
//! ```
//!
//! Small batches quantise all rows in every worker instead of meeting (`s`). Where KV heads divide evenly among
//! the workers, a worker keeps its heads from the projections through attention and needs no barrier
//! between (`h`). Norms over whole rows of queries and keys need one: strips of heads see parts of a row.

mod latent;
mod room;
mod tiles;

pub(in crate::engine) use room::AttentionRoom;

use super::{LayerAt, MixerInput};
use crate::engine::epilogue::{Epilogue, HeadTarget, Heads};
use crate::engine::linear::Linear;
use crate::engine::pass::{Pass, RowsRoom, activations};
use crate::engine::rows::{Order, Rows, SMALL_BATCH};
use crate::engine::runner::Runner;
use crate::kernels::activation::ActivationLayout;
use crate::kernels::contract::GROUP;
use crate::kernels::hadamard::hadamard;
use crate::kernels::table::{Activations, Quantize};
use crate::model::{Attention, HEAD_DIM_NORMED_MAX, Norm, QkNorm, Site, Vector};
use crate::state::PagesView;
use crate::team::Stop;
use crate::trace::Phase;
use core::ops::Range;
use room::head_strip;

/// Weights for a norm without weights.
static ONES: [f32; HEAD_DIM_NORMED_MAX] = [1.0; _];

/// A layer's attention at work.
#[derive(Clone, Copy)]
struct Block<'p> {
    pass: &'p Pass<'p>,
    room: &'p AttentionRoom<'p>,
    at: LayerAt<'p>,
    shape: &'p Attention,
    /// Rows of a strip of its projections.
    head_strip: usize,
    /// Layout of the rows that the output projection reads.
    layout: ActivationLayout,
    /// The pages that the layer's keys and values are in, and its number in their group.
    pages: &'p PagesView<'p>,
    layer: usize,
    /// Scores of the sinks, (n_head).
    sinks: Option<&'p [f32]>,
}

pub(super) fn run<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p AttentionRoom<'p>,
    at: LayerAt<'p>,
    shape: &'p Attention,
    input: MixerInput<'p>,
) -> Result<(), Stop> {
    let pass = runner.pass;
    let (pages, layer) = pass.state.pages(at.index);
    let block = Block {
        pass,
        room,
        at,
        shape,
        head_strip: head_strip(shape),
        layout: ActivationLayout::new(shape.n_mixed(), pass.activations().mixed),
        pages,
        layer,
        sinks: pass.model.vector(at.weights, Vector::Sinks),
    };
    let n = runner.n_rows;
    let there = match &shape.latent {
        Some(latent) => block.attend_latent(runner, latent, input)?,
        None => block.attend(runner, input)?,
    };
    if n == 0 {
        return Ok(());
    }
    let input = block.output_rows(runner, there)?;
    let weight = pass.model.matrix(at.weights, Site::AttnOutput);
    let add = super::mixer_target(runner, at);
    let output = runner.linear(at.index, Site::AttnOutput, input, n, weight, add.into());
    runner.linears(Phase::AttentionOutput, at.index, &mut [output])
}

impl<'p> Block<'p> {
    /// Computes everything before the output projection; returns whether its input is quantised already.
    fn attend(self, runner: &mut Runner<'p, '_>, input: MixerInput<'p>) -> Result<bool, Stop> {
        let (index, n, n_all) = (self.at.index, runner.n_rows, input.n_all);
        let absorbed = self.absorb(runner, input);
        let query = self.emit(runner, input.input);
        let quantized = match (absorbed, self.owns_heads(runner)) {
            (Some([key, value]), true) => self.attend_own_heads(runner, [query, key, value])?,
            (absorbed, _) => {
                self.project(runner, query, absorbed)?;
                if self.shape.qk_norm == QkNorm::Row {
                    self.norm_whole_rows(runner, n, n_all)?;
                }
                self.attend_shared(runner)?;
                false
            }
        };
        runner.barrier(index)?;
        Ok(quantized)
    }

    /// Keys and values of all rows, which later positions need; none where another layer's are read.
    fn absorb(&self, runner: &Runner<'p, '_>, input: MixerInput<'p>) -> Option<[Linear<'p>; 2]> {
        let (model, shape) = (self.pass.model, self.shape);
        if shape.keys_of.is_some() {
            return None;
        }
        let key = match shape.qk_norm {
            QkNorm::Row => Epilogue::Store(self.whole_keys()),
            QkNorm::Head | QkNorm::EachHead | QkNorm::None => Epilogue::Heads(Heads {
                norm: model.norm(self.at.weights, Vector::KeyNorm),
                rope: shape.rope,
                ..self.heads(shape.head_dim_k, HeadTarget::Keys(*self.pages, self.layer))
            }),
        };
        let value = HeadTarget::Values(*self.pages, self.layer);
        let value = Epilogue::Heads(Heads {
            norm: shape
                .norms_values
                .then(|| Norm::Rms(&ONES[..shape.head_dim_v])),
            norms_rotated: false,
            ..self.heads(shape.head_dim_v, value)
        });
        let project = |site, epilogue| {
            let weight = model.matrix(self.at.weights, site);
            runner.linear(
                self.at.index,
                site,
                input.input,
                input.n_all,
                weight,
                epilogue,
            )
        };
        let values = match shape.values_from_keys {
            true => Site::AttnK,
            false => Site::AttnV,
        };
        Some([project(Site::AttnK, key), project(values, value)])
    }

    /// Queries of the rows that are computed further.
    fn emit(&self, runner: &Runner<'p, '_>, input: Activations<'p>) -> Linear<'p> {
        let (model, shape) = (self.pass.model, self.shape);
        let rows = Rows {
            memory: self.room.q,
            stride: shape.n_query(),
        };
        let (target, rows_of_head) = match self.gates() {
            Some(gates) => (HeadTarget::GatedQueries(rows, gates), 2),
            None => (HeadTarget::Queries(rows), 1),
        };
        let query = match shape.qk_norm {
            QkNorm::Row => Epilogue::Store(rows),
            QkNorm::Head | QkNorm::EachHead | QkNorm::None => Epilogue::Heads(Heads {
                strip_rows: rows_of_head * self.head_strip,
                norm: model.norm(self.at.weights, Vector::QueryNorm),
                rope: shape.rope,
                temperature: shape.temperature,
                rotation: self.pages.config.rotation.k,
                ..self.heads(shape.head_dim_k, target)
            }),
        };
        let weight = model.matrix(self.at.weights, Site::AttnQ);
        runner.linear(
            self.at.index,
            Site::AttnQ,
            input,
            runner.n_rows,
            weight,
            query,
        )
    }

    const fn heads(&self, head_dim: usize, target: HeadTarget<'p>) -> Heads<'p> {
        Heads {
            strip_rows: self.head_strip,
            head_dim,
            norm: None,
            rope: None,
            norms_rotated: self.shape.norms_rotated,
            temperature: None,
            rotation: 0,
            target,
        }
    }

    /// Gates of the heads' outputs, before the sigmoid.
    const fn gates(&self) -> Option<Rows<'p>> {
        if !self.shape.has_gate {
            return None;
        }
        Some(Rows {
            memory: self.room.gates,
            stride: self.shape.n_out(),
        })
    }

    const fn whole_keys(&self) -> Rows<'p> {
        Rows {
            memory: self.room.k,
            stride: self.shape.n_key(),
        }
    }

    /// Whether every worker has the same number of KV heads, and a strip of a projection is a
    /// head.
    fn owns_heads(&self, runner: &Runner<'p, '_>) -> bool {
        let (shape, strip) = (self.shape, self.head_strip);
        shape.n_head_kv.is_multiple_of(runner.member.size())
            && shape.head_dim_k == strip
            && shape.head_dim_v == strip
            && shape.qk_norm != QkNorm::Row
    }

    /// Runs projections as separate phases.
    fn project(
        &self,
        runner: &mut Runner<'p, '_>,
        query: Linear<'p>,
        absorbed: Option<[Linear<'p>; 2]>,
    ) -> Result<(), Stop> {
        let index = self.at.index;
        let Some([key, value]) = absorbed else {
            return runner.linears(Phase::Qkv, index, &mut [query]);
        };
        // Strips of few queries and strips of many keys would not divide evenly in one phase.
        if query.n_rows_in < key.n_rows_in {
            runner.linears(Phase::Qkv, index, &mut [query])?;
            return runner.linears(Phase::Qkv, index, &mut [key, value]);
        }
        runner.linears(Phase::Qkv, index, &mut [query, key, value])
    }

    /// Norms over all heads of a row, of `n` queries and `n_all` keys; rotates both and stores keys.
    fn norm_whole_rows(
        &self,
        runner: &mut Runner<'p, '_>,
        n: usize,
        n_all: usize,
    ) -> Result<(), Stop> {
        let (index, order) = (self.at.index, runner.order);
        let n_keys = if self.shape.keys_of.is_some() {
            0
        } else {
            n_all
        };
        runner.share(Phase::Qkv, index, n.max(n_keys), |rank, row| {
            if row < n {
                self.norm_query(rank, order, row);
            }
            if row < n_keys {
                self.norm_key(rank, order, row);
            }
            0
        });
        runner.barrier(index)
    }

    /// The norm over all heads of a row's query; rotates it.
    fn norm_query(&self, rank: usize, order: Order, row: usize) {
        let (pass, n) = (self.pass, self.shape.n_query());
        // SAFETY: a row is one worker's, and its query was written before the last barrier.
        let query = unsafe { self.room.q.write(row * n..(row + 1) * n) };
        let norm = pass.model.norm(self.at.weights, Vector::QueryNorm);
        pass.norm_in_place(rank, query, norm);
        if let Some(rope) = self.shape.rope {
            let entry = pass.common.entry(order, row);
            pass.rotate(rope, entry, self.shape.head_dim_k, query);
        }
        if let Some(temperature) = &self.shape.temperature {
            let entry = pass.common.entry(order, row);
            pass.heat(temperature, entry, query);
        }
        hadamard(query, self.pages.config.rotation.k);
    }

    /// The norm over all heads of a row's key; rotates and stores it.
    fn norm_key(&self, rank: usize, order: Order, row: usize) {
        let (pass, n) = (self.pass, self.shape.n_key());
        // SAFETY: as in `norm_query`.
        let key = unsafe { self.room.k.write(row * n..(row + 1) * n) };
        let entry = pass.common.entry(order, row);
        let norm = pass.model.norm(self.at.weights, Vector::KeyNorm);
        pass.norm_in_place(rank, key, norm);
        if let Some(rope) = self.shape.rope {
            pass.rotate(rope, entry, self.shape.head_dim_k, key);
        }
        pass.store_keys(self.pages, self.layer, entry, 0, key);
    }

    /// Projections, attention and its output of this worker's own heads, without a barrier in between; returns
    /// whether the output is quantised.
    fn attend_own_heads(
        self,
        runner: &mut Runner<'p, '_>,
        mut projections: [Linear<'p>; 3],
    ) -> Result<bool, Stop> {
        let (index, shape, pass) = (self.at.index, self.shape, self.pass);
        runner.prepare(index, &mut projections)?;
        let [q, k, v] = projections;
        let (rank, heads) = (
            runner.member.rank(),
            runner.member.home_range(shape.n_head_kv),
        );
        let n_gqa = shape.n_gqa();
        let start = runner.now();
        let bytes = q.run(pass, rank, heads.start * n_gqa..heads.end * n_gqa)
            + k.run(pass, rank, heads.clone())
            + v.run(pass, rank, heads.clone());
        runner.record(Phase::Qkv, index, start, bytes);
        let start = runner.now();
        let n_tiles = self.n_tiles(runner.order);
        let units = heads.start * n_tiles..heads.end * n_tiles;
        let bytes = self.units(rank, runner.order, units);
        runner.record(Phase::Attention, index, start, bytes);
        let width = n_gqa * shape.head_dim_v;
        let whole_groups = (heads.len() * width).is_multiple_of(GROUP);
        if runner.n_rows <= SMALL_BATCH || !whole_groups {
            return Ok(false);
        }
        let start = runner.now();
        for row in 0..runner.n_rows {
            // SAFETY: this worker has written these columns of the attention output, and no other worker
            // accesses their groups of the quantised row.
            unsafe { self.quantize(row, heads.start * width..heads.end * width) };
        }
        runner.record(Phase::AttentionQuantize, index, start, 0);
        Ok(true)
    }

    /// Attention of all tiles and KV heads, shared out; where those are too few for the workers,
    /// by splits of the keys, with a barrier before they are merged.
    fn attend_shared(&self, runner: &mut Runner<'p, '_>) -> Result<(), Stop> {
        let (order, index) = (runner.order, self.at.index);
        let n_units = self.n_tiles(order) * self.shape.n_units();
        if let Some(n) = self.n_parts(order, runner.member.size()) {
            runner.share(Phase::Attention, index, n_units * n, |_, i| {
                self.part_of(order, i, n)
            });
            runner.barrier(index)?;
            runner.share(Phase::Attention, index, n_units, |rank, i| {
                self.merge_parts(rank, order, i, n);
                0
            });
            return Ok(());
        }
        // The tiles of a head are adjacent units: later tiles see more keys, so this evens them out.
        runner.share_ranges(Phase::Attention, index, n_units, |rank, units| {
            self.units(rank, order, units)
        });
        Ok(())
    }

    /// The quantised attention output; computed here if it does not exist yet.
    fn output_rows(
        &self,
        runner: &mut Runner<'p, '_>,
        there: bool,
    ) -> Result<Activations<'p>, Stop> {
        let (room, n) = (self.room, runner.n_rows);
        let rows = RowsRoom {
            memory: room.rows,
            layout: self.layout,
        };
        if there {
            // SAFETY: the rows were written before the last barrier.
            return Ok(unsafe { activations(&rows.memory, &rows.layout, n) });
        }
        let width = self.shape.n_mixed();
        let out = match self.shape.latent {
            Some(_) => room.latent.heads,
            None => room.out,
        };
        let phase = Phase::AttentionQuantize;
        runner.rows(phase, self.at.index, &rows, n, |runner, i, row| {
            // SAFETY: the attention output was written before the last barrier.
            let x = unsafe { out.read(i * width..(i + 1) * width) };
            runner.pass.quantize(x, &rows.layout, row);
        })
    }

    /// Quantises some columns, whole groups, of a row of the attention output.
    ///
    /// # Safety
    /// - No other worker accesses these columns at the same time, neither in f32 nor quantised.
    unsafe fn quantize(&self, row: usize, columns: Range<usize>) {
        let (layout, first_col) = (&self.layout, columns.start);
        let start = row * self.shape.n_out();
        let x = start + columns.start..start + columns.end;
        // SAFETY: by the caller.
        let x = unsafe { self.room.out.read(x) };
        let row = self.room.rows.pointer(row * layout.row_bytes());
        // SAFETY: by the caller.
        unsafe {
            self.pass.table.quantize(&Quantize {
                x,
                first_col,
                layout,
                row,
            })
        };
    }
}
