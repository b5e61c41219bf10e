//! The forward pass: the program that every rank runs.
//!
//! Phases of a layer, with a barrier after each (`|`). Small batches quantise all rows in every
//! worker instead of meeting (`s`). Where KV heads divide evenly among the workers, a worker
//! keeps its heads from the projections through attention and needs no barrier between (`h`).
//! In the best case that is 4 barriers a layer in decode and 6 in prefill.
//!
//! ```text
//! norm, quantise                                    rows                    | s
//! Q, K, V; rotate; store keys and values            strips of heads         | h
//! attention                                         (tile, KV head)         |
//! quantise the attention output                     rows, or with the heads | s h
//! output projection, added to the residual stream   strips                  |
//! norm, quantise                                    rows                    | s
//! gate, up, SwiGLU or GeGLU, quantise              strips of 256 neurons   |
//! down projection, added to the residual stream     strips                  |
//! ```
//!
//! The last layer takes keys and values of all rows, and the rest only of those that an output
//! depends on: in the midst of a prompt of none, at its end of the last. Their rows come first in it
//! (`Order`), and the residual stream's move there behind the barrier of its first norm.
//!
//! Where a family has norms behind attention and feed-forward network, a projection is stored
//! beside the residual stream, and the next norm takes it in: every worker sums the rows that it
//! needs, and one of them writes each to the stream's other buffer. That adds no barrier. Norms
//! over whole rows of queries and keys do: strips of heads see parts of a row.

use super::batch::{BatchEntry, Wants};
use super::linear::{Entries, Epilogue, Linear, LinearSite, Projection, Rows};
use super::scratch::{Order, SMALL_BATCH, Scratch};
use super::step::StepOptions;
use crate::kernels::KernelTable;
use crate::kernels::activation::ActivationLayout;
use crate::kernels::contract::GROUP;
use crate::kernels::table::{Activations, Quantize, Rope};
use crate::kv_cache::{KvView, PAGE_TOKENS};
use crate::memory::Shared;
use crate::model::{Layer, Matrix, Model, ModelConfig, Norm, NormWeights, QkNorm, Weight};
use crate::team::{Member, Stop};
use crate::trace::{Event, Phase};
use core::ops::Range;

/// Everything that the ranks of a step share.
#[derive(Clone, Copy)]
pub(super) struct Pass<'s, 'm> {
    pub(super) model: &'s Model<'m>,
    pub(super) table: &'static KernelTable,
    pub(super) scratch: &'s Scratch<'m>,
    pub(super) kv: KvView<'s>,
    pub(super) batch: &'s [BatchEntry],
    pub(super) n_outputs: usize,
    /// Tiles in each of [`Scratch::tiles`].
    pub(super) n_tiles: [usize; 2],
    /// Whether the last layer leaves out rows that no output depends on.
    pub(super) leaves_out: bool,
    pub(super) options: &'s StepOptions<'s>,
}

/// A rank on its way through a pass.
pub(super) struct Runner<'p, 't> {
    pub(super) pass: &'p Pass<'p, 'p>,
    pub(super) member: &'p mut Member<'t>,
    /// Which of its two buffers the residual stream is in.
    pub(super) stream: usize,
    /// Rows that go on, and the entries that they stand for.
    pub(super) n_rows: usize,
    pub(super) order: Order,
    /// The norm that what was stored beside the stream goes through when it is added.
    pending: Option<&'p [f32]>,
}

/// Runs the whole pass as one rank.
pub(super) fn run(pass: &Pass<'_, '_>, member: &mut Member<'_>) -> Result<(), Stop> {
    let mut runner = Runner {
        pass,
        member,
        stream: 0,
        n_rows: pass.batch.len(),
        order: Order::Batch,
        pending: None,
    };
    runner.embed()?;
    for (index, layer) in pass.model.layers().iter().enumerate() {
        let is_last = index + 1 == pass.model.layers().len();
        runner.attention(index, layer, is_last && pass.leaves_out)?;
        if runner.n_rows == 0 {
            return Ok(());
        }
        if pass.config().n_expert > 0 {
            runner.experts(index, layer)?;
        } else {
            runner.ffn(index, layer)?;
        }
    }
    runner.output()
}

impl<'p> Runner<'p, '_> {
    /// Residual stream from embeddings; rotary angles of every entry.
    fn embed(&mut self) -> Result<(), Stop> {
        let pass = self.pass;
        let (n_embd, n_rot) = (pass.config().n_embd, pass.config().n_rot);
        let scale = pass.config().embedding_scale;
        self.share(Phase::Embedding, 0, pass.batch.len(), |rank, i| {
            // SAFETY: entry i is this worker's alone in this phase.
            let x = unsafe { pass.scratch.x[0].write(i * n_embd..(i + 1) * n_embd) };
            pass.model.embed(pass.batch[i].token, x);
            #[expect(clippy::float_cmp, reason = "1 is a setting, not a result")]
            if scale != 1.0 {
                x.iter_mut().for_each(|x| *x *= scale);
            }
            // SAFETY: this worker's own row.
            let room = unsafe { pass.scratch.norm(rank).write(0..n_embd) };
            pass.model
                .embed_place(pass.batch[i].position as usize, x, room);
            for rope in 0..pass.model.n_ropes() {
                let angles = pass.angles_at(i, rope);
                // SAFETY: likewise.
                let angles = unsafe { pass.scratch.angles.write(angles) };
                let (cos, sin) = angles.split_at_mut(n_rot / 2);
                let position = pass.batch[i].position.into();
                pass.model.rope(rope).angles(position, cos, sin);
            }
            0
        });
        self.barrier(0)
    }

    /// `leaves_out`: only rows that outputs depend on go further than keys and values.
    fn attention(&mut self, index: usize, layer: &Layer, leaves_out: bool) -> Result<(), Stop> {
        let quantized = self.attend(index, layer, leaves_out)?;
        if self.n_rows == 0 {
            return Ok(());
        }
        let model = self.pass.model;
        let input = self.attention_rows(index, quantized)?;
        let site = LinearSite {
            layer: index,
            projection: Projection::AttnOutput,
            expert: None,
        };
        let weight = model.matrix(layer, Matrix::AttnOutput);
        let add = self.add_to_stream(model.norm(layer, Norm::AttnPost));
        let output = linear(site, (input, self.n_rows), weight, add, self.order);
        self.linears(Phase::AttentionOutput, index, &[output])
    }

    /// Everything before the output projection; says whether its input is quantised already.
    fn attend(&mut self, index: usize, layer: &Layer, leaves_out: bool) -> Result<bool, Stop> {
        let (pass, config) = (self.pass, self.pass.config());
        let (model, scratch, n_keys) = (pass.model, pass.scratch, self.n_rows);
        if leaves_out {
            self.order = Order::OutputsFirst;
        }
        let norm = model.stream_norm(layer, Norm::Attn);
        let input = self.norm_rows(Phase::AttentionNorm, index, norm, self.order)?;
        if leaves_out {
            self.n_rows = pass.n_outputs;
            self.keep_outputs(index);
        }
        let n = self.n_rows;
        let norms = [Norm::Query, Norm::Key].map(|norm| model.norm(layer, norm));
        let queries = Rows {
            memory: scratch.q,
            stride: config.n_head * config.head_dim_k,
        };
        let keys = Rows {
            memory: scratch.k,
            stride: config.n_head_kv * config.head_dim_k,
        };
        let whole_rows = config.qk_norm == QkNorm::Row;
        let [query, key] = if whole_rows {
            [Epilogue::Store(queries), Epilogue::Store(keys)]
        } else {
            let [query_norm, key_norm] = norms;
            [
                Epilogue::Query(queries, query_norm),
                Epilogue::Key(key_norm),
            ]
        };
        let order = self.order;
        let project = |projection, n, matrix, epilogue| {
            let site = LinearSite {
                layer: index,
                projection,
                expert: None,
            };
            let weight = model.matrix(layer, matrix);
            linear(site, (input, n), weight, epilogue, order)
        };
        let projections = [
            project(Projection::AttnQ, n, Matrix::AttnQ, query),
            project(Projection::AttnK, n_keys, Matrix::AttnK, key),
            project(Projection::AttnV, n_keys, Matrix::AttnV, Epilogue::Value),
        ];
        let quantized = if self.owns_heads() {
            self.attend_own_heads(index, &projections)
        } else {
            // Strips of few queries beside strips of many keys would not divide evenly.
            let (queries, rest) = projections.split_at(usize::from(n < n_keys));
            if !queries.is_empty() {
                self.linears(Phase::Qkv, index, queries)?;
            }
            self.linears(Phase::Qkv, index, rest)?;
            if whole_rows {
                self.share(Phase::Qkv, index, n_keys, |rank, row| {
                    if row < n {
                        pass.norm_query(rank, index, (order, row), norms[0]);
                    }
                    pass.norm_key(rank, index, (order, row), norms[1]);
                    0
                });
                self.barrier(index)?;
            }
            self.attend_shared(index)?;
            false
        };
        self.barrier(index)?;
        Ok(quantized)
    }

    /// What adds a projection to the residual stream: at once, or at the next norm where it goes
    /// through the norm `post` before.
    fn add_to_stream(&mut self, post: Option<&'p [f32]>) -> Epilogue<'p> {
        let (scratch, stride) = (self.pass.scratch, self.pass.config().n_embd);
        self.pending = post;
        match post {
            Some(_) => Epilogue::Store(Rows {
                memory: scratch.branch,
                stride,
            }),
            None => Epilogue::Add(Rows {
                memory: scratch.x[self.stream],
                stride,
            }),
        }
    }

    /// Whether every worker has the same number of KV heads, and a strip of a projection is a
    /// head.
    fn owns_heads(&self) -> bool {
        let (config, strip) = (self.pass.config(), self.pass.scratch.plan.head_strip);
        config.n_head_kv.is_multiple_of(self.member.size())
            && config.qk_norm != QkNorm::Row
            && strip == config.head_dim_k
            && strip == config.head_dim_v
    }

    /// Projections and attention of this worker's own KV heads, for all rows. Where its part
    /// of a row is whole activation groups, quantises it too, unless the batch is small; says
    /// whether it did.
    fn attend_own_heads(&mut self, index: usize, [q, k, v]: &[Linear<'_>; 3]) -> bool {
        let (pass, config, rank) = (self.pass, self.pass.config(), self.member.rank());
        let heads = self.member.home_range(config.n_head_kv);
        let n_gqa = config.n_gqa();
        let start = self.now();
        let bytes = q.run(pass, rank, heads.start * n_gqa..heads.end * n_gqa)
            + k.run(pass, rank, heads.clone())
            + v.run(pass, rank, heads.clone());
        self.record(Phase::Qkv, index, start, bytes);
        let start = self.now();
        let n_tiles = pass.n_tiles[self.order as usize];
        let bytes = pass.attend(
            rank,
            index,
            self.order,
            heads.start * n_tiles..heads.end * n_tiles,
        );
        self.record(Phase::Attention, index, start, bytes);
        let width = n_gqa * config.head_dim_v;
        let whole_groups = (heads.len() * width).is_multiple_of(GROUP);
        if self.n_rows <= SMALL_BATCH || !whole_groups {
            return false;
        }
        let start = self.now();
        for row in 0..self.n_rows {
            // SAFETY: this worker has written these columns of the attention output, and their
            // groups of the quantised row are its alone.
            unsafe { pass.quantize_attention(row, heads.start * width..heads.end * width) };
        }
        self.record(Phase::AttentionQuantize, index, start, 0);
        true
    }

    /// Attention of all tiles and KV heads, shared out; where those are too few for the workers,
    /// by splits of the keys, with a barrier before they are merged.
    fn attend_shared(&mut self, index: usize) -> Result<(), Stop> {
        let (pass, order, n_head_kv) = (self.pass, self.order, self.pass.config().n_head_kv);
        let n_tiles = pass.n_tiles[order as usize];
        let n_units = n_tiles * n_head_kv;
        if let Some(n) = pass.n_parts(index, order, self.member.size()) {
            self.share(Phase::Attention, index, n_units * n, |_, i| {
                pass.attend_part(index, order, i, n)
            });
            self.barrier(index)?;
            self.share(Phase::Attention, index, n_units, |rank, i| {
                pass.merge_parts(rank, index, (order, i), n);
                0
            });
            return Ok(());
        }
        // A head's tiles side by side: later ones see more keys, so this evens them out.
        self.share_ranges(Phase::Attention, index, n_units, |rank, units| {
            pass.attend(rank, index, order, units)
        });
        Ok(())
    }

    /// The quantised attention output: there already, or made here.
    fn attention_rows(&mut self, index: usize, there: bool) -> Result<Activations<'p>, Stop> {
        let (scratch, n) = (self.pass.scratch, self.n_rows);
        let layout = &scratch.plan.attention;
        if there {
            // SAFETY: the rows were written before the last barrier.
            return Ok(unsafe { activations(&scratch.attention_rows, layout, n) });
        }
        let width = self.pass.config().n_embd_attention();
        let rows = (&scratch.attention_rows, layout);
        self.rows(
            Phase::AttentionQuantize,
            index,
            rows,
            n,
            |runner, i, row| {
                // SAFETY: the attention output was written before the last barrier.
                let x = unsafe { scratch.attention.read(i * width..(i + 1) * width) };
                runner.pass.quantize(x, layout, row);
            },
        )
    }

    fn ffn(&mut self, index: usize, layer: &Layer) -> Result<(), Stop> {
        let pass = self.pass;
        let (model, scratch, n, order) = (pass.model, pass.scratch, self.n_rows, self.order);
        let norm = model.stream_norm(layer, Norm::Ffn);
        let input = self.norm_rows(Phase::FfnNorm, index, norm, Order::Batch)?;
        let site = |projection| LinearSite {
            layer: index,
            projection,
            expert: None,
        };
        let up = model.matrix(layer, Matrix::FfnUp);
        let rows = scratch.ffn_rows;
        let gate_up = if pass.config().is_gated {
            let gate = model.matrix(layer, Matrix::FfnGate);
            let gated = Epilogue::Gated { up: Some(up), rows };
            linear(site(Projection::FfnGate), (input, n), gate, gated, order)
        } else {
            let activated = Epilogue::Gated { up: None, rows };
            linear(site(Projection::FfnUp), (input, n), up, activated, order)
        };
        self.linears(Phase::FfnGateUp, index, &[gate_up])?;
        // SAFETY: the rows were written before the last barrier.
        let input = unsafe { activations(&scratch.ffn_rows, &scratch.plan.ffn, n) };
        let add = self.add_to_stream(model.norm(layer, Norm::FfnPost));
        let down = model.matrix(layer, Matrix::FfnDown);
        let down = linear(site(Projection::FfnDown), (input, n), down, add, order);
        self.linears(Phase::FfnDown, index, &[down])
    }

    /// Final norm of the rows that are asked for; logits of those that want them.
    fn output(&mut self) -> Result<(), Stop> {
        let (pass, scratch) = (self.pass, self.pass.scratch);
        let (n_embd, n) = (pass.config().n_embd, pass.n_outputs);
        if n == 0 {
            return Ok(());
        }
        let norm = pass.model.output_norm();
        let wants = |i| pass.batch[scratch.entry(Order::OutputsFirst, i)].wants;
        // Where the last layer left rows out, those of outputs have moved.
        let order = match self.order {
            Order::Batch => Order::OutputsFirst,
            Order::OutputsFirst => Order::Batch,
        };
        let rows = (&scratch.output_rows, &scratch.plan.output);
        let input = self.rows(Phase::OutputNorm, 0, rows, n, |runner, i, row| {
            let x = runner.stream_row(scratch.entry(order, i));
            let normed = runner.norm(x, Some(norm));
            if wants(i) == Wants::Hidden && (n > SMALL_BATCH || runner.member.rank() == 0) {
                // SAFETY: output i is one worker's: whoever has the row, or rank 0 where each
                // worker quantises all rows.
                let hidden = unsafe { scratch.hidden.write(i * n_embd..(i + 1) * n_embd) };
                hidden.copy_from_slice(normed);
            }
            pass.quantize(normed, &scratch.plan.output, row);
        })?;
        if (0..n).all(|i| wants(i) == Wants::Hidden) {
            return self.barrier(0);
        }
        let logits = Rows {
            memory: scratch.logits,
            stride: pass.config().n_vocab,
        };
        let site = LinearSite {
            layer: 0,
            projection: Projection::Output,
            expert: None,
        };
        let output = linear(
            site,
            (input, n),
            pass.model.output(),
            Epilogue::Logits(logits),
            Order::OutputsFirst,
        );
        self.linears(Phase::Output, 0, &[output])
    }

    /// Normalised and quantised rows of the residual stream; `order` is that of the rows against
    /// the stream's.
    pub(super) fn norm_rows(
        &mut self,
        phase: Phase,
        layer: usize,
        weight: Option<NormWeights<'_>>,
        order: Order,
    ) -> Result<Activations<'p>, Stop> {
        let (pass, scratch) = (self.pass, self.pass.scratch);
        let (n, n_embd) = (self.n_rows, pass.config().n_embd);
        let rows = (&scratch.embd_rows, &scratch.plan.embd);
        let next = scratch.x[1 - self.stream];
        let replaces = pass.config().norms_replace_stream;
        let moves = replaces || self.pending.is_some();
        let result = self.rows(phase, layer, rows, n, |runner, i, row| {
            let at = scratch.entry(order, i);
            let x = runner.stream_row(at);
            let normed = runner.norm(x, weight);
            if moves && (n > SMALL_BATCH || runner.member.rank() == 0) {
                // SAFETY: a row of the other buffer is one worker's: whoever has it, or rank 0
                // where each worker makes all rows. Its last readers passed a barrier.
                let next = unsafe { next.write(at * n_embd..(at + 1) * n_embd) };
                next.copy_from_slice(if replaces { normed } else { x });
            }
            pass.quantize(normed, &scratch.plan.embd, row);
        });
        self.pending = None;
        if moves {
            self.stream = 1 - self.stream;
        }
        result
    }

    /// Row `i` of the residual stream, with what is stored beside it.
    fn stream_row(&self, i: usize) -> &'p [f32] {
        let (pass, scratch) = (self.pass, self.pass.scratch);
        let row = i * pass.config().n_embd..(i + 1) * pass.config().n_embd;
        // SAFETY: this buffer of the stream is only read in this phase.
        let x = unsafe { scratch.x[self.stream].read(row.clone()) };
        let Some(post) = self.pending else {
            return x;
        };
        // SAFETY: written before the last barrier.
        let branch = unsafe { scratch.branch.read(row) };
        // SAFETY: this rank's own row, whose last use is over.
        let sum = unsafe { scratch.sum(self.member.rank()).write(0..x.len()) };
        let eps = pass.config().rms_eps;
        pass.table.rms_norm(branch, post, eps, sum);
        sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        sum
    }

    /// Moves this worker's columns of the rows that go on to the front of the residual stream.
    /// After a barrier behind its readers, and before the one that its next readers wait at.
    fn keep_outputs(&self, index: usize) {
        let start = self.now();
        let (scratch, n_embd) = (self.pass.scratch, self.pass.config().n_embd);
        let (stream, columns) = (scratch.x[self.stream], self.member.home_range(n_embd));
        for row in 0..self.n_rows {
            let from = scratch.entry(Order::OutputsFirst, row) * n_embd;
            if from == row * n_embd {
                continue;
            }
            let at = |row: usize| row + columns.start..row + columns.end;
            // SAFETY: these columns are this worker's until the next barrier. Rows move forward
            // in their order, so none is overwritten before it has moved.
            let from = unsafe { stream.read(at(from)) };
            // SAFETY: as above; another row.
            let to = unsafe { stream.write(at(row * n_embd)) };
            to.copy_from_slice(from);
        }
        self.record(Phase::AttentionNorm, index, start, 0);
    }

    /// The norm of a row, in this rank's own memory; the row itself where there is no norm.
    fn norm(&self, x: &'p [f32], weights: Option<NormWeights<'_>>) -> &'p [f32] {
        let Some(NormWeights { weight, bias }) = weights else {
            return x;
        };
        let pass = self.pass;
        // SAFETY: this rank's own row, whose last use is over.
        let out = unsafe { pass.scratch.norm(self.member.rank()).write(0..x.len()) };
        let eps = pass.config().rms_eps;
        match bias {
            Some(bias) => pass.table.layer_norm(x, weight, bias, eps, out),
            None => pass.table.rms_norm(x, weight, eps, out),
        }
        out
    }

    /// Rows for a linear layer, made by `make`: all of them by every worker in memory of its
    /// own for small batches, else shared out, with a barrier.
    fn rows(
        &mut self,
        phase: Phase,
        layer: usize,
        (shared, layout): (&Shared<'p, u8>, &ActivationLayout),
        n: usize,
        make: impl Fn(&Self, usize, *mut u8),
    ) -> Result<Activations<'p>, Stop> {
        let row_bytes = layout.row_bytes();
        if n <= SMALL_BATCH {
            let start = self.now();
            let own = self.pass.scratch.private_rows(self.member.rank());
            (0..n).for_each(|i| make(self, i, own.pointer(i * row_bytes)));
            self.record(phase, layer, start, 0);
            // SAFETY: this rank's own memory, written to again only when these rows are used.
            return Ok(unsafe { activations(&own, layout, n) });
        }
        let start = self.now();
        for i in self.member.home_range(n) {
            make(self, i, shared.pointer(i * row_bytes));
        }
        self.record(phase, layer, start, 0);
        self.barrier(layer)?;
        // SAFETY: every row was written before the barrier; none is written while it is read.
        Ok(unsafe { activations(shared, layout, n) })
    }

    /// Runs linear layers side by side as one phase.
    fn linears(&mut self, phase: Phase, layer: usize, linears: &[Linear<'_>]) -> Result<(), Stop> {
        let pass = self.pass;
        let n = linears.iter().map(|linear| linear.n_strips(pass)).sum();
        self.share_ranges(phase, layer, n, |rank, strips| {
            let (mut first, mut bytes) = (0, 0);
            for linear in linears {
                let n = linear.n_strips(pass);
                let start = strips.start.clamp(first, first + n) - first;
                let end = strips.end.clamp(first, first + n) - first;
                bytes += linear.run(pass, rank, start..end);
                first += n;
            }
            bytes
        });
        self.barrier(layer)
    }

    /// Shares `0..n` out among the ranks; `work` returns the bytes it read.
    pub(super) fn share(
        &mut self,
        phase: Phase,
        layer: usize,
        n: usize,
        mut work: impl FnMut(usize, usize) -> usize,
    ) {
        self.share_ranges(phase, layer, n, |rank, range| {
            range.map(|i| work(rank, i)).sum()
        });
    }

    /// Likewise, a range at a time.
    fn share_ranges(
        &mut self,
        phase: Phase,
        layer: usize,
        n: usize,
        mut work: impl FnMut(usize, Range<usize>) -> usize,
    ) {
        let (start, mut bytes) = (self.now(), 0);
        self.member
            .share(n, |member, range| bytes += work(member.rank(), range));
        self.record(phase, layer, start, bytes);
    }

    pub(super) fn barrier(&mut self, layer: usize) -> Result<(), Stop> {
        let start = self.now();
        let result = self.member.barrier();
        self.record(Phase::Barrier, layer, start, 0);
        result
    }

    pub(super) fn now(&self) -> u64 {
        self.pass.options.trace.map_or(0, |trace| trace.now())
    }

    pub(super) fn record(&self, phase: Phase, layer: usize, start_ticks: u64, bytes: usize) {
        if let Some(trace) = self.pass.options.trace {
            let event = Event {
                phase,
                rank: u8::try_from(self.member.rank()).unwrap_or(u8::MAX),
                layer: u16::try_from(layer).unwrap_or(u16::MAX),
                start_ticks,
                end_ticks: trace.now(),
                bytes: bytes as u64,
            };
            // SAFETY: a rank is joined once per step, so this is the only one with this rank.
            unsafe { trace.push(event) };
        }
    }
}

pub(super) const fn linear<'a>(
    site: LinearSite,
    (input, n_rows_in): (Activations<'a>, usize),
    weight: Weight<'a>,
    epilogue: Epilogue<'a>,
    order: Order,
) -> Linear<'a> {
    Linear {
        site,
        input,
        n_rows_in,
        weight,
        epilogue,
        entries: Entries::Each(order),
    }
}

/// The first `n` rows as activations.
///
/// # Safety
/// - Nobody writes the rows while the result lives.
pub(super) unsafe fn activations<'a>(
    rows: &Shared<'a, u8>,
    layout: &ActivationLayout,
    n: usize,
) -> Activations<'a> {
    Activations {
        layout: *layout,
        // SAFETY: by the caller.
        bytes: unsafe { rows.read(0..n * layout.row_bytes()) },
    }
}

impl<'s> Pass<'s, '_> {
    pub(super) const fn config(&self) -> &'s ModelConfig {
        self.model.config()
    }

    /// Number of the entry that row `row` of a linear layer's input belongs to.
    pub(super) fn entry_of_row(&self, entries: Entries<'_>, row: usize) -> usize {
        match entries {
            Entries::Each(order) => self.scratch.entry(order, row),
            Entries::Pairs(pairs, order) => self.scratch.entry(order, pairs.token(row)),
        }
    }

    /// Keys that entry `entry` sees, from the first of its sequence on.
    pub(super) fn n_keys(&self, entry: usize) -> usize {
        let BatchEntry {
            sequence, position, ..
        } = self.batch[entry];
        if self.config().is_causal {
            return position as usize + 1;
        }
        let sequence = sequence as usize;
        // SAFETY: written before the step began. An encoder's sequences begin in its batch.
        unsafe { self.scratch.pending.read(sequence..sequence + 1)[0] as usize }
    }

    /// Quantises a whole row.
    fn quantize(&self, x: &[f32], layout: &ActivationLayout, row: *mut u8) {
        // SAFETY: callers pass rows that are theirs alone in the phase at hand.
        unsafe {
            self.table.quantize(&Quantize {
                x,
                first_col: 0,
                layout,
                row,
            })
        };
    }

    /// Quantises some columns, whole groups, of a row of the attention output.
    ///
    /// # Safety
    /// - Nobody else accesses these columns meanwhile, neither in f32 nor quantised.
    unsafe fn quantize_attention(&self, row: usize, columns: Range<usize>) {
        let (layout, first_col) = (&self.scratch.plan.attention, columns.start);
        let start = row * self.config().n_embd_attention();
        // SAFETY: by the caller.
        let x = unsafe {
            self.scratch
                .attention
                .read(start + columns.start..start + columns.end)
        };
        let row = self
            .scratch
            .attention_rows
            .pointer(row * layout.row_bytes());
        // SAFETY: by the caller.
        unsafe {
            self.table.quantize(&Quantize {
                x,
                first_col,
                layout,
                row,
            })
        };
    }

    /// Where the angles of entry `entry` for rotation number `rope` are.
    fn angles_at(&self, entry: usize, rope: usize) -> Range<usize> {
        let n_rot = self.config().n_rot;
        let start = (entry * self.model.n_ropes() + rope) * n_rot;
        start..start + n_rot
    }

    /// Rotates whole query or key heads of entry `entry` as layer `layer` does.
    pub(super) fn rotate(&self, layer: usize, entry: usize, heads: &mut [f32]) {
        let config = self.config();
        let rope = self.model.rope_index(layer);
        // SAFETY: angles were written before the first barrier.
        let angles = unsafe { self.scratch.angles.read(self.angles_at(entry, rope)) };
        let (cos, sin) = angles.split_at(config.n_rot / 2);
        for head in heads.chunks_exact_mut(config.head_dim_k) {
            self.table.rope(&mut Rope {
                head,
                cos,
                sin,
                pairing: config.rope_pairing,
            });
        }
    }

    /// The norm of each piece of `x` that is as long as the weights (a head, or all heads), in
    /// place.
    pub(super) fn norm_in_place(&self, rank: usize, x: &mut [f32], weight: Option<&[f32]>) {
        let Some(weight) = weight else {
            return;
        };
        // SAFETY: this rank's own row, whose last use is over.
        let out = unsafe { self.scratch.norm(rank).write(0..weight.len()) };
        for x in x.chunks_exact_mut(weight.len()) {
            self.table.rms_norm(x, weight, self.config().rms_eps, out);
            x.copy_from_slice(out);
        }
    }

    /// The norm over all heads of a row's query; rotates it.
    fn norm_query(
        &self,
        rank: usize,
        layer: usize,
        (order, row): (Order, usize),
        norm: Option<&[f32]>,
    ) {
        let n = self.config().n_head * self.config().head_dim_k;
        // SAFETY: a row is one worker's, and its query was written before the last barrier.
        let query = unsafe { self.scratch.q.write(row * n..(row + 1) * n) };
        self.norm_in_place(rank, query, norm);
        self.rotate(layer, self.scratch.entry(order, row), query);
    }

    /// The norm over all heads of a row's key; rotates and stores it.
    fn norm_key(
        &self,
        rank: usize,
        layer: usize,
        (order, row): (Order, usize),
        norm: Option<&[f32]>,
    ) {
        let n = self.config().n_head_kv * self.config().head_dim_k;
        // SAFETY: as in `norm_query`.
        let key = unsafe { self.scratch.k.write(row * n..(row + 1) * n) };
        let entry = self.scratch.entry(order, row);
        self.norm_in_place(rank, key, norm);
        self.rotate(layer, entry, key);
        self.store_keys(layer, entry, 0, key);
    }

    /// Stores the keys of whole heads of an entry; `first_row` is their first output row.
    pub(super) fn store_keys(&self, layer: usize, entry: usize, first_row: usize, keys: &[f32]) {
        let (head_dim, layout) = (self.config().head_dim_k, &self.kv.config.layout);
        for (i, key) in keys.chunks_exact(head_dim).enumerate() {
            let (block, slot) = self.kv_slot(layer, entry, first_row / head_dim + i);
            // SAFETY: the slot was reserved for this step and this head is this strip's.
            unsafe { self.table.store_key(layout, block, slot, key) };
        }
    }

    /// Stores the values of whole heads of an entry.
    pub(super) fn store_values(
        &self,
        layer: usize,
        entry: usize,
        first_row: usize,
        values: &[f32],
    ) {
        let (head_dim, layout) = (self.config().head_dim_v, &self.kv.config.layout);
        for (i, value) in values.chunks_exact(head_dim).enumerate() {
            let (block, slot) = self.kv_slot(layer, entry, first_row / head_dim + i);
            // SAFETY: as for keys.
            unsafe { self.table.store_value(layout, block, slot, value) };
        }
    }

    fn kv_slot(&self, layer: usize, entry: usize, head: usize) -> (*mut u8, usize) {
        let entry = &self.batch[entry];
        let (sequence, position) = (entry.sequence as usize, entry.position as usize);
        let block = self
            .kv
            .pointer(sequence, position / PAGE_TOKENS, layer, head);
        (block, position % PAGE_TOKENS)
    }
}
