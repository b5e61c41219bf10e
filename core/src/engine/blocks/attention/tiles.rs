//! Attention of tiles: entries of one sequence at consecutive positions, which read its keys
//! together, one KV head at a time.
//!
//! A tile costs the loads of one entry. Its queries see only their own keys, so where a batch is
//! cut does not change bits. Splits of 512 keys are computed apart and merged in ascending order, by
//! one worker or, where there are too few tiles and heads for the workers, by several.

use super::Block;
use super::room::{TILE_QUERIES, state_len};
use crate::engine::rows::Order;
use crate::kernels::contract::{KV_BLOCK, KV_SPLIT};
use crate::kernels::hadamard::hadamard;
use crate::kernels::table::{AttentionArgs, AttentionRow, AttentionState, TileRange};
use crate::memory::Shared;
use crate::model::SLOPES_MAX;
use crate::state::PAGE_TOKENS;
use core::ops::Range;

const _: () = assert!(PAGE_TOKENS == KV_BLOCK);

const BLOCKS: usize = KV_SPLIT / KV_BLOCK;

/// Rows of consecutive entries, which read the keys together.
struct Tile {
    rows: Range<usize>,
    /// The entry of the first row.
    entry: usize,
}

impl Block<'_> {
    /// Tiles of rows in that order.
    pub(super) fn n_tiles(&self, order: Order) -> usize {
        self.pass.n_tiles[order as usize]
    }

    /// Tile `i` of rows in that order.
    fn tile(&self, order: Order, i: usize) -> Tile {
        // SAFETY: written before the step began.
        let ends = unsafe { self.room.tile_starts(order, i) };
        let rows = ends[0] as usize..ends[1] as usize;
        Tile {
            entry: self.pass.common.entry(order, rows.start),
            rows,
        }
    }

    /// Positions that entry `entry` sees.
    fn visible(&self, entry: usize) -> Range<usize> {
        let end = self.pass.n_keys(entry);
        let Some(window) = self.shape.window else {
            return 0..end;
        };
        if self.pass.config().is_causal {
            // It ends with the entry's own key.
            return end.saturating_sub(window)..end;
        }
        let at = self.pass.batch[entry].position as usize;
        at.saturating_sub(window / 2)..(at + window / 2 + 1).min(end)
    }

    /// Positions that some entry of a tile sees.
    fn visible_to_tile(&self, tile: &Tile) -> Range<usize> {
        let first = self.visible(tile.entry);
        first.start..self.visible(tile.entry + tile.rows.len() - 1).end
    }

    /// Splits that a tile sees keys of.
    fn splits(&self, tile: &Tile) -> Range<usize> {
        let keys = self.visible_to_tile(tile);
        keys.start / KV_SPLIT..keys.end.div_ceil(KV_SPLIT)
    }

    /// Attention output of some units: unit u is tile u % n_tiles for group u / n_tiles of query heads (the heads of a
    /// KV head, or a part of them). Returns the KV bytes read.
    pub(super) fn units(&self, rank: usize, order: Order, units: Range<usize>) -> usize {
        let n_tiles = self.n_tiles(order);
        let unit = |u: usize| (self.tile(order, u % n_tiles), u / n_tiles);
        let mut bytes = 0;
        for u in units.clone() {
            let (tile, group) = unit(u);
            let next = match u + 1 < units.end {
                true => {
                    let (tile, group) = unit(u + 1);
                    self.first_block(&tile, group, self.splits(&tile).start)
                }
                false => core::ptr::null(),
            };
            bytes += self.attend_unit(rank, &tile, group, next);
        }
        bytes
    }

    /// Attention output of a tile for the query heads of `group`; `next`: the block that is read
    /// after this unit's, or null.
    fn attend_unit(&self, rank: usize, tile: &Tile, group: usize, next: *const u8) -> usize {
        let memory = self.room.states.of(rank);
        let half = memory.len() / 2;
        let mut merged = self.state(&memory.part(0..half), tile.rows.len());
        let mut part = self.state(&memory.part(half..2 * half), tile.rows.len());
        merged.reset();
        let mut bytes = 0;
        let splits = self.splits(tile);
        for split in splits.clone() {
            let next = match split + 1 < splits.end {
                true => self.first_block(tile, group, split + 1),
                false => next,
            };
            bytes += self.attend_split(tile, group, split, next, &mut part);
            self.pass.table.attention_merge(&part, &mut merged);
        }
        self.finish(tile, group, &mut merged, &mut part);
        bytes
    }

    /// Where a split starts for a tile: the first position of the first block that it sees.
    fn split_start(&self, tile: &Tile, split: usize) -> usize {
        let keys = self.visible_to_tile(tile);
        (split * KV_SPLIT).max(keys.start / KV_BLOCK * KV_BLOCK)
    }

    /// The KV head of a group of query heads.
    fn head_kv(&self, group: usize) -> usize {
        group / self.shape.n_groups()
    }

    /// The first block of a split that a tile sees. A hint: not to be read through.
    fn first_block(&self, tile: &Tile, group: usize, split: usize) -> *const u8 {
        let sequence = self.pass.batch[tile.entry].sequence as usize;
        let page = self.split_start(tile, split) / PAGE_TOKENS;
        self.pages
            .pointer(sequence, page, self.layer, self.head_kv(group))
    }

    /// The softmax of a tile's queries over the keys of one split.
    fn attend_split(
        &self,
        tile: &Tile,
        group: usize,
        split: usize,
        next: *const u8,
        state: &mut AttentionState<'_>,
    ) -> usize {
        let shape = self.shape;
        let (n_group, dim_k) = (shape.n_group(), shape.head_dim_k);
        let keys = self.visible_to_tile(tile);
        let first = self.split_start(tile, split);
        let end = ((split + 1) * KV_SPLIT).min(keys.end);
        let sequence = self.pass.batch[tile.entry].sequence as usize;
        let mut blocks: [&[u8]; BLOCKS] = [&[]; BLOCKS];
        let blocks = &mut blocks[..(end - first).div_ceil(KV_BLOCK)];
        for (i, block) in blocks.iter_mut().enumerate() {
            let index = first / PAGE_TOKENS + i;
            // SAFETY: keys of this step were stored before the last barrier, or by this worker.
            *block = unsafe {
                self.pages
                    .block(sequence, index, self.layer, self.head_kv(group))
            };
        }
        let none = AttentionRow {
            queries: &[],
            keys: TileRange { start: 0, end: 0 },
            position: 0,
        };
        // Filling 3 KB would take as long as the keys of a short text.
        let (mut one, mut many);
        let rows: &mut [AttentionRow<'_>] = if tile.rows.len() == 1 {
            one = [none];
            &mut one
        } else {
            many = [none; TILE_QUERIES];
            &mut many[..tile.rows.len()]
        };
        for (i, row) in rows.iter_mut().enumerate() {
            let queries = ((tile.rows.start + i) * shape.n_head + group * n_group) * dim_k;
            // SAFETY: as for keys.
            row.queries = unsafe { self.room.q.read(queries..queries + n_group * dim_k) };
            let seen = self.visible(tile.entry + i);
            let clip = |position: usize| position.clamp(first, end) - first;
            row.keys = (clip(seen.start)..clip(seen.end)).into();
            let position = self.pass.batch[tile.entry + i].position as usize;
            row.position = position.cast_signed() - first.cast_signed();
        }
        let mut slopes = [0.0; SLOPES_MAX];
        let args = AttentionArgs {
            layout: self.pages.config.layout,
            blocks,
            next,
            n_group,
            rows,
            scale: shape.scale,
            soft_cap: shape.soft_cap,
            slopes: self.slopes(group, &mut slopes),
        };
        state.reset();
        self.pass.table.attention(&args, state);
        blocks.len() * self.pages.block_bytes()
    }

    /// The slopes of a group of query heads, in `room`; empty without ALiBi.
    fn slopes<'r>(&self, group: usize, room: &'r mut [f32; SLOPES_MAX]) -> &'r [f32] {
        let (shape, n_group) = (self.shape, self.shape.n_group());
        if shape.max_alibi_bias == 0.0 {
            return &[];
        }
        let room = &mut room[..n_group];
        for (i, slope) in room.iter_mut().enumerate() {
            *slope = shape.slope(group * n_group + i);
        }
        room
    }

    /// Writes the output of a tile and head, after adding the sinks. `part` is room.
    fn finish(
        &self,
        tile: &Tile,
        group: usize,
        merged: &mut AttentionState<'_>,
        part: &mut AttentionState<'_>,
    ) {
        let (shape, n_group) = (self.shape, self.shape.n_group());
        if let Some(sinks) = self.sinks {
            // A sink is a split of one key, whose value is zero.
            part.reset();
            let sinks = &sinks[group * n_group..][..n_group];
            for queries in part.max.chunks_exact_mut(n_group) {
                queries.copy_from_slice(sinks);
            }
            part.sum.fill(1.0);
            part.out.fill(0.0);
            self.pass.table.attention_merge(part, merged);
        }
        let width = n_group * shape.head_dim_v;
        merged.finish();
        for (row, from) in tile.rows.clone().zip(merged.out.chunks_exact(width)) {
            let out = row * shape.n_out() + group * width;
            // SAFETY: this row and head belong to one worker.
            let to = unsafe { self.room.out.write(out..out + width) };
            to.copy_from_slice(from);
            // Sums of rotated values are rotated back.
            hadamard(to, self.pages.config.rotation.v);
            if shape.has_gate {
                // SAFETY: as queries: written before the last barrier, or by this worker.
                let gates = unsafe { self.room.gates.read(out..out + width) };
                self.pass.table.sigmoid_mul(gates, to);
            }
        }
    }

    /// Number of splits, if the splits of each tile and head are separate units of work: where tiles and heads divide
    /// badly among `n_workers`, contexts are long and there is room for the parts.
    pub(super) fn n_parts(&self, order: Order, n_workers: usize) -> Option<usize> {
        let (shape, n_tiles) = (self.shape, self.n_tiles(order));
        let units = n_tiles * shape.n_units();
        let busiest = units.div_ceil(n_workers) * n_workers;
        let len = state_len(shape.n_group(), shape.head_dim_v);
        let room = self.room.parts.len() / (len * shape.n_units());
        if room == 0 || 10 * units >= 9 * busiest {
            return None;
        }
        let tiles = || (0..n_tiles).map(|i| self.tile(order, i));
        let n_splits = tiles().map(|tile| self.splits(&tile).len()).max()?;
        let n_rows = tiles().next_back()?.rows.end;
        (n_splits > 1 && n_splits * n_rows <= room).then_some(n_splits)
    }

    /// Memory for the softmaxes of a part. The softmaxes of one tile, head and split are adjacent.
    fn part(&self, tile: &Tile, group: usize, n: usize, split: usize) -> Shared<'_, f32> {
        let shape = self.shape;
        let len = state_len(shape.n_group(), shape.head_dim_v);
        let tiles_before = tile.rows.start * shape.n_units() * n;
        let start = (tiles_before + (group * n + split) * tile.rows.len()) * len;
        let parts = &self.room.parts;
        parts.part(start..start + tile.rows.len() * len)
    }

    /// Computes part `i` of `n` per tile and head; returns the KV bytes read.
    pub(super) fn part_of(&self, order: Order, i: usize, n: usize) -> usize {
        let n_units = self.shape.n_units();
        let (group, rest) = (i / n % n_units, i / n / n_units);
        let tile = self.tile(order, rest);
        let splits = self.splits(&tile);
        if i % n >= splits.len() {
            return 0;
        }
        let mut part = self.state(&self.part(&tile, group, n, i % n), tile.rows.len());
        let split = splits.start + i % n;
        // The worker of the next part is not known.
        let nothing = core::ptr::null();
        self.attend_split(&tile, group, split, nothing, &mut part)
    }

    /// Merges the parts of tile and head number `i`.
    pub(super) fn merge_parts(&self, rank: usize, order: Order, i: usize, n: usize) {
        let n_units = self.shape.n_units();
        let (group, rest) = (i % n_units, i / n_units);
        let tile = self.tile(order, rest);
        let memory = self.room.states.of(rank);
        let mut merged = self.state(&memory.part(0..memory.len() / 2), tile.rows.len());
        merged.reset();
        for split in 0..self.splits(&tile).len() {
            let part = self.state(&self.part(&tile, group, n, split), tile.rows.len());
            self.pass.table.attention_merge(&part, &mut merged);
        }
        let half = memory.len() / 2;
        let mut room = self.state(&memory.part(half..2 * half), tile.rows.len());
        self.finish(&tile, group, &mut merged, &mut room);
    }

    /// The running softmaxes of `n_rows` rows, in memory that only this worker uses.
    fn state<'a>(&self, memory: &Shared<'a, f32>, n_rows: usize) -> AttentionState<'a> {
        let shape = self.shape;
        let n_queries = n_rows * shape.n_group();
        // SAFETY: the memory is this worker's own between two barriers: its private room, or a
        // part that only it computes, or only it merges.
        let memory = unsafe { memory.write(0..n_queries * (shape.head_dim_v + 2)) };
        let (max, rest) = memory.split_at_mut(n_queries);
        let (sum, out) = rest.split_at_mut(n_queries);
        AttentionState { max, sum, out }
    }
}
