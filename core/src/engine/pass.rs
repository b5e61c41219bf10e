//! The data that the ranks of a step share: the model, the batch, and the memory that every block uses.

use super::batch::BatchEntry;
use super::limits::EngineLimits;
use super::lora::LoraRoom;
use super::neurons::Counting;
use super::rows::{Entries, Order, SMALL_BATCH, TILE_TOKENS};
use super::scratch::{PerWorker, Room};
use super::sites::{StepOptions, Unit};
use super::stream::StreamRoom;
use crate::kernels::KernelTable;
use crate::kernels::activation::{ActivationKinds, ActivationLayout};
use crate::kernels::contract::GROUP;
use crate::kernels::hadamard::hadamard;
use crate::kernels::table::{Activations, Quantize, RopeArgs};
use crate::memory::{MemoryError, Shared};
use crate::model::{LayerActivations, ModelConfig, ModelWeights, Norm, QueryTemperature};
use crate::state::{PAGE_TOKENS, PagesView, StateView};
use core::ops::Range;

/// Maximum number of products of several strips computed at once: a quarter of a level 1 cache.
pub(super) const TILE_FLOATS: usize = 2048;

// Half of it is also a worker's row for the neurons of a tile: at least a strip.
const _: () = assert!(TILE_FLOATS / 2 >= GROUP);

/// The requirements of blocks on the memory that all of them use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Needs {
    /// Bytes of the longest activation row that a block reads.
    pub(super) row_bytes: usize,
    /// Rows of the widest strip.
    pub(super) strip_rows: usize,
    /// Floats of the longest row that a norm returns.
    pub(super) norm_row: usize,
    /// Rows of the linear layer with the most rows.
    pub(super) n_rows: usize,
}

impl Needs {
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            row_bytes: self.row_bytes.max(other.row_bytes),
            strip_rows: self.strip_rows.max(other.strip_rows),
            norm_row: self.norm_row.max(other.norm_row),
            n_rows: self.n_rows.max(other.n_rows),
        }
    }
}

/// Rows of activations that linear layers read.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowsRoom<'m> {
    pub(super) memory: Shared<'m, u8>,
    pub(super) layout: ActivationLayout,
}

/// Memory that every block uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common<'m> {
    pub(super) stream: StreamRoom<'m>,
    /// Cosines then sines of each entry's position, for each rotation: (n_batch, Σ n_rot).
    angles: Shared<'m, f32>,
    n_angles: usize,
    /// The residual stream after a norm.
    pub(super) normed: RowsRoom<'m>,
    /// A worker's own rows, for [`SMALL_BATCH`] tokens.
    pub(super) private_rows: PerWorker<'m, u8>,
    /// A worker's own tile: up to [`TILE_TOKENS`] × the widest strip, or as many products of several
    /// strips and fewer tokens.
    pub(super) products: PerWorker<'m, f32>,
    /// A worker's own row for norms (as long as the longest), and for a tile's neurons.
    pub(super) norms: PerWorker<'m, f32>,
    /// Entries of the current batch: those that want outputs, then the others.
    pub(super) outputs_first: Shared<'m, u32>,
    /// Tokens of each sequence in the current batch.
    pub(super) pending: Shared<'m, u32>,
    /// The entry before each in its sequence, or [`NO_ENTRY`]; empty in a model with attention only.
    pub(super) before: Shared<'m, u32>,
    pub(super) lora: LoraRoom<'m>,
    /// Bits of the neurons that a selector or a predictor chose, (n_batch, words).
    pub(super) selected: Shared<'m, u64>,
}

/// Marks an entry that is its sequence's first in the batch.
pub(super) const NO_ENTRY: u32 = u32::MAX;

/// The kinds of activations that rows are kept in: the kinds of the weights, and f32 for adapters and
/// observers.
pub(super) fn activations_of(config: &ModelConfig, limits: &EngineLimits) -> LayerActivations {
    let mut all = config.activations.with(activations_of_sites(limits));
    all.stream |= limits.predictor.kinds;
    if limits.predictor.has_experts {
        all.experts |= limits.predictor.kinds;
    }
    all
}

/// The kinds of activations that adapters and observers read.
pub(super) fn activations_of_sites(limits: &EngineLimits) -> ActivationKinds {
    let of = |is_on, kinds| {
        if is_on {
            kinds
        } else {
            ActivationKinds::empty()
        }
    };
    of(limits.observes, ActivationKinds::F32) | of(limits.adapter_rank > 0, limits.adapter_kinds)
}

impl<'m> Common<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        needs: &Needs,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let (n_batch, n_workers) = (limits.n_batch, limits.n_workers);
        let kinds = activations_of(config, limits);
        let layout = ActivationLayout::new(config.n_embd, kinds.stream | kinds.experts);
        let n_angles = config.ropes.iter().map(|rope| rope.n_rot).sum();
        let n_tokens = TILE_TOKENS.min(n_batch.max(limits.n_outputs + limits.n_hidden));
        let tile = n_tokens * needs.strip_rows.max(2 * GROUP);
        let row_bytes = needs.row_bytes.max(layout.row_bytes());
        let n_ff = config.kinds.iter().map(|kind| kind.n_ff()).max();
        let words = match limits.selects || limits.predictor.is_some() {
            true => n_ff.unwrap_or(0).div_ceil(64),
            false => 0,
        };
        Ok(Self {
            stream: StreamRoom::new(config, limits, room)?,
            angles: room.buffer(n_batch, n_angles)?,
            n_angles,
            normed: RowsRoom {
                memory: room.buffer(n_batch, layout.row_bytes())?,
                layout,
            },
            private_rows: room.of_workers(n_workers, SMALL_BATCH * row_bytes)?,
            products: room.of_workers(n_workers, tile)?,
            norms: room.of_workers(
                n_workers,
                needs.norm_row.max(config.n_embd).max(TILE_FLOATS / 2),
            )?,
            outputs_first: room.buffer(n_batch, 1)?,
            pending: room.buffer(limits.n_seq, 1)?,
            before: room.buffer(n_batch, usize::from(config.is_recurrent()))?,
            lora: LoraRoom::new(config, limits, needs.n_rows.max(n_batch), room)?,
            selected: room.buffer(n_batch, words)?,
        })
    }

    /// The entry of row `row`.
    pub(super) fn entry(&self, order: Order, row: usize) -> usize {
        match order {
            Order::Batch => row,
            // SAFETY: written before the step began.
            Order::OutputsFirst => unsafe { self.outputs_first.read(row..row + 1)[0] as usize },
        }
    }

    /// The range of the angles of entry `entry` for rotation number `rope`.
    fn angles_at(&self, config: &ModelConfig, entry: usize, rope: usize) -> Range<usize> {
        let before: usize = config.ropes[..rope].iter().map(|rope| rope.n_rot).sum();
        let start = entry * self.n_angles + before;
        start..start + config.ropes[rope].n_rot
    }
}

/// The answers of a step's sites, asked once before its ranks begin: all ranks must act on the same answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Whether the last layer drops rows that no output depends on.
    pub(super) leaves_out: bool,
    /// [`super::ExpertSource::is_resident`].
    pub(super) experts_are_resident: bool,
    /// Whether an entry has an adapter.
    pub(super) adapts: bool,
    /// [`super::Selector::unit`].
    pub(super) unit: Unit,
    /// [`super::Observer::sees_choices`].
    pub(super) shows_choices: bool,
    /// [`super::Observer::sees_products`].
    pub(super) shows_products: bool,
}

/// Entries of a batch that want outputs. Entries that want logits are the first of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) n_logits: usize,
    pub(super) n_outputs: usize,
}

/// Everything that the ranks of a step share.
#[derive(Clone)]
pub(super) struct Pass<'s> {
    pub(super) model: &'s ModelWeights<'s>,
    pub(super) table: &'static KernelTable,
    pub(super) common: &'s Common<'s>,
    pub(super) state: StateView<'s>,
    pub(super) batch: &'s [BatchEntry],
    pub(super) wanted: Wanted,
    /// Tiles of attention in the current batch: of all entries, and of the entries that want outputs.
    pub(super) n_tiles: [usize; 2],
    pub(super) asked: Asked,
    pub(super) neurons: Counting<'s>,
    /// Layers to run. If they do not begin with the first or end with the last, the stream is taken from the
    /// caller or returned to it.
    pub(super) layers: Range<usize>,
    pub(super) input: Option<&'s [f32]>,
    pub(super) options: &'s StepOptions<'s>,
    pub(super) limits: &'s EngineLimits,
}

/// The first `n` rows as activations.
///
/// # Safety
/// - No worker writes the rows while the result lives.
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

/// What follows the embedding of a token: its scale, the embeddings of its position and type, a norm.
pub(super) fn finish_embedding(
    model: &ModelWeights<'_>,
    table: &KernelTable,
    position: usize,
    x: &mut [f32],
    room: &mut [f32],
) {
    let config = model.config();
    #[expect(clippy::float_cmp, reason = "1 is a setting, not a result")]
    if config.embedding_scale != 1.0 {
        x.iter_mut().for_each(|x| *x *= config.embedding_scale);
    }
    model.embed_place(position, x, room);
    if let Some(norm) = model.embedding_norm() {
        norm.apply(table, x, config.norm_eps, room);
        x.copy_from_slice(room);
    }
}

impl<'s> Pass<'s> {
    pub(super) const fn config(&self) -> &'s ModelConfig {
        self.model.config()
    }

    /// Kinds of activations that the layers' matrices read.
    pub(super) fn activations(&self) -> LayerActivations {
        activations_of(self.config(), self.limits)
    }

    /// Number of the entry that row `row` of a linear layer's input belongs to.
    pub(super) fn entry_of_row(&self, entries: Entries<'_>, row: usize) -> usize {
        match entries {
            Entries::Each(order) => self.common.entry(order, row),
            Entries::Pairs(pairs, order) => self.common.entry(order, pairs.token(row)),
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
        self.n_pending(sequence)
    }

    /// Tokens of a sequence in the batch.
    pub(super) fn n_pending(&self, sequence: u32) -> usize {
        let sequence = sequence as usize;
        // SAFETY: written before the step began. An encoder's sequences begin in its batch.
        unsafe { self.common.pending.read(sequence..sequence + 1)[0] as usize }
    }

    /// The position of a sequence's first entry in the batch.
    pub(super) fn first_position(&self, sequence: u32) -> usize {
        self.state.len(sequence)
    }

    /// The trunk's hidden states that a head reads, (entries, n_embd): where the stream is not the caller's.
    pub(super) fn hidden(&self) -> Option<&'s [f32]> {
        self.options.hidden.filter(|_| self.input.is_none())
    }

    /// Computes the input of entry `entry`: the embedding of its token, with all additions to it (n_embd).
    pub(super) fn embed(&self, rank: usize, entry: usize, x: &mut [f32]) {
        self.model.embed(self.batch[entry].token, x);
        self.add_embedding(rank, entry, x);
        // SAFETY: this rank's own row, whose last use is over.
        let room = unsafe { self.common.norms.of(rank).write(0..x.len()) };
        let position = self.batch[entry].position as usize;
        finish_embedding(self.model, self.table, position, x, room);
    }

    /// Quantises a whole row.
    pub(super) fn quantize(&self, x: &[f32], layout: &ActivationLayout, row: *mut u8) {
        // SAFETY: callers pass rows that no other worker accesses in the current phase.
        unsafe {
            self.table.quantize(&Quantize {
                x,
                first_col: 0,
                layout,
                row,
            })
        };
    }

    /// Writes the angles of an entry.
    ///
    /// # Safety
    /// - No other worker accesses the entry in the current phase.
    pub(super) unsafe fn make_angles(&self, entry: usize) {
        for rope in 0..self.config().ropes.len() {
            let angles = self.common.angles_at(self.config(), entry, rope);
            let half = angles.len() / 2;
            // SAFETY: by the caller.
            let angles = unsafe { self.common.angles.write(angles) };
            let (cos, sin) = angles.split_at_mut(half);
            let BatchEntry {
                sequence, position, ..
            } = self.batch[entry];
            let rope = self.model.rope(rope, self.state.is_long(sequence));
            rope.angles(position.into(), cos, sin);
        }
    }

    /// Rotates whole query or key heads of entry `entry`.
    pub(super) fn rotate(&self, rope: usize, entry: usize, head_dim: usize, heads: &mut [f32]) {
        let config = self.config();
        let angles = self.common.angles_at(config, entry, rope);
        // SAFETY: angles were written before the first barrier.
        let angles = unsafe { self.common.angles.read(angles) };
        let (cos, sin) = angles.split_at(angles.len() / 2);
        for head in heads.chunks_exact_mut(head_dim) {
            self.table.rope(&mut RopeArgs {
                head,
                cos,
                sin,
                pairing: config.ropes[rope].pairing,
            });
        }
    }

    /// The norm of a row.
    pub(super) fn norm(&self, x: &[f32], norm: Norm<'_>, out: &mut [f32]) {
        norm.apply(self.table, x, self.config().norm_eps, out);
    }

    /// Multiplies the queries of entry `entry` by the factor for its position.
    pub(super) fn heat(&self, temperature: &QueryTemperature, entry: usize, queries: &mut [f32]) {
        let factor = temperature.factor(self.batch[entry].position as usize);
        queries.iter_mut().for_each(|x| *x *= factor);
    }

    /// The norm of each piece of `x` that is as long as the weights (a head, or all heads), in
    /// place.
    pub(super) fn norm_in_place(&self, rank: usize, x: &mut [f32], norm: Option<Norm<'_>>) {
        let Some(norm) = norm else {
            return;
        };
        // SAFETY: this rank's own row, whose last use is over.
        let out = unsafe { self.common.norms.of(rank).write(0..norm.len()) };
        for x in x.chunks_exact_mut(norm.len()) {
            self.norm(x, norm, out);
            x.copy_from_slice(out);
        }
    }

    /// Stores the keys of whole heads of an entry, from head `first` on, in a layer of its group; `keys` are
    /// rotated where the group's are.
    pub(super) fn store_keys(
        &self,
        pages: &PagesView<'_>,
        layer: usize,
        entry: usize,
        first: usize,
        keys: &mut [f32],
    ) {
        let layout = &pages.config.layout;
        hadamard(keys, pages.config.rotation.k);
        for (i, key) in keys.chunks_exact(layout.head_dim_k).enumerate() {
            let (block, slot) = self.slot(pages, layer, entry, first + i);
            // SAFETY: the slot was reserved for this step and this head is this strip's.
            unsafe { self.table.store_key(layout, block, slot, key) };
        }
    }

    /// Stores the values of whole heads, like [`Self::store_keys`].
    pub(super) fn store_values(
        &self,
        pages: &PagesView<'_>,
        layer: usize,
        entry: usize,
        first: usize,
        values: &mut [f32],
    ) {
        let layout = &pages.config.layout;
        hadamard(values, pages.config.rotation.v);
        for (i, value) in values.chunks_exact(layout.head_dim_v).enumerate() {
            let (block, slot) = self.slot(pages, layer, entry, first + i);
            // SAFETY: as for keys.
            unsafe { self.table.store_value(layout, block, slot, value) };
        }
    }

    fn slot(
        &self,
        pages: &PagesView<'_>,
        layer: usize,
        entry: usize,
        head: usize,
    ) -> (*mut u8, usize) {
        let entry = &self.batch[entry];
        let (sequence, position) = (entry.sequence as usize, entry.position as usize);
        let block = pages.pointer(sequence, position / PAGE_TOKENS, layer, head);
        (block, position % PAGE_TOKENS)
    }
}
