//! Attention: one block of up to 64 keys for the query heads that share a KV head, and the
//! merge of splits.

use crate::bytes::{cast, u16_at};
use crate::contract::{Arith, KV_BLOCK, LANES, bf16_step, exp, flush, soft_cap, tree_sum};
use crate::half::{bf16_to_f32, f16_to_f32, f32_to_bf16};
use crate::kv::KvType;
use crate::table::{AttentionBlock, AttentionState};

/// Continues the online softmax of every query with the keys of one block.
#[inline(always)]
pub(crate) fn block<F: Arith, E: Elements>(
    args: &AttentionBlock<'_>,
    state: &mut AttentionState<'_>,
) {
    let (head_dim_k, head_dim_v) = (args.layout.head_dim_k, args.layout.head_dim_v);
    let (keys, values) = args.block.split_at(args.layout.k_bytes());
    let queries = args.queries.chunks_exact(head_dim_k);
    for (i, query) in queries.enumerate() {
        let mut weights = [0f32; KV_BLOCK];
        for (lanes, weights) in weights.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let seen = lanes * LANES < args.n_keys && (lanes + 1) * LANES > args.first_key;
            if seen {
                E::scores::<F>(query, keys, lanes, weights);
            }
        }
        let out = &mut state.out[i * head_dim_v..][..head_dim_v];
        // What comes before the first key is zero: it adds nothing to its lane's sum.
        weights[..args.first_key].fill(0.0);
        let weights = &mut weights[..args.n_keys];
        let seen = &mut weights[args.first_key..];
        for weight in &mut *seen {
            *weight *= args.scale;
        }
        if args.soft_cap != 0.0 {
            let inverse = 1.0 / args.soft_cap;
            for weight in &mut *seen {
                *weight = soft_cap::<F>(*weight, args.soft_cap, inverse);
            }
        }
        let mut max = state.max[i];
        for weight in &*seen {
            max = if *weight > max { *weight } else { max };
        }
        let correction = exp::<F>(state.max[i] - max);
        for weight in &mut *seen {
            *weight = E::weight(exp::<F>(*weight - max));
        }
        state.sum[i] = F::fma(state.sum[i], correction, lane_sum(weights));
        state.max[i] = max;
        for out in &mut *out {
            *out *= correction;
        }
        E::accumulate::<F>(args.first_key, weights, values, head_dim_v, out);
    }
}

/// Lane l sums elements l, l + 16, … in order; then the fixed tree.
#[inline(always)]
fn lane_sum(x: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    for chunk in x.chunks(LANES) {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x;
        }
    }
    tree_sum(&lanes)
}

/// Merges the result of a split (`from`) into the running one (`into`). Splits are merged in
/// ascending order; `into` starts as [`AttentionState::reset`] leaves it.
#[inline(always)]
pub(crate) fn merge<F: Arith>(from: &AttentionState<'_>, into: &mut AttentionState<'_>) {
    let head_dim_v = into.out.len().checked_div(into.max.len()).unwrap_or(0);
    for i in 0..into.max.len() {
        let max = if from.max[i] > into.max[i] {
            from.max[i]
        } else {
            into.max[i]
        };
        let (keep, add) = (exp::<F>(into.max[i] - max), exp::<F>(from.max[i] - max));
        into.max[i] = max;
        into.sum[i] = F::fma(from.sum[i], add, into.sum[i] * keep);
        let from = &from.out[i * head_dim_v..][..head_dim_v];
        for (out, from) in into.out[i * head_dim_v..][..head_dim_v]
            .iter_mut()
            .zip(from)
        {
            *out = F::fma(*from, add, *out * keep);
        }
    }
}

/// Arithmetic of one KV element type.
pub(crate) trait Elements {
    /// Query · key for the 16 keys of a lane group, by ascending dimension.
    fn scores<F: Arith>(query: &[f32], keys: &[u8], lanes: usize, scores: &mut [f32; LANES]);

    /// A softmax weight as it enters sums: bf16 rounds it first.
    fn weight(weight: f32) -> f32 {
        weight
    }

    /// `out += weights · values`, by ascending key from key `first` on.
    fn accumulate<F: Arith>(
        first: usize,
        weights: &[f32],
        values: &[u8],
        head_dim: usize,
        out: &mut [f32],
    );
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

const _: () = assert!(KvType::ALL.len() == 3);

impl Elements for F32 {
    #[inline(always)]
    fn scores<F: Arith>(query: &[f32], keys: &[u8], lanes: usize, scores: &mut [f32; LANES]) {
        let keys = cast::<f32>(keys);
        let keys = &keys[lanes * LANES * query.len()..][..LANES * query.len()];
        for (q, keys) in query.iter().zip(keys.as_chunks::<LANES>().0) {
            F::fma_lanes(*q, keys, scores);
        }
    }

    #[inline(always)]
    fn accumulate<F: Arith>(
        first: usize,
        weights: &[f32],
        values: &[u8],
        head_dim: usize,
        out: &mut [f32],
    ) {
        let values = cast::<f32>(values);
        let keys = weights.iter().zip(values.chunks_exact(head_dim));
        for (weight, values) in keys.skip(first) {
            let (outs, out_tail) = out.as_chunks_mut::<LANES>();
            let (chunks, tail) = values.as_chunks::<LANES>();
            for (out, values) in outs.iter_mut().zip(chunks) {
                F::fma_lanes(*weight, values, out);
            }
            for (out, value) in out_tail.iter_mut().zip(tail) {
                *out = F::fma(*weight, *value, *out);
            }
        }
    }
}

impl Elements for F16 {
    #[inline(always)]
    fn scores<F: Arith>(query: &[f32], keys: &[u8], lanes: usize, scores: &mut [f32; LANES]) {
        let column_bytes = 2 * LANES;
        let keys = &keys[lanes * column_bytes * query.len()..][..column_bytes * query.len()];
        for (q, keys) in query.iter().zip(keys.as_chunks::<{ 2 * LANES }>().0) {
            F::fma_lanes(*q, &F::halves(keys), scores);
        }
    }

    #[inline(always)]
    fn accumulate<F: Arith>(
        first: usize,
        weights: &[f32],
        values: &[u8],
        head_dim: usize,
        out: &mut [f32],
    ) {
        let keys = weights.iter().zip(values.chunks_exact(2 * head_dim));
        for (weight, values) in keys.skip(first) {
            let (outs, out_tail) = out.as_chunks_mut::<LANES>();
            let (chunks, tail) = values.as_chunks::<{ 2 * LANES }>();
            for (out, values) in outs.iter_mut().zip(chunks) {
                F::fma_lanes(*weight, &F::halves(values), out);
            }
            for (out, value) in out_tail.iter_mut().zip(tail.as_chunks::<2>().0) {
                *out = F::fma(*weight, f16_to_f32(u16::from_le_bytes(*value)), *out);
            }
        }
    }
}

impl Elements for Bf16 {
    #[inline(always)]
    fn scores<F: Arith>(query: &[f32], keys: &[u8], lanes: usize, scores: &mut [f32; LANES]) {
        let pair_bytes = 4 * LANES;
        let pairs = query.len().div_ceil(2);
        let keys = &keys[lanes * pairs * pair_bytes..][..pairs * pair_bytes];
        let round = |x: &f32| flush(bf16_to_f32(f32_to_bf16(*x)));
        for (q, keys) in query.chunks(2).zip(keys.as_chunks::<{ 4 * LANES }>().0) {
            let q = [round(&q[0]), q.get(1).map_or(0.0, round)];
            F::bf16_step_lanes(q, &F::bf16_pairs(keys), scores);
        }
    }

    #[inline(always)]
    fn weight(weight: f32) -> f32 {
        bf16_to_f32(f32_to_bf16(weight))
    }

    #[inline(always)]
    fn accumulate<F: Arith>(
        first: usize,
        weights: &[f32],
        values: &[u8],
        head_dim: usize,
        out: &mut [f32],
    ) {
        for out in &mut *out {
            *out = flush(*out);
        }
        let pairs = weights.chunks(2).zip(values.chunks_exact(4 * head_dim));
        for (i, (weights, values)) in pairs.enumerate().skip(first / 2) {
            // A key without partner: the partner's slot may hold anything, so its value counts
            // as zero, not only its weight.
            let unseen = [2 * i < first, weights.len() == 1];
            let weights = [weights[0], if unseen[1] { 0.0 } else { weights[1] }].map(flush);
            let masks = unseen.map(|unseen| if unseen { 0 } else { 0xffff });
            let (outs, out_tail) = out.as_chunks_mut::<LANES>();
            let (chunks, tail) = values.as_chunks::<{ 4 * LANES }>();
            for (out, values) in outs.iter_mut().zip(chunks) {
                let mut values = F::bf16_pairs(values);
                for (values, unseen) in values.iter_mut().zip(unseen) {
                    if unseen {
                        *values = [0.0; LANES];
                    }
                }
                F::bf16_step_lanes(weights, &values, out);
            }
            for (out, pair) in out_tail.iter_mut().zip(tail.as_chunks::<4>().0) {
                let value = [u16_at(pair, 0) & masks[0], u16_at(pair, 2) & masks[1]];
                *out = bf16_step::<F>(weights, value.map(bf16_to_f32), *out);
            }
        }
    }
}
