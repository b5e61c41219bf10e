//! Mamba 2: a state that decays by a factor, and to which each token adds.
//!
//! Source: llama.cpp, `src/models/mamba-base.cpp`.

use super::{Block, Column, Columns, Convolution, Heads, RecurrentRoom, two_of};
use crate::engine::blocks::{LayerAt, MixerInput, mixer_target};
use crate::engine::epilogue::Epilogue;
use crate::engine::rows::Rows;
use crate::engine::runner::Runner;
use crate::kernels::table::Rule;
use crate::model::{Mamba2, Norm, Site, Vector};
use crate::team::Stop;
use crate::trace::Phase;

/// Channels of the convolution that are a unit of work.
const UNIT_CHANNELS: usize = 128;

pub(in crate::engine::blocks) fn run<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p RecurrentRoom<'p>,
    at: LayerAt<'p>,
    shape: &'p Mamba2,
    input: MixerInput<'p>,
) -> Result<(), Stop> {
    let (pass, model, n) = (runner.pass, runner.pass.model, runner.n_rows);
    let projected = Epilogue::StoreEntry(Rows {
        memory: room.input,
        stride: shape.n_in(),
    });
    let weight = model.matrix(at.weights, Site::SsmIn);
    let project = runner.linear(
        at.index,
        Site::SsmIn,
        input.input,
        input.n_all,
        weight,
        projected,
    );
    runner.linears(Phase::Qkv, at.index, &mut [project])?;
    let vector = |vector| {
        let vector = model.vector(at.weights, vector);
        vector.expect("loaded with every Mamba 2 layer")
    };
    let (states, offset) = pass.state.states(at.index);
    let block = Block {
        pass,
        room,
        states: *states,
        offset,
        convolution: Convolution {
            n_taps: shape.n_taps,
            n_channel: shape.n_channel(),
            n_in: shape.n_in(),
            column: Column::From(shape.n_inner()),
            taps: vector(Vector::SsmConv),
            bias: Some(vector(Vector::SsmConvBias)),
        },
        heads: Heads {
            rule: Rule::Add,
            n_head: shape.n_head,
            n_key: shape.n_state,
            n_value: shape.head_dim,
        },
    };
    let mamba = Mamba {
        block: &block,
        shape,
        steps: [vector(Vector::SsmDt), vector(Vector::SsmA)],
        around: vector(Vector::SsmD),
        norm: model.norm(at.weights, Vector::SsmNorm),
    };
    mamba.prepare(runner, at.index)?;
    block.recur(runner, at.index, |head| {
        let group = head / (shape.n_head / shape.n_group);
        let key = shape.n_inner() + group * shape.n_state;
        Columns {
            key,
            query: key + shape.n_group * shape.n_state,
            value: head * shape.head_dim,
        }
    })?;
    if n == 0 {
        return Ok(());
    }
    let (order, rows) = (runner.order, room.rows(pass, shape.n_inner()));
    let mixed = runner.rows(Phase::Recurrence, at.index, &rows, n, |runner, row, to| {
        let y = mamba.gate(runner.member.rank(), pass.common.entry(order, row));
        pass.quantize(y, &rows.layout, to);
    })?;
    let weight = model.matrix(at.weights, Site::SsmOut);
    let add = mixer_target(runner, at);
    let output = runner.linear(at.index, Site::SsmOut, mixed, n, weight, add.into());
    runner.linears(Phase::AttentionOutput, at.index, &mut [output])
}

/// A layer of Mamba 2 at work.
struct Mamba<'b, 'p> {
    block: &'b Block<'p>,
    shape: &'p Mamba2,
    /// Bias and factor of the steps, (n_head) each.
    steps: [&'p [f32]; 2],
    /// The part of a head's input that bypasses its state, (n_head).
    around: &'p [f32],
    /// (n_group, n_inner / n_group)
    norm: Option<Norm<'p>>,
}

impl<'p> Mamba<'_, 'p> {
    /// Convolution of all channels, rates and decays.
    fn prepare(&self, runner: &mut Runner<'p, '_>, layer: usize) -> Result<(), Stop> {
        let n_channel = self.shape.n_channel();
        let n_unit = n_channel.div_ceil(UNIT_CHANNELS) + 1;
        let n = self.block.pass.batch.len() * n_unit;
        runner.share(Phase::Recurrence, layer, n, |_, i| {
            let (entry, start) = (i / n_unit, i % n_unit * UNIT_CHANNELS);
            if start < n_channel {
                let end = (start + UNIT_CHANNELS).min(n_channel);
                // SAFETY: a unit is one worker's.
                unsafe { self.block.convolve(entry, start..end) };
            } else {
                self.rate(entry);
            }
            0
        });
        runner.barrier(layer)
    }

    /// Steps and decays of an entry's heads.
    fn rate(&self, entry: usize) {
        let (block, shape) = (self.block, self.shape);
        let n = shape.n_head;
        let end = (entry + 1) * shape.n_in();
        // SAFETY: written before the last barrier.
        let projected = unsafe { block.room.input.read(end - n..end) };
        let range = 2 * n * entry..2 * n * (entry + 1);
        // SAFETY: a unit is one worker's.
        let (rate, decay) = unsafe { block.room.rates.write(range) }.split_at_mut(n);
        rate.copy_from_slice(projected);
        let table = block.pass.table;
        table.decays(rate, self.steps[0], self.steps[1], decay);
    }

    /// The output of a row: with the input that bypasses the state, times `silu(z)`, the norm of each group; in this
    /// rank's own memory.
    fn gate(&self, rank: usize, entry: usize) -> &'p [f32] {
        let (block, shape) = (self.block, self.shape);
        let (pass, n) = (block.pass, shape.n_inner());
        // SAFETY: this rank's own memory, whose last use is over.
        let [sum, gated] = unsafe { two_of(block.room.own.of(rank), n) };
        sum.copy_from_slice(block.output(entry));
        let start = entry * shape.n_channel();
        // SAFETY: written before the last barrier.
        let x = unsafe { block.room.channels.read(start..start + n) };
        let heads = sum
            .chunks_exact_mut(shape.head_dim)
            .zip(x.chunks_exact(shape.head_dim));
        for ((sum, x), around) in heads.zip(self.around) {
            pass.table.add_scaled(*around, x, sum);
        }
        let start = entry * shape.n_in();
        // SAFETY: as above.
        let z = unsafe { block.room.input.read(start..start + n) };
        pass.table.silu_mul(z, sum, gated);
        let Some(norm) = self.norm else {
            return gated;
        };
        let len = n / shape.n_group;
        let groups = gated.chunks_exact(len).zip(sum.chunks_exact_mut(len));
        for (group, (x, out)) in groups.enumerate() {
            pass.norm(x, norm.of_piece(group, len), out);
        }
        sum
    }
}
