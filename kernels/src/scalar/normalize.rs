//! Layer norm and softmax of single rows.

use crate::contract::{Arith, LANES, exp, sqrt, tree_sum};

/// `out = fma((x - mean) · (1 / sqrt(variance + eps)), weight, bias)`, or without a bias, which then is empty,
/// `(x - mean) · (1 / sqrt(variance + eps)) · weight`.
///
/// Mean and variance are sums over 16 virtual lanes, divided by the length; the variance is computed from the
/// differences from the rounded mean.
#[inline(always)]
pub(crate) fn layer_norm<F: Arith>(
    x: &[f32],
    weight: &[f32],
    bias: &[f32],
    eps: f32,
    out: &mut [f32],
) {
    #[expect(clippy::cast_precision_loss, reason = "rows are far shorter than 2^24")]
    let n = x.len() as f32;
    let mean = lane_sum(x, |x, lane| *lane += x) / n;
    let squares = lane_sum(x, |x, lane| {
        let difference = x - mean;
        *lane = F::fma(difference, difference, *lane);
    });
    let scale = 1.0 / sqrt(squares / n + eps);
    if bias.is_empty() {
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = (x - mean) * scale * weight;
        }
        return;
    }
    let columns = out.iter_mut().zip(x).zip(weight.iter().zip(bias));
    for ((out, x), (weight, bias)) in columns {
        *out = F::fma((x - mean) * scale, *weight, *bias);
    }
}

/// `x = exp(x - max) / Σ exp(x - max)` in place; all NaN where one is, or all are `-∞`.
#[inline(always)]
pub(crate) fn softmax<F: Arith>(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for x in x.iter_mut() {
        *x = exp::<F>(*x - max);
    }
    let sum = lane_sum(x, |x, lane| *lane += x);
    for x in x {
        *x /= sum;
    }
}

/// A sum over 16 virtual lanes: lane l takes elements l, l + 16, … in order.
#[inline(always)]
fn lane_sum(x: &[f32], add: impl Fn(f32, &mut f32)) -> f32 {
    let mut lanes = [0f32; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            add(*x, lane);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        add(*x, lane);
    }
    tree_sum(&lanes)
}
