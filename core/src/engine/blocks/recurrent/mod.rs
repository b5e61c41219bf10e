//! Mixers with a convolution and a recurrence: gated delta nets and Mamba 2.
//!
//! ```text
//! absorb    projections of all rows                             strips              |
//!           convolution, norms of heads, rates and decays       entries × channels  |
//!           recurrence: tokens of a sequence in order           heads, in parts     |
//! emit      gate, norm, quantise                                rows                | s
//!           output projection, added to the stream              strips              |
//! ```
//!
//! Small batches quantise all rows in every worker instead of meeting (`s`). A channel of a token reads the same
//! channel of the tokens before it, from the batch if they are in it, otherwise from the sequence's state. A
//! value's column of a head's state depends on no other column, and its tokens are processed in order. So bits do
//! not depend on how a prompt is cut, on the rest of the batch, or on who computes what.
//!
//! The state of a layer: the convolution's inputs of the last `n_taps - 1` tokens, oldest first, each
//! (n_channel); then the heads' states ([`crate::kernels::recurrent`]). Each of a sequence's last tokens has its state
//! written to a slot of its own, as far as states are kept; earlier tokens share the oldest of these slots.

mod delta_net;
mod mamba2;
mod room;

pub(super) use delta_net::run as run_delta_net;
pub(super) use mamba2::run as run_mamba2;
pub(super) use room::RecurrentRoom;

use crate::engine::pass::{NO_ENTRY, Pass};
use crate::engine::runner::Runner;
use crate::kernels::recurrent::state_floats;
use crate::kernels::table::{ConvSilu, Recurrence, RecurrentToken, Rule, STATE_LANES};
use crate::memory::Shared;
use crate::model::{DeltaNet, SSM_TAPS_MAX, conv_state_len};
use crate::state::SlotsView;
use crate::team::Stop;
use crate::trace::Phase;
use core::ops::Range;
use heapless::Vec;

/// Maximum number of tokens in a call of the recurrence.
const TOKENS_AT_ONCE: usize = 32;
/// Values of a head that are a unit of work.
const PART_VALUES: usize = 4 * STATE_LANES;

/// The recurrent part of a layer at work.
struct Block<'p> {
    pass: &'p Pass<'p>,
    room: &'p RecurrentRoom<'p>,
    states: SlotsView<'p>,
    /// Offset of the layer's state in the state of its sequence.
    offset: usize,
    convolution: Convolution<'p>,
    heads: Heads,
}

/// The convolution before the recurrence.
struct Convolution<'p> {
    n_taps: usize,
    n_channel: usize,
    /// Values projected for an entry, and the column of each channel. The channels of a head are adjacent.
    n_in: usize,
    column: Column<'p>,
    /// (n_channel, n_taps)
    taps: &'p [f32],
    /// (n_channel)
    bias: Option<&'p [f32]>,
}

/// Columns of the channels in the projection.
#[derive(Clone, Copy)]
enum Column<'p> {
    /// From this column on, in their order.
    From(usize),
    /// In a delta net's order.
    Of(&'p DeltaNet),
}

impl Column<'_> {
    const fn of(self, channel: usize) -> usize {
        match self {
            Self::From(first) => first + channel,
            Self::Of(shape) => shape.column(channel),
        }
    }
}

/// Heads with a state.
struct Heads {
    rule: Rule,
    n_head: usize,
    /// Elements of a key, and of a value.
    n_key: usize,
    n_value: usize,
}

/// Offsets of a token's key, query and values among the channels.
struct Columns {
    key: usize,
    query: usize,
    value: usize,
}

impl<'p> Block<'p> {
    /// The convolution's inputs for some channels of an entry, of one head, oldest token first.
    fn inputs(&self, entry: usize, channels: &Range<usize>) -> [&'p [f32]; SSM_TAPS_MAX] {
        let Convolution {
            n_taps,
            n_channel,
            n_in,
            column,
            ..
        } = self.convolution;
        let first = column.of(channels.start);
        let sequence = self.pass.batch[entry].sequence as usize;
        let mut rows: [&[f32]; SSM_TAPS_MAX] = [&[]; _];
        // The entry, or the number of columns of the state that are left.
        let (mut at, mut columns) = (Some(entry), n_taps - 1);
        for row in rows[..n_taps].iter_mut().rev() {
            let Some(entry) = at else {
                columns -= 1;
                let start = self.offset + columns * n_channel;
                let range = start + channels.start..start + channels.end;
                let kept = self.states.before(sequence, range);
                // SAFETY: no worker writes to it.
                *row = kept.unwrap_or_else(|| unsafe { self.room.zeros.read(channels.clone()) });
                continue;
            };
            let start = entry * n_in + first;
            // SAFETY: written before the last barrier.
            *row = unsafe { self.room.input.read(start..start + channels.len()) };
            // SAFETY: written before the step began.
            let before = unsafe { self.pass.common.before.read(entry..entry + 1)[0] };
            at = (before != NO_ENTRY).then_some(before as usize);
        }
        rows
    }

    /// Convolves some channels of an entry, and stores what later tokens need of them. Returns the channels.
    ///
    /// # Safety
    /// - These channels of the entry are this worker's alone until the next barrier.
    unsafe fn convolve(&self, entry: usize, channels: Range<usize>) -> &'p mut [f32] {
        let Convolution {
            n_taps,
            n_channel,
            taps,
            bias,
            ..
        } = self.convolution;
        let rows = self.inputs(entry, &channels);
        let rows = &rows[..n_taps];
        let start = entry * n_channel;
        let range = start + channels.start..start + channels.end;
        // SAFETY: by the caller.
        let out = unsafe { self.room.channels.write(range) };
        self.pass.table.conv_silu(&mut ConvSilu {
            taps: &taps[channels.start * n_taps..channels.end * n_taps],
            rows,
            bias: bias.map(|bias| &bias[channels.clone()]),
            out,
        });
        let sequence = self.pass.batch[entry].sequence;
        let end = self.pass.first_position(sequence) + self.pass.n_pending(sequence);
        let behind = end - 1 - self.pass.batch[entry].position as usize;
        if behind < self.states.n_kept() {
            for (column, row) in rows[1..].iter().enumerate() {
                let start = self.offset + column * n_channel;
                let range = start + channels.start..start + channels.end;
                // SAFETY: by the caller, and no sequence keeps its slot yet.
                let to = unsafe { self.states.after(sequence as usize, behind, range) };
                to.copy_from_slice(row);
            }
        }
        out
    }

    /// Runs all tokens of the batch through the heads' states; `columns` returns the columns of a head.
    fn recur(
        &self,
        runner: &mut Runner<'p, '_>,
        layer: usize,
        columns: impl Fn(usize) -> Columns,
    ) -> Result<(), Stop> {
        let n_sequence = self.firsts().count();
        let n_part = self.heads.n_value.div_ceil(PART_VALUES);
        let n_unit = self.heads.n_head * n_part * n_sequence;
        runner.share_ranges(Phase::Recurrence, layer, n_unit, |_, units| {
            // Sequences are adjacent units, because heads divide more evenly than sequences.
            let firsts = self.firsts().cycle().skip(units.start % n_sequence);
            let work = units.zip(firsts).map(|(i, first)| {
                let (head, part) = (i / n_sequence / n_part, i / n_sequence % n_part);
                let end = (part + 1) * PART_VALUES;
                let values = part * PART_VALUES..end.min(self.heads.n_value);
                self.advance(first, head, values, &columns(head))
            });
            work.sum()
        });
        runner.barrier(layer)
    }

    /// The first entry of each sequence in the batch.
    fn firsts(&self) -> impl Iterator<Item = usize> + Clone {
        let n = self.pass.batch.len();
        // SAFETY: written before the step began.
        let before = unsafe { self.pass.common.before.read(0..n) };
        (0..n).filter(move |&entry| before[entry] == NO_ENTRY)
    }

    /// Runs the tokens of a sequence, from entry `first` on, through the state of some values of a head.
    /// Returns the bytes of that state.
    fn advance(&self, first: usize, head: usize, values: Range<usize>, columns: &Columns) -> usize {
        let Heads {
            rule,
            n_key,
            n_value,
            ..
        } = self.heads;
        let sequence = self.pass.batch[first].sequence;
        let n = self.pass.n_pending(sequence);
        let state = self.state_of(head, &values);
        let n_kept = self.states.n_kept();
        let (mut entry, mut left) = (first, n);
        // The slot that was written last, and the state in it.
        let mut last: Option<(usize, &[f32])> = None;
        while left > 0 {
            // Tokens without a slot of their own use the oldest slot.
            let slot = (left - 1).min(n_kept - 1);
            let n_token = (left - slot).min(TOKENS_AT_ONCE);
            let mut tokens: Vec<RecurrentToken<'_>, TOKENS_AT_ONCE> = Vec::new();
            while tokens.len() < n_token {
                if self.pass.batch[entry].sequence == sequence {
                    let token = self.token(entry, head, &values, columns);
                    tokens
                        .push(token)
                        .unwrap_or_else(|_| unreachable!("there is room for as many"));
                }
                entry += 1;
            }
            let before = match last {
                None => self.states.before(sequence as usize, state.clone()),
                Some((other, state)) => (other != slot).then_some(state),
            };
            // SAFETY: a head's values belong to one worker, the state written last is in another slot or not read,
            // and no sequence keeps the slot yet.
            let to = unsafe { self.states.after(sequence as usize, slot, state.clone()) };
            if last.is_none() && before.is_none() {
                to.fill(0.0);
            }
            self.pass.table.recurrence(&mut Recurrence {
                rule,
                n_key,
                from: before,
                state: to,
                tokens: &mut tokens,
            });
            last = Some((slot, to));
            left -= n_token;
        }
        debug_assert!(values.end <= n_value);
        state.len() * size_of::<f32>()
    }

    /// The range of the state of some values of a head.
    fn state_of(&self, head: usize, values: &Range<usize>) -> Range<usize> {
        let Heads { n_key, n_value, .. } = self.heads;
        let convolution = conv_state_len(self.convolution.n_taps, self.convolution.n_channel);
        let start = self.offset + convolution + head * state_floats(n_key, n_value);
        let first = start + values.start * n_key;
        first..first + state_floats(n_key, values.len())
    }

    /// An entry's token for some values of a head.
    fn token(
        &self,
        entry: usize,
        head: usize,
        values: &Range<usize>,
        columns: &Columns,
    ) -> RecurrentToken<'p> {
        let Heads {
            n_head,
            n_key,
            n_value,
            ..
        } = self.heads;
        let channels = |first: usize, range: Range<usize>| {
            let start = entry * self.convolution.n_channel + first;
            // SAFETY: written before the last barrier.
            unsafe {
                self.room
                    .channels
                    .read(start + range.start..start + range.end)
            }
        };
        let rates = 2 * entry * n_head;
        // SAFETY: as above.
        let rates = unsafe { self.room.rates.read(rates..rates + 2 * n_head) };
        let out = (entry * n_head + head) * n_value;
        RecurrentToken {
            key: channels(columns.key, 0..n_key),
            query: channels(columns.query, 0..n_key),
            value: channels(columns.value, values.clone()),
            decay: rates[n_head + head],
            rate: rates[head],
            // SAFETY: a head's values are one worker's.
            out: unsafe { self.room.out.write(out + values.start..out + values.end) },
        }
    }

    /// The heads' outputs of an entry, (n_head * n_value).
    fn output(&self, entry: usize) -> &'p [f32] {
        let n = self.heads.n_head * self.heads.n_value;
        // SAFETY: written before the last barrier.
        unsafe { self.room.out.read(entry * n..(entry + 1) * n) }
    }
}

/// A row of each of two buffers that a worker has to itself.
///
/// # Safety
/// - Their last use is over.
unsafe fn two_of<'p>(own: Shared<'p, f32>, n: usize) -> [&'p mut [f32]; 2] {
    // SAFETY: by the caller.
    let (a, b) = unsafe { own.write(0..2 * n) }.split_at_mut(n);
    [a, b]
}
