//! Activations and room for workers, carved from the caller's scratch memory.

use super::attention::{TILE_QUERIES, state_len};
use super::experts::Buckets;
use super::limits::Limits;
use super::linear::TILE_FLOATS;
use crate::kernels::activation::{ActivationKinds, ActivationLayout};
use crate::kernels::contract::{GROUP, KV_SPLIT};
use crate::kernels::panel::PANEL_ROWS;
use crate::memory::{Arena, MemoryError, MemoryPlan, Shared};
use crate::model::{ModelConfig, QkNorm};

/// Up to so many tokens, every worker quantises all rows for itself: cheaper than a barrier.
pub(super) const SMALL_BATCH: usize = 8;
/// Most tokens of a tile that a worker computes before its epilogue runs. Most kernels unpack a
/// strip of weights once for each tile, so tiles are as high as the worker's L2 cache allows.
pub(super) const TILE_TOKENS: usize = 512;

/// How the rows of a layer stand for the entries of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Row i is entry i.
    Batch = 0,
    /// The rows of entries that want outputs come first; there may be no others.
    OutputsFirst = 1,
}

/// Lengths of everything in scratch memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScratchPlan {
    n_batch: usize,
    n_outputs: usize,
    n_workers: usize,
    n_seq: usize,
    n_embd: usize,
    n_attention: usize,
    n_query: usize,
    /// Angles of an entry, for all rotations of the model.
    n_angles: usize,
    n_vocab: usize,
    /// Width of what is kept beside the residual stream; 0 where nothing is.
    n_branch: usize,
    /// Columns of the keys, where they are kept before they enter the cache; else 0.
    n_key: usize,
    /// Floats of a worker's own row: what a norm gives, or the neurons of a tile.
    norm_row: usize,
    n_expert: usize,
    n_expert_used: usize,
    /// Whether norms write to the second buffer of the residual stream.
    two_streams: bool,
    /// Layouts of the rows that linear layers read.
    pub(super) embd: ActivationLayout,
    pub(super) experts: ActivationLayout,
    pub(super) attention: ActivationLayout,
    pub(super) ffn: ActivationLayout,
    pub(super) output: ActivationLayout,
    /// Rows of a strip of the query, key and value projections: whole heads, whole panels.
    pub(super) head_strip: usize,
    /// Entries of a tile of attention, at most.
    pub(super) tile_entries: usize,
    /// Floats of attention state per worker.
    attention_state: usize,
    /// Floats of attention states of splits that several workers compute.
    attention_parts: usize,
}

impl ScratchPlan {
    pub(super) fn new(model: &ModelConfig, limits: &Limits) -> Self {
        let of_adapters = match limits.adapters {
            true => ActivationKinds::F32,
            false => ActivationKinds::empty(),
        };
        let kinds = model.activations.with(of_adapters);
        let head_dim = model.head_dim_k.max(model.head_dim_v);
        let head_strip = lcm(lcm(PANEL_ROWS, model.head_dim_k), model.head_dim_v);
        let tile_entries = TILE_QUERIES / model.n_gqa().max(1);
        let tile_entries = tile_entries.clamp(1, limits.n_batch.max(1));
        Self {
            n_batch: limits.n_batch,
            n_outputs: limits.n_outputs,
            n_workers: limits.n_workers,
            n_seq: limits.n_seq,
            n_embd: model.n_embd,
            n_attention: model.n_embd_attention(),
            n_query: model.n_head * model.head_dim_k,
            n_angles: model.n_rot * model.n_ropes(),
            // Encoders give hidden states alone.
            n_vocab: if model.is_causal { model.n_vocab } else { 0 },
            n_expert: model.n_expert,
            n_expert_used: model.n_expert_used,
            two_streams: model.post_norms || model.norms_replace_stream,
            n_branch: if model.post_norms { model.n_embd } else { 0 },
            n_key: match model.qk_norm {
                QkNorm::Row => model.n_head_kv * model.head_dim_k,
                QkNorm::None | QkNorm::Head => 0,
            },
            norm_row: model.n_embd.max(TILE_FLOATS / 2).max(match model.qk_norm {
                QkNorm::Row => model.n_head * model.head_dim_k,
                QkNorm::Head => model.head_dim_k,
                QkNorm::None => 0,
            }),
            embd: ActivationLayout::new(model.n_embd, kinds.stream | kinds.experts),
            experts: ActivationLayout::new(model.n_embd, kinds.experts),
            attention: ActivationLayout::new(model.n_embd_attention(), kinds.attention),
            ffn: ActivationLayout::new(model.n_ff, kinds.ffn),
            output: ActivationLayout::new(model.n_embd, model.output_activations | of_adapters),
            // Heads of an odd length would make strips of everything; those are computed whole.
            head_strip: head_strip.min((model.n_head * head_dim).next_multiple_of(PANEL_ROWS)),
            tile_entries,
            attention_state: tile_entries * state_len(model.n_gqa(), model.head_dim_v),
            // Room for a token's splits; workers that keep their heads to themselves need none.
            attention_parts: if model.n_head_kv.is_multiple_of(limits.n_workers) {
                0
            } else {
                let n_splits = limits.n_ctx.div_ceil(KV_SPLIT) + 1;
                let len = state_len(model.n_head, model.head_dim_v);
                n_splits.saturating_mul(len)
            },
        }
    }

    /// Rows inside the feed-forward networks: one of each token, or of each pair of a token and
    /// its expert.
    fn n_ffn_rows(&self) -> Result<usize, MemoryError> {
        let rows = self.n_batch.checked_mul(self.n_expert_used.max(1));
        rows.filter(|&rows| u32::try_from(rows).is_ok())
            .ok_or(MemoryError::TooLarge)
    }

    /// Rows that are copied to lie side by side: none where all batches are small.
    fn n_expert_rows(&self) -> Result<usize, MemoryError> {
        if self.n_expert == 0 || self.n_batch <= SMALL_BATCH {
            return Ok(0);
        }
        self.n_ffn_rows()
    }

    /// Words of a worker's own buckets.
    fn bucket_words(&self) -> Result<usize, MemoryError> {
        match self.n_expert {
            0 => Ok(0),
            _ => Ok(Buckets::words(self.n_expert, self.n_ffn_rows()?)),
        }
    }

    fn n_second_stream(&self) -> usize {
        if self.two_streams { self.n_embd } else { 0 }
    }

    fn private_row_bytes(&self) -> usize {
        self.embd
            .row_bytes()
            .max(self.attention.row_bytes())
            .max(self.ffn.row_bytes())
            .max(self.output.row_bytes())
    }

    fn tile(&self) -> usize {
        let n_tokens = TILE_TOKENS.min(self.n_batch.max(self.n_outputs));
        n_tokens * self.head_strip.max(2 * GROUP)
    }

    pub(super) fn memory(&self) -> Result<MemoryPlan, MemoryError> {
        let times = |a: usize, b: usize| a.checked_mul(b).ok_or(MemoryError::TooLarge);
        let mut plan = MemoryPlan::new();
        plan.slice::<f32>(times(self.n_batch, self.n_embd)?)?;
        plan.slice::<f32>(times(self.n_batch, self.n_second_stream())?)?;
        plan.slice::<f32>(times(self.n_batch, self.n_branch)?)?;
        plan.slice::<f32>(times(self.n_batch, self.n_query)?)?;
        plan.slice::<f32>(times(self.n_batch, self.n_key)?)?;
        plan.slice::<f32>(times(self.n_batch, self.n_attention)?)?;
        plan.slice::<f32>(times(self.n_batch, self.n_angles)?)?;
        plan.slice::<u8>(times(self.n_batch, self.embd.row_bytes())?)?;
        plan.slice::<u8>(times(self.n_batch, self.attention.row_bytes())?)?;
        plan.slice::<u8>(times(self.n_ffn_rows()?, self.ffn.row_bytes())?)?;
        plan.slice::<u8>(times(self.n_expert_rows()?, self.experts.row_bytes())?)?;
        plan.slice::<u32>(times(self.n_batch, self.n_expert_used)?)?;
        plan.slice::<f32>(times(self.n_batch, self.n_expert_used)?)?;
        plan.slice::<u8>(times(self.n_outputs, self.output.row_bytes())?)?;
        plan.slice::<f32>(times(self.n_outputs, self.n_vocab)?)?;
        plan.slice::<f32>(times(self.n_outputs, self.n_embd)?)?;
        plan.slice::<u32>(self.n_batch)?;
        plan.slice::<u32>(self.n_seq)?;
        plan.slice::<u32>(self.n_batch + 1)?;
        plan.slice::<u32>(self.n_batch + 1)?;
        let workers = self.n_workers;
        plan.slice::<u8>(times(workers * SMALL_BATCH, self.private_row_bytes())?)?;
        plan.slice::<f32>(times(workers, self.tile())?)?;
        plan.slice::<f32>(times(workers, self.norm_row)?)?;
        plan.slice::<f32>(times(workers, self.n_branch)?)?;
        plan.slice::<f32>(times(workers, 2 * self.attention_state)?)?;
        plan.slice::<f32>(times(workers, TILE_TOKENS * self.n_expert)?)?;
        plan.slice::<u32>(times(workers, SMALL_BATCH * self.n_expert_used)?)?;
        plan.slice::<f32>(times(workers, SMALL_BATCH * self.n_expert_used)?)?;
        plan.slice::<u32>(times(workers, self.bucket_words()?)?)?;
        plan.slice::<f32>(self.attention_parts)?;
        Ok(plan)
    }
}

/// Scratch memory, shared by the workers of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch<'m> {
    pub(super) plan: ScratchPlan,
    /// The residual stream, (n_batch, n_embd); the second buffer is empty where nothing is kept
    /// beside it.
    pub(super) x: [Shared<'m, f32>; 2],
    /// What will be added to the residual stream, (n_batch, n_embd), for families with norms
    /// behind attention and feed-forward network.
    pub(super) branch: Shared<'m, f32>,
    /// Rotated queries, (n_batch, n_head * head_dim_k).
    pub(super) q: Shared<'m, f32>,
    /// Keys before norms over whole rows, (n_batch, n_head_kv * head_dim_k).
    pub(super) k: Shared<'m, f32>,
    /// Attention output, (n_batch, n_head * head_dim_v).
    pub(super) attention: Shared<'m, f32>,
    /// Cosines then sines of each entry's position, (n_batch, n_ropes, n_rot).
    pub(super) angles: Shared<'m, f32>,
    /// Quantised rows of the residual stream after a norm.
    pub(super) embd_rows: Shared<'m, u8>,
    /// Quantised rows of the attention output.
    pub(super) attention_rows: Shared<'m, u8>,
    /// Quantised rows of the feed-forward network's inside.
    pub(super) ffn_rows: Shared<'m, u8>,
    /// Quantised rows of the residual stream, one for each pair, sorted by expert.
    pub(super) expert_rows: Shared<'m, u8>,
    /// Experts of each token, (n_batch, n_expert_used), and their weights.
    chosen: (Shared<'m, u32>, Shared<'m, f32>),
    /// Quantised rows that give logits.
    pub(super) output_rows: Shared<'m, u8>,
    /// (n_outputs, n_vocab).
    pub(super) logits: Shared<'m, f32>,
    /// (n_outputs, n_embd).
    pub(super) hidden: Shared<'m, f32>,
    /// Entries of the batch at hand: those that want outputs, then the others.
    pub(super) outputs_first: Shared<'m, u32>,
    /// Tokens of each sequence in the batch at hand.
    pub(super) pending: Shared<'m, u32>,
    /// First row of each tile of attention in the batch at hand, and the end of the last: of all
    /// entries, and of those alone that want outputs.
    pub(super) tiles: [Shared<'m, u32>; 2],
    private_rows: Shared<'m, u8>,
    products: Shared<'m, f32>,
    norms: Shared<'m, f32>,
    sums: Shared<'m, f32>,
    attention_states: Shared<'m, f32>,
    routers: Shared<'m, f32>,
    chosen_private: (Shared<'m, u32>, Shared<'m, f32>),
    buckets: Shared<'m, u32>,
    /// States of splits that several workers compute.
    pub(super) attention_parts: Shared<'m, f32>,
}

impl<'m> Scratch<'m> {
    pub(super) fn new(plan: ScratchPlan, memory: &'m mut [u8]) -> Result<Self, MemoryError> {
        let p = &plan;
        let mut arena = Arena::new(memory)?;
        p.memory()?;
        Ok(Self {
            plan,
            x: [
                Shared::new(arena.slice(p.n_batch * p.n_embd, 0.0)?),
                Shared::new(arena.slice(p.n_batch * p.n_second_stream(), 0.0)?),
            ],
            branch: Shared::new(arena.slice(p.n_batch * p.n_branch, 0.0)?),
            q: Shared::new(arena.slice(p.n_batch * p.n_query, 0.0)?),
            k: Shared::new(arena.slice(p.n_batch * p.n_key, 0.0)?),
            attention: Shared::new(arena.slice(p.n_batch * p.n_attention, 0.0)?),
            angles: Shared::new(arena.slice(p.n_batch * p.n_angles, 0.0)?),
            embd_rows: Shared::new(arena.slice(p.n_batch * p.embd.row_bytes(), 0)?),
            attention_rows: Shared::new(arena.slice(p.n_batch * p.attention.row_bytes(), 0)?),
            ffn_rows: Shared::new(arena.slice(p.n_ffn_rows()? * p.ffn.row_bytes(), 0)?),
            expert_rows: Shared::new(arena.slice(p.n_expert_rows()? * p.experts.row_bytes(), 0)?),
            chosen: (
                Shared::new(arena.slice(p.n_batch * p.n_expert_used, 0)?),
                Shared::new(arena.slice(p.n_batch * p.n_expert_used, 0.0)?),
            ),
            output_rows: Shared::new(arena.slice(p.n_outputs * p.output.row_bytes(), 0)?),
            logits: Shared::new(arena.slice(p.n_outputs * p.n_vocab, 0.0)?),
            hidden: Shared::new(arena.slice(p.n_outputs * p.n_embd, 0.0)?),
            outputs_first: Shared::new(arena.slice(p.n_batch, 0)?),
            pending: Shared::new(arena.slice(p.n_seq, 0)?),
            tiles: [
                Shared::new(arena.slice(p.n_batch + 1, 0)?),
                Shared::new(arena.slice(p.n_batch + 1, 0)?),
            ],
            private_rows: Shared::new(
                arena.slice(p.n_workers * SMALL_BATCH * p.private_row_bytes(), 0)?,
            ),
            products: Shared::new(arena.slice(p.n_workers * p.tile(), 0.0)?),
            norms: Shared::new(arena.slice(p.n_workers * p.norm_row, 0.0)?),
            sums: Shared::new(arena.slice(p.n_workers * p.n_branch, 0.0)?),
            attention_states: Shared::new(arena.slice(p.n_workers * 2 * p.attention_state, 0.0)?),
            routers: Shared::new(arena.slice(p.n_workers * TILE_TOKENS * p.n_expert, 0.0)?),
            chosen_private: (
                Shared::new(arena.slice(p.n_workers * SMALL_BATCH * p.n_expert_used, 0)?),
                Shared::new(arena.slice(p.n_workers * SMALL_BATCH * p.n_expert_used, 0.0)?),
            ),
            buckets: Shared::new(arena.slice(p.n_workers * p.bucket_words()?, 0)?),
            attention_parts: Shared::new(arena.slice(p.attention_parts, 0.0)?),
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

    /// Rank `rank`'s own rows for [`SMALL_BATCH`] tokens.
    pub(super) fn private_rows(&self, rank: usize) -> Shared<'m, u8> {
        part(
            &self.private_rows,
            rank,
            SMALL_BATCH * self.plan.private_row_bytes(),
        )
    }

    /// Rank `rank`'s own tile: up to [`TILE_TOKENS`] × the widest strip, or as many products of several
    /// strips and fewer tokens.
    pub(super) fn tile(&self, rank: usize) -> Shared<'m, f32> {
        part(&self.products, rank, self.plan.tile())
    }

    /// Rank `rank`'s own row for norms (as long as the longest), and for a tile's neurons.
    pub(super) fn norm(&self, rank: usize) -> Shared<'m, f32> {
        part(&self.norms, rank, self.plan.norm_row)
    }

    /// Rank `rank`'s own row of the residual stream (n_embd), where something is kept beside it.
    pub(super) fn sum(&self, rank: usize) -> Shared<'m, f32> {
        part(&self.sums, rank, self.plan.n_branch)
    }

    /// Room for the experts of each token, and their weights: rank `rank`'s own for
    /// [`SMALL_BATCH`] tokens, or everybody's.
    pub(super) fn choices(&self, rank: Option<usize>) -> (Shared<'m, u32>, Shared<'m, f32>) {
        let Some(rank) = rank else {
            return self.chosen;
        };
        let len = SMALL_BATCH * self.plan.n_expert_used;
        let (experts, weights) = &self.chosen_private;
        (part(experts, rank, len), part(weights, rank, len))
    }

    /// Rank `rank`'s own probabilities: [`TILE_TOKENS`] × n_expert.
    pub(super) fn router(&self, rank: usize) -> Shared<'m, f32> {
        part(&self.routers, rank, TILE_TOKENS * self.plan.n_expert)
    }

    /// Rank `rank`'s own room for buckets.
    pub(super) fn buckets(&self, rank: usize) -> Shared<'m, u32> {
        let words = self.buckets.len() / self.plan.n_workers;
        part(&self.buckets, rank, words)
    }

    /// Rank `rank`'s own attention states: a split's and the merged one's.
    pub(super) fn attention_state(&self, rank: usize) -> Shared<'m, f32> {
        part(&self.attention_states, rank, 2 * self.plan.attention_state)
    }
}

/// The `rank`th part of `len` elements.
fn part<'m, T: Copy>(all: &Shared<'m, T>, rank: usize, len: usize) -> Shared<'m, T> {
    all.part(rank * len..(rank + 1) * len)
}

/// Least common multiple, for head lengths (never 0).
pub(super) const fn lcm(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
