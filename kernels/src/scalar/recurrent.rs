//! Recurrent mixers: convolution, norms of keys and queries, gates, and the recurrence itself.

use crate::contract::{Arith, LANES, exp, sigmoid, silu, softplus, sqrt, tree_sum};
use crate::recurrent::{ConvSilu, Recurrence, RecurrentToken, Rule, STATE_LANES};

const _: () = assert!(STATE_LANES == LANES);

/// Sums over keys, of every fourth.
type Sums = [[f32; LANES]; 4];

/// Takes the tokens through the panels of a state.
#[inline(always)]
pub(crate) fn recurrence<F: Arith>(args: &mut Recurrence<'_, '_>) {
    let len = args.n_key * LANES;
    for (p, panel) in args.state.chunks_exact_mut(len).enumerate() {
        if let Some(from) = args.from {
            panel.copy_from_slice(&from[p * len..(p + 1) * len]);
        }
        for token in args.tokens.iter_mut() {
            step::<F>(args.rule, token, p * LANES, panel.as_chunks_mut().0);
        }
    }
}

/// A token and the values from `first` on.
#[inline(always)]
fn step<F: Arith>(
    rule: Rule,
    token: &mut RecurrentToken<'_>,
    first: usize,
    rows: &mut [[f32; LANES]],
) {
    let (decay, rate) = (token.decay, token.rate);
    let end = token.value.len().min(first + LANES);
    let mut change = [0f32; LANES];
    change[..end - first].copy_from_slice(&token.value[first..end]);
    if rule == Rule::Delta {
        let mut sums: Sums = [[0.0; _]; _];
        for (i, (k, row)) in token.key.iter().zip(&*rows).enumerate() {
            F::fma_lanes(*k, row, &mut sums[i % 4]);
        }
        for (change, seen) in change.iter_mut().zip(total(&sums)) {
            *change = F::fma(-decay, seen, *change);
        }
    }
    change.iter_mut().for_each(|x| *x *= rate);
    let mut sums: Sums = [[0.0; _]; _];
    let pairs = token.key.iter().zip(token.query);
    for (i, ((k, q), row)) in pairs.zip(rows).enumerate() {
        row.iter_mut().for_each(|x| *x *= decay);
        F::fma_lanes(*k, &change, row);
        F::fma_lanes(*q, row, &mut sums[i % 4]);
    }
    token.out[first..end].copy_from_slice(&total(&sums)[..end - first]);
}

#[inline(always)]
fn total(sums: &Sums) -> [f32; LANES] {
    core::array::from_fn(|l| (sums[0][l] + sums[2][l]) + (sums[1][l] + sums[3][l]))
}

/// `out = silu(Σ taps · rows)`, channel by channel.
#[inline(always)]
pub(crate) fn conv_silu<F: Arith>(args: &mut ConvSilu<'_>) {
    match args.bias {
        Some(bias) => args.out.copy_from_slice(bias),
        None => args.out.fill(0.0),
    }
    let n = args.out.len();
    if let Some([a, b, c, d]) = args
        .rows
        .as_array::<4>()
        .map(|rows| rows.map(|row| &row[..n]))
    {
        // The usual number: all taps of a channel at once.
        for (i, (out, taps)) in args
            .out
            .iter_mut()
            .zip(args.taps.as_chunks::<4>().0)
            .enumerate()
        {
            let sum = F::fma(taps[0], a[i], *out);
            let sum = F::fma(taps[1], b[i], sum);
            let sum = F::fma(taps[2], c[i], sum);
            *out = F::fma(taps[3], d[i], sum);
        }
    } else {
        let n_taps = args.rows.len();
        for (tap, row) in args.rows.iter().enumerate() {
            let taps = args.taps.iter().skip(tap).step_by(n_taps);
            for ((out, x), tap) in args.out.iter_mut().zip(*row).zip(taps) {
                *out = F::fma(*tap, *x, *out);
            }
        }
    }
    for x in args.out.iter_mut() {
        *x = silu::<F>(*x);
    }
}

/// `x = x · (scale / sqrt(Σ x² + eps))`; sums in lanes, as in RMSNorm.
#[inline(always)]
pub(crate) fn l2_norm<F: Arith>(x: &mut [f32], eps: f32, scale: f32) {
    let mut lanes = [0f32; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = F::fma(*x, *x, *lane);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane = F::fma(*x, *x, *lane);
    }
    let scale = scale / sqrt(tree_sum(&lanes) + eps);
    x.iter_mut().for_each(|x| *x *= scale);
}

/// `x = x · sigmoid(gate)`.
#[inline(always)]
pub(crate) fn sigmoid_mul<F: Arith>(gate: &[[f32; LANES]], x: &mut [[f32; LANES]]) {
    for (x, gate) in x.as_flattened_mut().iter_mut().zip(gate.as_flattened()) {
        *x *= sigmoid::<F>(*gate);
    }
}

/// `x = softplus(x + bias)`, then `decay = exp(a · x)`.
#[inline(always)]
pub(crate) fn decays<F: Arith>(x: &mut [f32], bias: &[f32], a: &[f32], decay: &mut [f32]) {
    for (x, bias) in x.iter_mut().zip(bias) {
        *x = softplus::<F>(*x + bias);
    }
    for ((decay, x), a) in decay.iter_mut().zip(&*x).zip(a) {
        *decay = exp::<F>(a * x);
    }
}
