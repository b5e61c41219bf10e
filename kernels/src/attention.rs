//! What attention kernels take: blocks of keys and values, queries, running softmaxes.

use crate::args::TileRange;
use crate::contract::{KV_BLOCK, KV_SPLIT};
use crate::kv::KvLayout;

/// Maximum number of blocks in a call: one split.
pub const BLOCKS_MAX: usize = KV_SPLIT / KV_BLOCK;

/// Blocks of keys and values that follow each other within a split, and queries that see them.
///
/// Queries are grouped in rows: the heads that share a KV head, of one token. All rows share what is loaded of a block,
/// and each has the same bits as it would alone.
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs<'a> {
    /// Shape and types of a block.
    pub layout: KvLayout,
    /// The blocks, at most [`BLOCKS_MAX`], each of [`KvLayout::block_bytes`] and aligned to
    /// [`crate::kv::KV_ALIGN`].
    pub blocks: &'a [&'a [u8]],
    /// The block that will be read after these: the first queries, if they see the last of `blocks`,
    /// prefetch it meanwhile. A hint, which is never read and may point anywhere; null for none.
    pub next: *const u8,
    /// Queries in a row.
    pub n_group: usize,
    /// The rows.
    pub rows: &'a [AttentionRow<'a>],
    /// Factor on scores, usually `1 / sqrt(head_dim_k)`.
    pub scale: f32,
    /// What scores are capped to ([`crate::contract::soft_cap`]); 0 for no cap.
    pub soft_cap: f32,
    /// What each key between a query and a key subtracts from their score (ALiBi), by the query's place in its row,
    /// (n_group); empty for no slopes.
    pub slopes: &'a [f32],
}

/// The query heads of one token that share a KV head.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRow<'a> {
    /// Rotated queries, (n_group, head_dim_k).
    pub queries: &'a [f32],
    /// Keys that they see, counted from the first key of the first block; may be empty. A block without any of them is
    /// skipped.
    pub keys: TileRange,
    /// Position of the token, counted as keys are; used only for slopes. At most 2^23 from any key.
    pub position: isize,
}

impl AttentionArgs<'_> {
    /// Queries in all.
    pub const fn n_queries(&self) -> usize {
        self.n_group * self.rows.len()
    }

    /// Query number `i` (head_dim_k).
    #[inline(always)]
    pub(crate) fn query(&self, i: usize) -> &[f32] {
        let (row, head) = (i / self.n_group, i % self.n_group);
        let head_dim = self.layout.head_dim_k;
        &self.rows[row].queries[head * head_dim..(head + 1) * head_dim]
    }

    /// The slope of query `i`, and where it stands as seen from the first key of block `b`.
    #[inline(always)]
    pub(crate) fn slope(&self, i: usize, b: usize) -> (f32, f32) {
        let position = self.rows[i / self.n_group].position;
        let position = position.saturating_sub((b * KV_BLOCK).cast_signed());
        #[expect(clippy::cast_precision_loss, reason = "exact by the caller")]
        let position = position as f32;
        (self.slopes[i % self.n_group], position)
    }

    /// Keys that query `i` sees.
    #[inline(always)]
    pub(crate) fn keys(&self, i: usize) -> TileRange {
        self.rows[i / self.n_group].keys
    }
}

/// The part of `keys` in block `b`, counted from the block's first key; may be empty.
#[inline(always)]
pub(crate) fn visible(keys: TileRange, b: usize) -> TileRange {
    let clip = |key: usize| key.saturating_sub(b * KV_BLOCK).min(KV_BLOCK);
    (clip(keys.start)..clip(keys.end)).into()
}

/// A running softmax over keys, per query.
#[derive(Debug)]
pub struct AttentionState<'a> {
    /// Largest score so far, (n_queries).
    pub max: &'a mut [f32],
    /// Sum of weights relative to `max`, (n_queries).
    pub sum: &'a mut [f32],
    /// Sum of weighted values, (n_queries, head_dim_v).
    pub out: &'a mut [f32],
}

impl AttentionState<'_> {
    /// Before any key.
    pub fn reset(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.out.fill(0.0);
    }

    /// Divides by the sums: the attention output. NaN for a query that has seen no key.
    pub fn finish(&mut self) {
        let Some(head_dim) = self.out.len().checked_div(self.sum.len()) else {
            return;
        };
        for (out, sum) in self.out.chunks_exact_mut(head_dim.max(1)).zip(&*self.sum) {
            let inverse = 1.0 / *sum;
            out.iter_mut().for_each(|x| *x *= inverse);
        }
    }
}
