//! Room for the adapters' products of rows, before they are added to outputs.

use super::limits::EngineLimits;
use super::scratch::{PerWorker, Room};
use crate::kernels::lora::PART;
use crate::memory::{MemoryError, Shared};
use crate::model::{ModelConfig, Site};

/// Matrices that run side by side: linear layers, then gate and up of experts.
const SLOTS: usize = EXPERTS + 2;
/// The first slot of experts; the expert for all tokens uses the slots before it.
pub(super) const EXPERTS: usize = 4;
/// Up to this many rows are also shared out by columns, and every worker adds up the sums itself.
pub(super) const FEW: usize = 16;

/// `A · x` of rows, for matrices side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoraRoom<'m> {
    /// Of all rows, (SLOTS, n_rows, rank); or of few rows the partial sums, (SLOTS, n_parts, FEW, rank).
    shared: Shared<'m, f32>,
    /// A worker's own, of few rows: (SLOTS, FEW, rank).
    own: PerWorker<'m, f32>,
    /// A worker's own: the pairs of few rows, (SLOTS, 1 + LISTED · [`Found::WORDS`]), the number first.
    lists: PerWorker<'m, u32>,
    /// Floats of a row: the ranks of all adapters of an entry, each in whole panels.
    rank: usize,
    n_parts: usize,
    /// Floats of a slot.
    slot_len: usize,
}

impl<'m> LoraRoom<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        n_rows: usize,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let rank = limits.adapter_rank;
        let n_parts = longest_row(config).div_ceil(PART);
        let few = FEW.checked_mul(n_parts).ok_or(MemoryError::TooLarge)?;
        let n_rows = if rank == 0 { 0 } else { n_rows.max(few) };
        let slot_len = n_rows.checked_mul(rank).ok_or(MemoryError::TooLarge)?;
        let own = if rank == 0 { 0 } else { SLOTS * FEW * rank };
        Ok(Self {
            shared: room.buffer(SLOTS, slot_len)?,
            own: room.of_workers(limits.n_workers, own)?,
            lists: room.of_workers(limits.n_workers, if rank == 0 { 0 } else { SLOTS * LIST })?,
            rank,
            n_parts,
            slot_len,
        })
    }

    /// Floats from one row to the next.
    pub(super) const fn stride(&self) -> usize {
        self.rank
    }

    /// Rows from number `row` on.
    pub(super) fn rows(&self, slot: usize, row: usize, n: usize) -> Shared<'m, f32> {
        let start = slot * self.slot_len + row * self.rank;
        self.shared.part(start..start + n * self.rank)
    }

    /// The sums of part number `part` of the columns, for few rows.
    pub(super) fn sums(&self, slot: usize, part: usize) -> Shared<'m, f32> {
        assert!(part < self.n_parts);
        let start = slot * self.slot_len + part * FEW * self.rank;
        self.shared.part(start..start + FEW * self.rank)
    }

    /// A worker's own list of pairs.
    pub(super) fn list(&self, worker: usize, slot: usize) -> Shared<'m, u32> {
        self.lists.of(worker).part(slot * LIST..(slot + 1) * LIST)
    }

    /// A worker's own rows.
    pub(super) fn own(&self, worker: usize, slot: usize) -> Shared<'m, f32> {
        let len = FEW * self.rank;
        self.own.of(worker).part(slot * len..(slot + 1) * len)
    }
}

/// Pairs of few rows that are looked up once.
pub(super) const LISTED: usize = 2 * FEW;
/// Words of a list.
const LIST: usize = 1 + LISTED * Found::WORDS;

/// A pair that some rows have: its indices in lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Index in the step's blends.
    pub(super) blend: usize,
    /// Index in the blend's adapters.
    pub(super) part: usize,
    /// Index in the adapter's pairs.
    pub(super) pair: usize,
    /// The first row, and the number of rows.
    pub(super) row: usize,
    pub(super) n_rows: usize,
    /// Offset of the factors in a row's room.
    pub(super) start: usize,
}

impl Found {
    pub(super) const WORDS: usize = 6;

    pub(super) fn to_words(self) -> [u32; Self::WORDS] {
        let all = [
            self.blend,
            self.part,
            self.pair,
            self.row,
            self.n_rows,
            self.start,
        ];
        all.map(|n| u32::try_from(n).expect("counts are below 2^32"))
    }

    pub(super) fn of_words(words: &[u32; Self::WORDS]) -> Self {
        let [blend, part, pair, row, n_rows, start] = words.map(|n| n as usize);
        Self {
            blend,
            part,
            pair,
            row,
            n_rows,
            start,
        }
    }
}

/// Columns of the widest matrix.
fn longest_row(config: &ModelConfig) -> usize {
    let of_kind = |kind| {
        let shapes = Site::IN_LAYER.iter();
        shapes.filter_map(move |site| Some(site.shape(kind, config.n_embd)?[1]))
    };
    let longest = config.kinds.iter().flat_map(of_kind).max();
    longest.unwrap_or(0).max(config.n_embd)
}
