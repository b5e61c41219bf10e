//! Memory of attention, and how batches are cut into tiles.

use super::latent::LatentRoom;
use crate::engine::batch::BatchEntry;
use crate::engine::limits::EngineLimits;
use crate::engine::pass::{Common, Needs, activations_of};
use crate::engine::rows::Order;
use crate::engine::scratch::{PerWorker, Room};
use crate::kernels::activation::ActivationLayout;
use crate::kernels::contract::KV_SPLIT;
use crate::kernels::panel::PANEL_ROWS;
use crate::memory::{MemoryError, Shared};
use crate::model::{Attention, ModelConfig, QkNorm};

/// Queries of a tile: enough to compute more than to load, and whole chunks of a kernel.
pub(super) const TILE_QUERIES: usize = 96;

/// Floats of the running softmax of one entry.
pub(super) const fn state_len(n_gqa: usize, head_dim_v: usize) -> usize {
    n_gqa * (head_dim_v + 2)
}

/// Rows of a strip of the query, key and value projections: whole heads, whole panels.
pub(super) fn head_strip(shape: &Attention) -> usize {
    let strip = match shape.latent {
        // Latent attention's projections do not consist of heads.
        Some(_) => PANEL_ROWS,
        None => lcm(lcm(PANEL_ROWS, shape.head_dim_k), shape.head_dim_v),
    };
    // Heads of an odd length would make a strip of everything; they are computed whole.
    let head_dim = shape.head_dim_k.max(shape.head_dim_v);
    strip.min((shape.n_head * head_dim).next_multiple_of(PANEL_ROWS))
}

/// Memory of attention.
#[derive(Debug)]
pub(in crate::engine) struct AttentionRoom<'m> {
    /// Rotated queries, (n_batch, n_head * head_dim_k).
    pub(super) q: Shared<'m, f32>,
    /// Keys before norms over whole rows, (n_batch, n_head_kv * head_dim_k).
    pub(super) k: Shared<'m, f32>,
    /// Gates of query heads where they have some, (n_batch, n_head * head_dim_v).
    pub(super) gates: Shared<'m, f32>,
    /// Attention output, (n_batch, n_head * head_dim_v).
    pub(super) out: Shared<'m, f32>,
    /// The attention output, quantised.
    pub(super) rows: Shared<'m, u8>,
    /// First row of each tile in the current batch, and the end of the last tile: of all entries, and of the
    /// entries that want outputs.
    tiles: [Shared<'m, u32>; 2],
    /// A worker's own states: a split's and the merged one's.
    pub(super) states: PerWorker<'m, f32>,
    /// States of splits that several workers compute.
    pub(super) parts: Shared<'m, f32>,
    pub(super) latent: LatentRoom<'m>,
    pub(in crate::engine) tiler: Tiler,
    pub(in crate::engine::blocks) needs: Needs,
}

impl<'m> AttentionRoom<'m> {
    pub(in crate::engine) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let most = |len: fn(&Attention) -> usize| config.attentions().map(len).max().unwrap_or(0);
        let tiler = Tiler::new(config, limits);
        let kinds = activations_of(config, limits).mixed;
        let row_bytes = match most(Attention::n_mixed) {
            0 => 0,
            n => ActivationLayout::new(n, kinds).row_bytes(),
        };
        let (n_batch, n_tiles) = (limits.n_batch, limits.n_batch + 1);
        let state = tiler.tile_entries * most(|shape| state_len(shape.n_group(), shape.head_dim_v));
        // Room for a token's splits; workers that keep their heads to themselves need none.
        let shares = |shape: &Attention| {
            shape.latent.is_some() || !shape.n_head_kv.is_multiple_of(limits.n_workers)
        };
        let parts = match config.attentions().any(shares) {
            true => most(|shape| state_len(shape.n_head, shape.head_dim_v)),
            false => 0,
        };
        Ok(Self {
            q: room.buffer(n_batch, most(Attention::n_query))?,
            k: room.buffer(
                n_batch,
                most(|shape| match shape.qk_norm {
                    _ if shape.latent.is_some() => shape.n_key(),
                    QkNorm::Row => shape.n_key(),
                    QkNorm::None | QkNorm::Head | QkNorm::EachHead => 0,
                }),
            )?,
            gates: room.buffer(
                n_batch,
                most(|shape| if shape.has_gate { shape.n_out() } else { 0 }),
            )?,
            out: room.buffer(n_batch, most(Attention::n_out))?,
            rows: room.buffer(n_batch, row_bytes)?,
            tiles: [room.buffer(n_tiles, 1)?, room.buffer(n_tiles, 1)?],
            states: room.of_workers(limits.n_workers, 2 * state)?,
            parts: room.buffer(limits.n_ctx.div_ceil(KV_SPLIT) + 1, parts)?,
            latent: LatentRoom::new(config, limits, room)?,
            needs: Needs {
                row_bytes,
                // Queries with gates are twice as many.
                strip_rows: most(|shape| if shape.has_gate { 2 } else { 1 } * head_strip(shape)),
                norm_row: most(|shape| match shape.qk_norm {
                    _ if shape.latent.is_some() => shape.n_key().max(shape.n_query()),
                    QkNorm::Row => shape.n_query(),
                    QkNorm::Head | QkNorm::EachHead => shape.head_dim_k.max(shape.head_dim_v),
                    QkNorm::None => shape.head_dim_v,
                }),
                n_rows: 0,
            },
            tiler,
        })
    }

    /// Starts of tile `i` and of the next tile, for rows in that order; the end of the last tile.
    ///
    /// # Safety
    /// - [`Tiler::cut`] has returned, and does not run while the slice lives.
    pub(super) unsafe fn tile_starts(&self, order: Order, i: usize) -> &'m [u32] {
        // SAFETY: by the caller.
        unsafe { self.tiles[order as usize].read(i..i + 2) }
    }
}

/// Cuts batches into tiles.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Tiler {
    /// Maximum number of entries in a tile.
    tile_entries: usize,
    n_workers: usize,
    /// Minimum number of units of work that a layer's heads make.
    n_units: usize,
    /// Whether they divide evenly among the workers, in every layer.
    is_even: bool,
}

impl Tiler {
    fn new(config: &ModelConfig, limits: &EngineLimits) -> Self {
        let n_group = config.attentions().map(Attention::n_group).max();
        let tile_entries = TILE_QUERIES / n_group.unwrap_or(1).max(1);
        let heads = || config.attentions().map(Attention::n_units);
        let n_workers = limits.n_workers;
        Self {
            tile_entries: tile_entries.clamp(1, limits.n_batch.max(1)),
            n_workers,
            n_units: heads().min().unwrap_or(1),
            is_even: heads().all(|n| n.is_multiple_of(n_workers)),
        }
    }

    /// Cuts the first `n` rows of a batch into tiles of consecutive entries of one sequence. Returns the number
    /// of tiles.
    ///
    /// # Safety
    /// - No step is running.
    pub(in crate::engine) unsafe fn cut(
        &self,
        room: &AttentionRoom<'_>,
        common: &Common<'_>,
        batch: &[BatchEntry],
        order: Order,
        n: usize,
    ) -> usize {
        let most = self.tile_entries;
        let len = if self.is_even {
            most
        } else {
            // A few units for each worker: the smaller, the more evenly they divide.
            (n * self.n_units / (4 * self.n_workers)).clamp(1, most)
        };
        // SAFETY: by the caller.
        let tiles = unsafe { room.tiles[order as usize].write(0..n + 1) };
        let (mut n_tiles, mut first) = (0, 0);
        for row in 1..=n {
            let goes_on = row < n && row - first < len && {
                let [before, entry] = [row - 1, row].map(|row| common.entry(order, row));
                entry == before + 1
                    && batch[entry].sequence == batch[before].sequence
                    && batch[entry].position == batch[before].position + 1
            };
            if !goes_on {
                tiles[n_tiles] = u32::try_from(first).expect("batches are below 2^24");
                n_tiles += 1;
                first = row;
            }
        }
        tiles[n_tiles] = u32::try_from(n).expect("batches are below 2^24");
        n_tiles
    }
}

/// Least common multiple, for head lengths (never 0).
pub(super) const fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::lcm;

    #[test]
    fn common_multiples_of_head_lengths() {
        for (a, b, expected) in [
            (16, 64, 64),
            (16, 80, 80),
            (16, 5, 80),
            (48, 32, 96),
            (7, 7, 7),
        ] {
            assert_eq!(lcm(a, b), expected);
        }
    }
}
