//! Memory of mixers with a recurrence.

use crate::engine::limits::EngineLimits;
use crate::engine::pass::{Needs, Pass, RowsRoom, activations_of};
use crate::engine::scratch::{PerWorker, Room};
use crate::kernels::activation::ActivationLayout;
use crate::memory::{MemoryError, Shared};
use crate::model::{LayerKind, Mixer, ModelConfig};

/// Memory of delta nets and Mamba 2.
#[derive(Debug)]
pub(in crate::engine::blocks) struct RecurrentRoom<'m> {
    /// Input of the convolution for every entry, (n_batch, n_channel); Mamba 2 stores its gates before it and
    /// its steps after it, (n_batch, n_in).
    pub(super) input: Shared<'m, f32>,
    /// The convolution's output of every entry, (n_batch, n_channel).
    pub(super) channels: Shared<'m, f32>,
    /// A delta net's gates of its output, of every row, (n_batch, n_value).
    pub(super) z: Shared<'m, f32>,
    /// Its rates and steps of every entry as projected, (n_batch, 2 * n_head).
    pub(super) steps: Shared<'m, f32>,
    /// Rates, then decays of the heads, of every entry, (n_batch, 2 * n_head).
    pub(super) rates: Shared<'m, f32>,
    /// The heads' outputs of every entry, (n_batch, n_value).
    pub(super) out: Shared<'m, f32>,
    /// Channels of a token before the first: zeros, (n_channel). Never written.
    pub(super) zeros: Shared<'m, f32>,
    /// A worker's own row: outputs on their way, twice (n_value); rates and steps, twice (n_head).
    pub(super) own: PerWorker<'m, f32>,
    /// Rows that the output projection reads.
    rows: Shared<'m, u8>,
    pub(in crate::engine::blocks) needs: Needs,
}

/// Lengths of a mixer: input, channels, values, heads.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    input: usize,
    channels: usize,
    values: usize,
    heads: usize,
}

impl Lengths {
    fn of(kind: &LayerKind) -> Option<Self> {
        match &kind.mixer {
            Mixer::DeltaNet(shape) => Some(Self {
                input: shape.n_in(),
                channels: shape.n_channel(),
                values: shape.n_value(),
                heads: shape.n_head_v,
            }),
            Mixer::Mamba2(shape) => Some(Self {
                input: shape.n_in(),
                channels: shape.n_channel(),
                values: shape.n_inner(),
                heads: shape.n_head,
            }),
            _ => None,
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            channels: self.channels.max(other.channels),
            values: self.values.max(other.values),
            heads: self.heads.max(other.heads),
        }
    }
}

impl<'m> RecurrentRoom<'m> {
    pub(in crate::engine::blocks) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let lengths = || config.kinds.iter().map(Lengths::of);
        let most = lengths().flatten().fold(Lengths::default(), Lengths::max);
        let kinds = activations_of(config, limits).mixed;
        let row_bytes = match most.values {
            0 => 0,
            n => ActivationLayout::new(n, kinds).row_bytes(),
        };
        let n_batch = limits.n_batch;
        Ok(Self {
            input: room.buffer(n_batch, most.input)?,
            channels: room.buffer(n_batch, most.channels)?,
            z: room.buffer(n_batch, most.values)?,
            steps: room.buffer(n_batch, 2 * most.heads)?,
            rates: room.buffer(n_batch, 2 * most.heads)?,
            out: room.buffer(n_batch, most.values)?,
            zeros: room.buffer(1, most.channels)?,
            own: room.of_workers(limits.n_workers, 2 * most.values.max(most.heads))?,
            rows: room.buffer(n_batch, row_bytes)?,
            needs: Needs {
                row_bytes,
                ..Needs::default()
            },
        })
    }

    /// The rows of `n_value` columns that the output projection reads.
    pub(super) fn rows(&self, pass: &Pass<'_>, n_value: usize) -> RowsRoom<'m> {
        RowsRoom {
            memory: self.rows,
            layout: ActivationLayout::new(n_value, pass.activations().mixed),
        }
    }
}
