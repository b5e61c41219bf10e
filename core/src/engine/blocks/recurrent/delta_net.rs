//! The gated delta net (Qwen3-Next, Qwen3.5): a state that decays by a factor and corrects its answer to a key.
//!
//! Source: llama.cpp, `src/models/qwen35.cpp` and `src/models/delta-net-base.cpp`; eps inside the root of the
//! keys' lengths, as since its pull request 28068.

use super::{Block, Column, Columns, Convolution, Heads, RecurrentRoom, two_of};
use crate::engine::blocks::{LayerAt, MixerInput, mixer_target};
use crate::engine::epilogue::Epilogue;
use crate::engine::linear::Linear;
use crate::engine::rows::Rows;
use crate::engine::runner::Runner;
use crate::kernels::contract::sqrt;
use crate::kernels::table::Rule;
use crate::model::{DeltaKeys, DeltaNet, Norm, Site, Vector};
use crate::team::Stop;
use crate::trace::Phase;
use heapless::Vec;

pub(in crate::engine::blocks) fn run<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p RecurrentRoom<'p>,
    at: LayerAt<'p>,
    shape: &'p DeltaNet,
    input: MixerInput<'p>,
) -> Result<(), Stop> {
    let (pass, model, n) = (runner.pass, runner.pass.model, runner.n_rows);
    project(runner, room, at, shape, input)?;
    let vector = |vector| {
        let vector = model.vector(at.weights, vector);
        vector.expect("loaded with every delta net")
    };
    let (states, offset) = pass.state.states(at.index);
    let n_channel = shape.n_channel();
    let block = Block {
        pass,
        room,
        states: *states,
        offset,
        convolution: Convolution {
            n_taps: shape.n_taps,
            n_channel,
            n_in: shape.n_in(),
            column: Column::Of(shape),
            taps: vector(Vector::SsmConv),
            bias: None,
        },
        heads: Heads {
            rule: Rule::Delta,
            n_head: shape.n_head_v,
            n_key: shape.head_dim_k,
            n_value: shape.head_dim_v,
        },
    };
    let net = Net {
        block: &block,
        shape,
        steps: [vector(Vector::SsmDt), vector(Vector::SsmA)],
        norm: model
            .norm(at.weights, Vector::SsmNorm)
            .expect("loaded with every delta net"),
    };
    net.prepare(runner, at.index)?;
    block.recur(runner, at.index, |head| Columns {
        key: shape.n_key() + shape.key_head(head) * shape.head_dim_k,
        query: shape.key_head(head) * shape.head_dim_k,
        value: 2 * shape.n_key() + head * shape.head_dim_v,
    })?;
    if n == 0 {
        return Ok(());
    }
    let (order, rows) = (runner.order, room.rows(pass, shape.n_value()));
    let mixed = runner.rows(Phase::Recurrence, at.index, &rows, n, |runner, row, to| {
        let entry = pass.common.entry(order, row);
        let y = net.gate(runner.member.rank(), row, entry);
        pass.quantize(y, &rows.layout, to);
    })?;
    let weight = model.matrix(at.weights, Site::SsmOut);
    let add = mixer_target(runner, at);
    let output = runner.linear(at.index, Site::SsmOut, mixed, n, weight, add.into());
    runner.linears(Phase::AttentionOutput, at.index, &mut [output])
}

/// All projections: queries, keys, values, rates and steps of all rows, gates of the rows that are computed further.
fn project<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p RecurrentRoom<'p>,
    at: LayerAt<'p>,
    shape: &DeltaNet,
    input: MixerInput<'p>,
) -> Result<(), Stop> {
    let (model, n, n_head) = (runner.pass.model, runner.n_rows, shape.n_head_v);
    let linear = |runner: &Runner<'p, '_>, site, n, epilogue| {
        let weight = model.matrix(at.weights, site);
        runner.linear(at.index, site, input.input, n, weight, epilogue)
    };
    let steps = |first: usize| {
        let end = 2 * n_head * runner.pass.limits.n_batch;
        Epilogue::StoreEntry(Rows {
            memory: room.steps.part(first..end),
            stride: 2 * n_head,
        })
    };
    let channels = Epilogue::StoreEntry(Rows {
        memory: room.input,
        stride: shape.n_in(),
    });
    let site = match shape.is_joint {
        true => Site::SsmIn,
        false => Site::SsmQkv,
    };
    let mut all: Vec<Linear<'p>, 4> = Vec::new();
    let mut push = |linear| {
        all.push(linear)
            .unwrap_or_else(|_| unreachable!("four at most"))
    };
    push(linear(runner, site, input.n_all, channels));
    match shape.keys {
        DeltaKeys::Alternate => {
            push(linear(runner, Site::SsmBeta, input.n_all, steps(0)));
            push(linear(runner, Site::SsmAlpha, input.n_all, steps(n_head)));
        }
        DeltaKeys::Neighbours => push(linear(runner, Site::SsmBa, input.n_all, steps(0))),
    }
    if n > 0 && !shape.is_joint {
        let z = Epilogue::Store(Rows {
            memory: room.z,
            stride: shape.n_value(),
        });
        let z = linear(runner, Site::SsmGate, n, z);
        if n < input.n_all {
            // Strips of few rows and strips of many rows would not divide evenly in one phase.
            runner.linears(Phase::Qkv, at.index, &mut [z])?;
        } else {
            push(z);
        }
    }
    runner.linears(Phase::Qkv, at.index, &mut all)
}

/// A delta net at work.
struct Net<'b, 'p> {
    block: &'b Block<'p>,
    shape: &'p DeltaNet,
    /// Bias and factor of the steps.
    steps: [&'p [f32]; 2],
    /// (head_dim_v)
    norm: Norm<'p>,
}

impl<'p> Net<'_, 'p> {
    /// Convolution of all heads of queries, keys and values, the lengths of the first two, rates and decays.
    fn prepare(&self, runner: &mut Runner<'p, '_>, layer: usize) -> Result<(), Stop> {
        let n_unit = 2 * self.shape.n_head_k + self.shape.n_head_v + 1;
        let n = self.block.pass.batch.len() * n_unit;
        runner.share(Phase::Recurrence, layer, n, |rank, i| {
            self.unit(rank, i / n_unit, i % n_unit);
            0
        });
        runner.barrier(layer)
    }

    /// A head of queries, keys or values of an entry; the last unit: its rates and decays.
    fn unit(&self, rank: usize, entry: usize, unit: usize) {
        let shape = self.shape;
        let n_head_k = shape.n_head_k;
        let (start, len) = match unit.checked_sub(2 * n_head_k) {
            None => (unit * shape.head_dim_k, shape.head_dim_k),
            Some(head) if head < shape.n_head_v => {
                let start = 2 * shape.n_key() + head * shape.head_dim_v;
                (start, shape.head_dim_v)
            }
            Some(_) => return self.rate(rank, entry),
        };
        // SAFETY: a unit is one worker's.
        let head = unsafe { self.block.convolve(entry, start..start + len) };
        if unit < 2 * n_head_k {
            #[expect(clippy::cast_precision_loss, reason = "heads are at most 4096 long")]
            let scale = match unit < n_head_k {
                true => 1.0 / sqrt(shape.head_dim_k as f32),
                false => 1.0,
            };
            let pass = self.block.pass;
            pass.table.l2_norm(head, pass.config().norm_eps, scale);
        }
    }

    /// Rates and decays of an entry's heads.
    fn rate(&self, rank: usize, entry: usize) {
        let (block, shape) = (self.block, self.shape);
        let (n, table) = (shape.n_head_v, block.pass.table);
        let range = 2 * n * entry..2 * n * (entry + 1);
        // SAFETY: written before the last barrier.
        let projected = unsafe { block.room.steps.read(range.clone()) };
        // SAFETY: this rank's own memory, whose last use is over.
        let [rates, steps] = unsafe { two_of(block.room.own.of(rank), n) };
        match shape.keys {
            DeltaKeys::Alternate => {
                rates.copy_from_slice(&projected[..n]);
                steps.copy_from_slice(&projected[n..]);
            }
            DeltaKeys::Neighbours => {
                let per_key = n / shape.n_head_k;
                let heads = rates
                    .chunks_exact_mut(per_key)
                    .zip(steps.chunks_exact_mut(per_key));
                for (of_key, (rates, steps)) in projected.chunks_exact(2 * per_key).zip(heads) {
                    rates.copy_from_slice(&of_key[..per_key]);
                    steps.copy_from_slice(&of_key[per_key..]);
                }
            }
        }
        // SAFETY: a unit is one worker's.
        let (rate, decay) = unsafe { block.room.rates.write(range) }.split_at_mut(n);
        rate.copy_from_slice(rates);
        table.sigmoid(rate);
        table.decays(steps, self.steps[0], self.steps[1], decay);
    }

    /// The output of a row: the norm of each head, times `silu(z)`; in this rank's own memory.
    fn gate(&self, rank: usize, row: usize, entry: usize) -> &'p [f32] {
        let (block, n) = (self.block, self.shape.n_value());
        let pass = block.pass;
        // SAFETY: this rank's own memory, whose last use is over.
        let [normed, y] = unsafe { two_of(block.room.own.of(rank), n) };
        let dim = self.shape.head_dim_v;
        let heads = normed.chunks_exact_mut(dim).zip(y.chunks_exact_mut(dim));
        for (head, (x, (normed, y))) in block.output(entry).chunks_exact(dim).zip(heads).enumerate()
        {
            pass.norm(x, self.norm, normed);
            let (memory, start) = match self.shape.is_joint {
                true => {
                    let start = entry * self.shape.n_in() + self.shape.gate_column(head);
                    (&block.room.input, start)
                }
                false => (&block.room.z, row * n + head * dim),
            };
            // SAFETY: written before the last barriers.
            let z = unsafe { memory.read(start..start + dim) };
            pass.table.silu_mul(z, normed, y);
        }
        y
    }
}
