//! The gated short convolution (LFM2): `out · (C ⊙ conv(B ⊙ X))`.
//!
//! ```text
//! absorb    B, X of all rows; kept for the convolution       strips    |
//! emit      C of the rows that go on                         strips    |
//!           convolution, gate, quantise; states              rows      | s
//!           output projection, added to the stream           strips    |
//! ```
//!
//! A row's convolution reads `B ⊙ X` of its own token and of the tokens before it: from the batch if they are in
//! it, otherwise from the sequence's state. So a row's result does not depend on the rest of the batch, nor on how a
//! prompt is cut. Sums are in f32, the oldest token first, without fusing.

use super::{LayerAt, MixerInput};
use crate::engine::epilogue::Epilogue;
use crate::engine::limits::EngineLimits;
use crate::engine::pass::{NO_ENTRY, Needs, Pass, RowsRoom, activations_of};
use crate::engine::rows::{Order, Rows, SMALL_BATCH};
use crate::engine::runner::Runner;
use crate::engine::scratch::{PerWorker, Room};
use crate::kernels::activation::ActivationLayout;
use crate::memory::{MemoryError, Shared};
use crate::model::{ModelConfig, ShortConv, Site, Vector};
use crate::state::SlotsView;
use crate::team::Stop;
use crate::trace::Phase;

/// Memory of short convolutions.
#[derive(Debug)]
pub(super) struct ShortConvRoom<'m> {
    /// B and X of every entry, C of every row, (n_batch, n_embd) each.
    b: Shared<'m, f32>,
    x: Shared<'m, f32>,
    c: Shared<'m, f32>,
    /// A worker's own rows: input and output of the convolution.
    own: PerWorker<'m, f32>,
    rows: RowsRoom<'m>,
    pub(super) needs: Needs,
}

impl<'m> ShortConvRoom<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let is_there = config.kinds.iter().any(|kind| kind.convolution().is_some());
        let n_embd = if is_there { config.n_embd } else { 0 };
        let layout = ActivationLayout::new(config.n_embd, activations_of(config, limits).mixed);
        let row_bytes = if is_there { layout.row_bytes() } else { 0 };
        let n_batch = limits.n_batch;
        Ok(Self {
            b: room.buffer(n_batch, n_embd)?,
            x: room.buffer(n_batch, n_embd)?,
            c: room.buffer(n_batch, n_embd)?,
            own: room.of_workers(limits.n_workers, 2 * n_embd)?,
            rows: RowsRoom {
                memory: room.buffer(n_batch, row_bytes)?,
                layout,
            },
            needs: Needs {
                row_bytes,
                ..Needs::default()
            },
        })
    }
}

/// A layer's convolution at work.
struct Block<'p> {
    pass: &'p Pass<'p>,
    room: &'p ShortConvRoom<'p>,
    /// (n_embd, n_taps), oldest first.
    taps: &'p [f32],
    n_taps: usize,
    states: SlotsView<'p>,
    /// Offset of the layer's state in the state of its sequence.
    offset: usize,
}

pub(super) fn run<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p ShortConvRoom<'p>,
    at: LayerAt<'p>,
    shape: &ShortConv,
    input: MixerInput<'p>,
) -> Result<(), Stop> {
    let (pass, model, n) = (runner.pass, runner.pass.model, runner.n_rows);
    let stride = pass.config().n_embd;
    let rows = |memory| Rows { memory, stride };
    let linear = |runner: &Runner<'p, '_>, site, n, epilogue| {
        let weight = model.matrix(at.weights, site);
        runner.linear(at.index, site, input.input, n, weight, epilogue)
    };
    let b = linear(
        runner,
        Site::ShortConvB,
        input.n_all,
        Epilogue::StoreEntry(rows(room.b)),
    );
    let x = linear(
        runner,
        Site::ShortConvX,
        input.n_all,
        Epilogue::StoreEntry(rows(room.x)),
    );
    let c = linear(runner, Site::ShortConvC, n, Epilogue::Store(rows(room.c)));
    if n < input.n_all {
        // Strips of few rows and strips of many rows would not divide evenly in one phase.
        runner.linears(Phase::Qkv, at.index, &mut [c])?;
        runner.linears(Phase::Qkv, at.index, &mut [b, x])?;
    } else {
        runner.linears(Phase::Qkv, at.index, &mut [b, c, x])?;
    }
    let (states, offset) = pass.state.states(at.index);
    let taps = model.vector(at.weights, Vector::ConvTaps);
    let block = Block {
        pass,
        room,
        taps: taps.expect("loaded with every convolution"),
        n_taps: shape.n_taps,
        states: *states,
        offset,
    };
    block.keep_states(runner, at.index);
    if n == 0 {
        // The states are read by the next step, whose ranks meet before.
        return runner.barrier(at.index);
    }
    let order = runner.order;
    let mixed = runner.rows(
        Phase::Recurrence,
        at.index,
        &room.rows,
        n,
        |runner, row, to| {
            let y = block.convolve(runner.member.rank(), order, row);
            pass.quantize(y, &room.rows.layout, to);
        },
    )?;
    let weight = model.matrix(at.weights, Site::ShortConvOut);
    let add = super::mixer_target(runner, at);
    let output = runner.linear(at.index, Site::ShortConvOut, mixed, n, weight, add.into());
    runner.linears(Phase::AttentionOutput, at.index, &mut [output])
}

impl<'p> Block<'p> {
    /// `B ⊙ X` of the token `back` before `entry`, or of the sequence's state; `None` before its first
    /// token. `room` is as long (n_embd).
    fn gated<'r>(&self, entry: usize, back: usize, room: &'r mut [f32]) -> Option<&'r [f32]>
    where
        'p: 'r,
    {
        let n_embd = room.len();
        let (mut at, mut left) = (entry, back);
        while left > 0 {
            // SAFETY: written before the step began.
            let before = unsafe { self.pass.common.before.read(at..at + 1)[0] };
            if before == NO_ENTRY {
                // The state holds the last n_taps - 1 tokens, oldest first.
                let column = self.n_taps - 1 - left;
                let start = self.offset + column * n_embd;
                let sequence = self.pass.batch[entry].sequence as usize;
                return self.states.before(sequence, start..start + n_embd);
            }
            (at, left) = (before as usize, left - 1);
        }
        let range = at * n_embd..(at + 1) * n_embd;
        // SAFETY: written before the last barrier.
        let b = unsafe { self.room.b.read(range.clone()) };
        // SAFETY: as above.
        let x = unsafe { self.room.x.read(range) };
        for (out, (b, x)) in room.iter_mut().zip(b.iter().zip(x)) {
            *out = b * x;
        }
        Some(room)
    }

    /// `C ⊙ conv(B ⊙ X)` of a row, (n_embd), in this rank's own memory.
    fn convolve(&self, rank: usize, order: Order, row: usize) -> &'p [f32] {
        let n_embd = self.pass.config().n_embd;
        let own = self.room.own.of(rank);
        // SAFETY: this rank's own memory, whose last use is over.
        let (bx, y) = unsafe { own.write(0..2 * n_embd) }.split_at_mut(n_embd);
        let entry = self.pass.common.entry(order, row);
        y.fill(0.0);
        for tap in 0..self.n_taps {
            let Some(bx) = self.gated(entry, self.n_taps - 1 - tap, bx) else {
                continue;
            };
            let taps = self.taps.chunks_exact(self.n_taps);
            for ((y, bx), taps) in y.iter_mut().zip(bx).zip(taps) {
                *y += taps[tap] * bx;
            }
        }
        let c = row * n_embd..(row + 1) * n_embd;
        // SAFETY: written before the last barrier.
        let c = unsafe { self.room.c.read(c) };
        y.iter_mut().zip(c).for_each(|(y, c)| *y *= c);
        y
    }

    /// Writes the states after the last tokens of each sequence in the batch. Sequences are shared out by
    /// their entries.
    fn keep_states(&self, runner: &mut Runner<'p, '_>, layer: usize) {
        let start = runner.now();
        let rank = runner.member.rank();
        let entries = match self.pass.batch.len() {
            n if n > SMALL_BATCH => runner.member.home_range(n),
            n if rank == 0 => 0..n,
            _ => 0..0,
        };
        let n_embd = self.pass.config().n_embd;
        for entry in entries {
            let sequence = self.pass.batch[entry].sequence;
            let end = self.pass.first_position(sequence) + self.pass.n_pending(sequence);
            let behind = end - 1 - self.pass.batch[entry].position as usize;
            if behind >= self.states.n_kept() {
                continue;
            }
            let own = self.room.own.of(rank);
            // SAFETY: this rank's own memory, whose last use is over.
            let room = unsafe { own.write(0..n_embd) };
            for column in 0..self.n_taps - 1 {
                let at = self.offset + column * n_embd;
                // SAFETY: an entry's state is one worker's, and no sequence keeps its slot yet.
                let to = unsafe {
                    self.states
                        .after(sequence as usize, behind, at..at + n_embd)
                };
                match self.gated(entry, self.n_taps - 2 - column, room) {
                    Some(bx) => to.copy_from_slice(bx),
                    None => to.fill(0.0),
                }
            }
        }
        runner.record(Phase::Recurrence, layer, start, 0);
    }
}
