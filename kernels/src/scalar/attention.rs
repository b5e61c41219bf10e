//! AttentionArgs over blocks of keys and values, query by query, and the merge of splits: the
//! definition of what every table computes.

use crate::args::TileRange;
use crate::attention::{AttentionArgs, AttentionState, visible};
use crate::bytes::{cast, u16_at};
use crate::contract::{
    Arith, KV_BLOCK, LANES, bf16_step, exp, flush, round_ties_even, soft_cap, tree_sum,
};
use crate::half::{bf16_to_f32, e4m3_to_f32, f16_to_f32, f32_to_bf16};
use crate::kv::{KV_SCALE_DIMS, KvLayout, KvType};
use core::ops::Range;

type Weights = [f32; KV_BLOCK];

/// Continues the online softmax of every query with the keys that it sees.
#[inline(always)]
pub(crate) fn attention<F: Arith>(args: &AttentionArgs<'_>, state: &mut AttentionState<'_>) {
    let (layout, head_dim_v) = (&args.layout, args.layout.head_dim_v);
    for i in 0..args.n_queries() {
        let query = args.query(i);
        let out = &mut state.out[i * head_dim_v..][..head_dim_v];
        for (b, block) in args.blocks.iter().enumerate() {
            let TileRange { start, end } = visible(args.keys(i), b);
            if start >= end {
                continue;
            }
            let (keys, values) = block.split_at(layout.k_bytes());
            let mut weights = [0f32; KV_BLOCK];
            scores::<F>(layout, query, keys, start..end, &mut weights);
            for weight in &mut weights[start..end] {
                *weight *= args.scale;
                if args.soft_cap != 0.0 {
                    *weight = soft_cap::<F>(*weight, args.soft_cap, 1.0 / args.soft_cap);
                }
            }
            if !args.slopes.is_empty() {
                let (slope, position) = args.slope(i, b);
                for (key, weight) in weights.iter_mut().enumerate() {
                    #[expect(clippy::cast_precision_loss, reason = "64 at most")]
                    let distance = (key as f32 - position).abs();
                    *weight = F::fma(-slope, distance, *weight);
                }
            }
            let mut top = f32::NEG_INFINITY;
            for weight in &weights[start..end] {
                top = if *weight > top { *weight } else { top };
            }
            let max = if top > state.max[i] {
                top
            } else {
                state.max[i]
            };
            let correction = exp::<F>(state.max[i] - max);
            for (key, weight) in weights.iter_mut().enumerate() {
                // Keys out of sight weigh nothing, which adds nothing to their lane's sum.
                let seen = (start..end).contains(&key);
                *weight = if seen { exp::<F>(*weight - max) } else { 0.0 };
                if layout.type_v == KvType::BF16 {
                    *weight = bf16_to_f32(f32_to_bf16(*weight));
                }
            }
            state.sum[i] = F::fma(state.sum[i], correction, lane_sum(&weights));
            state.max[i] = max;
            for out in &mut *out {
                *out *= correction;
            }
            let top = exp::<F>(top - max);
            accumulate::<F>(layout, &weights, top, start..end, values, out);
        }
    }
}

/// Lane l sums elements l, l + 16, … in order; then the fixed tree.
#[inline(always)]
fn lane_sum(x: &Weights) -> f32 {
    let mut lanes = [0f32; LANES];
    for chunk in x.as_chunks::<LANES>().0 {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += x;
        }
    }
    tree_sum(&lanes)
}

/// Merges the result of a split (`from`) into the running one (`into`). Splits are merged in
/// ascending order; `into` starts as [`AttentionState::reset`] leaves it. Queries that see no
/// key of a split are left as they are.
#[inline(always)]
pub(crate) fn merge<F: Arith>(from: &AttentionState<'_>, into: &mut AttentionState<'_>) {
    let head_dim_v = into.out.len().checked_div(into.max.len()).unwrap_or(0);
    for i in 0..into.max.len() {
        // Whatever a query has seen weighs 1 or more, or NaN.
        if from.sum[i] == 0.0 {
            continue;
        }
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

/// Query · key for the keys of `seen` and others of their groups of 16.
#[inline(always)]
fn scores<F: Arith>(
    layout: &KvLayout,
    query: &[f32],
    keys: &[u8],
    seen: Range<usize>,
    scores: &mut Weights,
) {
    for (lanes, scores) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        if lanes * LANES >= seen.end || (lanes + 1) * LANES <= seen.start {
            continue;
        }
        // A step's keys of this group, given the bytes of a key's part.
        let step = |bytes: usize, i: usize| {
            &keys[(i * KV_BLOCK + lanes * LANES) * bytes..][..LANES * bytes]
        };
        match layout.type_k {
            KvType::F32 => {
                for (i, q) in query.iter().enumerate() {
                    F::fma_lanes(*q, lanes_of(cast::<f32>(step(4, i))), scores);
                }
            }
            KvType::F16 => {
                for (i, q) in query.iter().enumerate() {
                    F::fma_lanes(*q, &F::halves(lanes_of(step(2, i))), scores);
                }
            }
            KvType::FP8 => {
                for (i, q) in query.iter().enumerate() {
                    let keys: &[u8; LANES] = lanes_of(step(1, i));
                    F::fma_lanes(*q, &keys.map(e4m3_to_f32), scores);
                }
            }
            KvType::BF16 => {
                let round = |x: &f32| flush(bf16_to_f32(f32_to_bf16(*x)));
                for (i, q) in query.chunks(2).enumerate() {
                    let q = [round(&q[0]), q.get(1).map_or(0.0, round)];
                    F::bf16_step_lanes(q, &F::bf16_pairs(lanes_of(step(4, i))), scores);
                }
            }
            KvType::Q8_0 | KvType::Q4_0 => {
                int8_scores::<F>(
                    layout.type_k,
                    query,
                    keys,
                    layout.k_codes_at(),
                    lanes,
                    scores,
                );
            }
        }
    }
}

/// A step's part of every lane.
fn lanes_of<T, const N: usize>(step: &[T]) -> &[T; N] {
    step.as_array().expect("a step has this length")
}

/// int8 queries, exact integers per 32 dimensions: `s = fma(d_k · d_q, f32(S), s)`.
#[inline(always)]
fn int8_scores<F: Arith>(
    ty: KvType,
    query: &[f32],
    keys: &[u8],
    codes_at: usize,
    lanes: usize,
    scores: &mut [f32; LANES],
) {
    let (scales, codes) = keys.split_at(codes_at);
    for (b, query) in query.chunks(KV_SCALE_DIMS).enumerate() {
        let (d_q, q) = quantize_query(query);
        for (lane, score) in scores.iter_mut().enumerate() {
            let key = lanes * LANES + lane;
            let mut sum = 0;
            for (dim, q) in q.iter().enumerate() {
                let line_at = |n: usize, line: usize| ((b * n + line) * KV_BLOCK + key) * 4;
                let code = match ty {
                    KvType::Q8_0 => i32::from(codes[line_at(8, dim / 4) + dim % 4]) - 128,
                    _ => {
                        let byte = codes[line_at(4, dim / 8) + dim % 4];
                        i32::from(byte >> (dim / 4 % 2 * 4) & 0xf) - 8
                    }
                };
                sum += code * i32::from(*q);
            }
            let d_k = f16_to_f32(u16_at(scales, 2 * (b * KV_BLOCK + key)));
            #[expect(clippy::cast_precision_loss, reason = "rounds to nearest even")]
            let sum = sum as f32;
            *score = F::fma(d_k * d_q, sum, *score);
        }
    }
}

/// Up to 32 dimensions of a query as int8: `d = amax / 127`, `q = round(x · (127 / amax))`; NaN
/// and zeros where one is not finite, zeros where all are next to zero.
#[inline(always)]
pub(crate) fn quantize_query(x: &[f32]) -> (f32, [i8; KV_SCALE_DIMS]) {
    const AMAX_MIN: f32 = 1e-30;
    let mut q = [0; KV_SCALE_DIMS];
    // Magnitudes are ordered as their bits are, and maxima of integers become vectors.
    let magnitudes = x.iter().map(|x| x.abs().to_bits());
    let amax = f32::from_bits(magnitudes.fold(0, u32::max));
    if !amax.is_finite() {
        return (f32::NAN, q);
    }
    if amax < AMAX_MIN {
        return (0.0, q);
    }
    let inverse = 127.0 / amax;
    for (q, x) in q.iter_mut().zip(x) {
        *q = crate::contract::round_to_byte(x * inverse);
    }
    (amax / 127.0, q)
}

/// `out += weights · values`, by ascending key; `top` is the largest weight.
#[inline(always)]
fn accumulate<F: Arith>(
    layout: &KvLayout,
    weights: &Weights,
    top: f32,
    seen: Range<usize>,
    values: &[u8],
    out: &mut [f32],
) {
    let dims = out.len();
    match layout.type_v {
        KvType::F32 => {
            let values = cast::<f32>(values);
            for key in seen {
                for (out, value) in out.iter_mut().zip(&values[key * dims..][..dims]) {
                    *out = F::fma(weights[key], *value, *out);
                }
            }
        }
        KvType::F16 => {
            for key in seen {
                let values = values[key * 2 * dims..][..2 * dims].as_chunks().0;
                for (out, value) in out.iter_mut().zip(values) {
                    *out = F::fma(weights[key], f16_to_f32(u16::from_le_bytes(*value)), *out);
                }
            }
        }
        KvType::FP8 => {
            for key in seen {
                for (out, value) in out.iter_mut().zip(&values[key * dims..][..dims]) {
                    *out = F::fma(weights[key], e4m3_to_f32(*value), *out);
                }
            }
        }
        KvType::BF16 => bf16_values::<F>(weights, seen, values, out),
        KvType::Q8_0 | KvType::Q4_0 => int8_values::<F>(layout, weights, top, seen, values, out),
    }
}

/// Pairs of keys, by ascending pair. The unseen partner of a key may hold anything, so its value
/// counts as zero, not only its weight.
#[inline(always)]
fn bf16_values<F: Arith>(weights: &Weights, seen: Range<usize>, values: &[u8], out: &mut [f32]) {
    for out in &mut *out {
        *out = flush(*out);
    }
    let pair_bytes = 4 * out.len();
    for pair in seen.start / 2..seen.end.div_ceil(2) {
        let keys = [2 * pair, 2 * pair + 1];
        let visible = keys.map(|key| seen.contains(&key));
        let values = values[pair * pair_bytes..][..pair_bytes].as_chunks::<4>().0;
        for (out, value) in out.iter_mut().zip(values) {
            let value = |i: usize| {
                let value = bf16_to_f32(u16_at(value, 2 * i));
                if visible[i] { value } else { 0.0 }
            };
            *out = bf16_step::<F>(keys.map(|key| weights[key]), [value(0), value(1)], *out);
        }
    }
}

/// The largest integer that a weight becomes.
pub(crate) const WEIGHT_MAX: f32 = 32767.0;

/// Per 32 dimensions the weights take the values' scales in and become integers of 16 bits:
/// `w = round((p · (1 / top)) · (d_v · (32767 / m)))`, with m the largest `|d_v|` of the keys that
/// are seen. Sums over them are exact, and `out = fma(top · m · (1 / 32767), f32(S), out)`.
#[inline(always)]
fn int8_values<F: Arith>(
    layout: &KvLayout,
    weights: &Weights,
    top: f32,
    seen: Range<usize>,
    values: &[u8],
    out: &mut [f32],
) {
    let (scales, codes) = values.split_at(layout.v_codes_at());
    let n_blocks = out.len().div_ceil(KV_SCALE_DIMS);
    for (b, out) in out.chunks_mut(KV_SCALE_DIMS).enumerate() {
        let scale = |key: usize| f16_to_f32(u16_at(scales, 2 * (b * KV_BLOCK + key)));
        let mut largest = 0f32;
        let mut is_nan = false;
        for key in seen.clone() {
            let d = scale(key).abs();
            is_nan |= d.is_nan();
            largest = if d > largest { d } else { largest };
        }
        let (to_weight, to_scale) = (inverse(top, 1.0), inverse(largest, WEIGHT_MAX));
        let unit = if is_nan {
            f32::NAN
        } else {
            top * largest * (1.0 / WEIGHT_MAX)
        };
        let mut integers = [0i32; KV_BLOCK];
        for key in seen.clone() {
            let integer = weights[key] * to_weight * (scale(key) * to_scale);
            #[expect(clippy::cast_possible_truncation, reason = "within ±32767, or NaN")]
            let integer = round_ties_even(integer) as i32;
            integers[key] = integer;
        }
        for (dim, out) in out.iter_mut().enumerate() {
            let mut sum = 0;
            for key in seen.clone() {
                let (line, byte) = (key / 4 * n_blocks + b, key % 4);
                let code = match layout.type_v {
                    KvType::Q8_0 => {
                        let at = (line * KV_SCALE_DIMS + dim) * 4 + byte;
                        i32::from(codes[at]) - 128
                    }
                    _ => {
                        let code = codes[(line * LANES + dim % LANES) * 4 + byte];
                        i32::from(code >> (dim / LANES * 4) & 0xf) - 8
                    }
                };
                sum += integers[key] * code;
            }
            #[expect(clippy::cast_precision_loss, reason = "rounds to nearest even")]
            let sum = sum as f32;
            *out = F::fma(unit, sum, *out);
        }
    }
}

/// `by / x`, or 0 where x is not above 0. Finite: weights and scales are 0 or above 1e-38.
#[inline(always)]
pub(crate) fn inverse(x: f32, by: f32) -> f32 {
    if x > 0.0 { by / x } else { 0.0 }
}
