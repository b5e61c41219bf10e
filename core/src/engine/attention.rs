//! Attention of one entry and one KV head: all query heads that share it.

use super::forward::Pass;
use crate::kernels::contract::{KV_BLOCK, KV_SPLIT};
use crate::kernels::table::{AttentionBlock, AttentionState};
use crate::kv_cache::PAGE_TOKENS;
use crate::memory::Shared;

const _: () = assert!(PAGE_TOKENS == KV_BLOCK);

impl Pass<'_, '_> {
    /// Computes the attention output of entry `entry` for the query heads of `head_kv`;
    /// returns the KV bytes read.
    pub(super) fn attend(&self, rank: usize, layer: usize, entry: usize, head_kv: usize) -> usize {
        let config = self.config();
        let (n_gqa, dim_k, dim_v) = (config.n_gqa(), config.head_dim_k, config.head_dim_v);
        let row = &self.batch[entry];
        let n_keys = self.n_keys(entry);
        // A window of n keys ends with the entry's own.
        let first_key = match self.model.layers()[layer].window(config) {
            Some(window) => n_keys.saturating_sub(window),
            None => 0,
        };
        let queries = entry * config.n_head * dim_k + head_kv * n_gqa * dim_k;
        // SAFETY: queries were written before the last barrier.
        let queries = unsafe { self.scratch.q.read(queries..queries + n_gqa * dim_k) };
        let memory = self.scratch.attention_state(rank);
        let half = memory.len() / 2;
        let mut merged = state(&memory.part(0..half), n_gqa, dim_v);
        let mut split = state(&memory.part(half..2 * half), n_gqa, dim_v);
        merged.reset();
        let layout = self.kv.config.layout;
        for first in (first_key / KV_SPLIT * KV_SPLIT..n_keys).step_by(KV_SPLIT) {
            split.reset();
            let end = n_keys.min(first + KV_SPLIT);
            let first = first.max(first_key / KV_BLOCK * KV_BLOCK);
            for start in (first..end).step_by(KV_BLOCK) {
                let index = start / PAGE_TOKENS;
                // SAFETY: keys of this step were stored before the last barrier.
                let block = unsafe { self.kv.block(row.sequence as usize, index, layer, head_kv) };
                let n_keys = (end - start).min(KV_BLOCK);
                let args = AttentionBlock {
                    layout,
                    block,
                    first_key: first_key.saturating_sub(start),
                    n_keys,
                    queries,
                    scale: config.attention_scale,
                    soft_cap: config.attention_soft_cap,
                };
                self.table.attention_block(&args, &mut split);
            }
            self.table.attention_merge(&split, &mut merged);
        }
        merged.finish();
        let out = entry * config.n_embd_attention() + head_kv * n_gqa * dim_v;
        // SAFETY: this entry and head belong to one worker.
        unsafe { self.scratch.attention.write(out..out + n_gqa * dim_v) }
            .copy_from_slice(merged.out);
        (n_keys.div_ceil(KV_BLOCK) - first_key / KV_BLOCK) * layout.block_bytes()
    }
}

/// A state in a worker's own memory.
fn state<'a>(memory: &Shared<'a, f32>, n_queries: usize, dim_v: usize) -> AttentionState<'a> {
    // SAFETY: the memory is this worker's own, and split into parts once per call.
    let memory = unsafe { memory.write(0..n_queries * (dim_v + 2)) };
    let (max, rest) = memory.split_at_mut(n_queries);
    let (sum, out) = rest.split_at_mut(n_queries);
    AttentionState { max, sum, out }
}
