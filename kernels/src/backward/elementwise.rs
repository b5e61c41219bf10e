//! Gradients of norms, gates, softmax and cross-entropy: texts that every instance compiles with its features.

use crate::contract::{Arith, LANES, double, exp, gelu_erf, sigmoid, silu, sqrt, tree_sum};

/// A gate's activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatedActivation {
    /// `x · sigmoid(x)`
    Silu,
    /// GELU in its tanh approximation.
    Gelu,
    /// GELU by the error function.
    GeluErf,
}

/// `Σ f(i)` over 16 virtual lanes: lane l takes elements l, l + 16, … in order.
#[inline(always)]
fn lane_sum(n: usize, add: impl Fn(usize, &mut f32)) -> f32 {
    let mut lanes = [0f32; LANES];
    for start in (0..n / LANES * LANES).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            add(start + lane, sum);
        }
    }
    for (lane, i) in (n / LANES * LANES..n).enumerate() {
        add(i, &mut lanes[lane]);
    }
    tree_sum(&lanes)
}

#[inline(always)]
pub(crate) fn dot<F: Arith>(a: &[f32], b: &[f32]) -> f32 {
    let b = &b[..a.len()];
    lane_sum(a.len(), |i, sum| *sum = F::fma(a[i], b[i], *sum))
}

#[expect(clippy::cast_precision_loss, reason = "rows are far shorter than 2^24")]
const fn count(n: usize) -> f32 {
    n as f32
}

#[inline(always)]
pub(crate) fn rms_norm<F: Arith>(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) {
    let n = x.len();
    let (weight, dy, dx) = (&weight[..n], &dy[..n], &mut dx[..n]);
    let r = 1.0 / sqrt(dot::<F>(x, x) / count(n) + eps);
    let seen = lane_sum(n, |i, sum| *sum = F::fma(weight[i] * dy[i], x[i], *sum));
    let back = -(r * r * r / count(n)) * seen;
    for i in 0..n {
        dx[i] += F::fma(x[i], back, r * (weight[i] * dy[i]));
    }
}

#[inline(always)]
pub(crate) fn layer_norm<F: Arith>(
    x: &[f32],
    weight: &[f32],
    eps: f32,
    dy: &[f32],
    dx: &mut [f32],
) {
    let n = x.len();
    let (weight, dy, dx) = (&weight[..n], &dy[..n], &mut dx[..n]);
    let mean = lane_sum(n, |i, sum| *sum += x[i]) / count(n);
    let squares = lane_sum(n, |i, sum| {
        let difference = x[i] - mean;
        *sum = F::fma(difference, difference, *sum);
    });
    let r = 1.0 / sqrt(squares / count(n) + eps);
    let mean_u = lane_sum(n, |i, sum| *sum = F::fma(weight[i], dy[i], *sum)) / count(n);
    let along = lane_sum(n, |i, sum| {
        *sum = F::fma(weight[i] * dy[i], (x[i] - mean) * r, *sum);
    });
    let along = along / count(n);
    for i in 0..n {
        let u = weight[i] * dy[i] - mean_u;
        dx[i] += r * F::fma(-((x[i] - mean) * r), along, u);
    }
}

#[inline(always)]
pub(crate) fn gate<F: Arith>(
    kind: GatedActivation,
    gate: &[f32],
    up: &[f32],
    dy: &[f32],
    d_gate: &mut [f32],
    d_up: &mut [f32],
) {
    match kind {
        GatedActivation::Silu => each(gate, up, dy, d_gate, d_up, |x| {
            let s = sigmoid::<F>(x);
            (silu::<F>(x), s * F::fma(x, 1.0 - s, 1.0))
        }),
        GatedActivation::Gelu => each(gate, up, dy, d_gate, d_up, gelu_and_slope::<F>),
        GatedActivation::GeluErf => each(gate, up, dy, d_gate, d_up, gelu_erf_and_slope::<F>),
    }
}

/// `slope` gives an activation's value and its derivative.
#[inline(always)]
fn each(
    gate: &[f32],
    up: &[f32],
    dy: &[f32],
    d_gate: &mut [f32],
    d_up: &mut [f32],
    slope: impl Fn(f32) -> (f32, f32),
) {
    let n = gate.len();
    let (up, dy, d_gate, d_up) = (&up[..n], &dy[..n], &mut d_gate[..n], &mut d_up[..n]);
    for i in 0..n {
        let (value, slope) = slope(gate[i]);
        d_up[i] = dy[i] * value;
        d_gate[i] = dy[i] * up[i] * slope;
    }
}

/// `x · s` and `s + x · s · (1 - s) · 2 u'` with `s = sigmoid(2 u)`, `u = sqrt(2/π) · (x + 0.044715 x³)`.
#[inline(always)]
fn gelu_and_slope<F: Arith>(x: f32) -> (f32, f32) {
    /// 2 · sqrt(2/π).
    const TWICE: f32 = 1.595_769;
    let u = TWICE * x * F::fma(0.044_715, x * x, 1.0);
    let s = sigmoid::<F>(u);
    // Far from 0, `x · (1 - s)` is the difference of equal numbers, or an infinity times 0.
    let x_in_range = if x.abs() < 16.0 { x } else { 0.0 };
    let du = TWICE * F::fma(0.134_145, x_in_range * x_in_range, 1.0);
    (x * s, F::fma(x_in_range * s * (1.0 - s), du, s))
}

/// `x · Φ(x)` and `Φ(x) + x · φ(x)`.
#[inline(always)]
fn gelu_erf_and_slope<F: Arith>(x: f32) -> (f32, f32) {
    /// 1 / sqrt(2π).
    const SCALE: f32 = 0.398_942_3;
    let value = gelu_erf::<F>(x);
    let below = if x == 0.0 { 0.5 } else { value / x };
    (value, F::fma(x * SCALE, exp::<F>(-0.5 * x * x), below))
}

#[inline(always)]
#[expect(
    clippy::extra_unused_type_parameters,
    reason = "texts are named with the arithmetic of their instance"
)]
pub(crate) fn softmax<F: Arith>(p: &[f32], mean: f32, scale: f32, d: &mut [f32]) {
    for (d, p) in d.iter_mut().zip(p) {
        *d = p * (*d - mean) * scale;
    }
}

#[inline(always)]
pub(crate) fn soft_cap<F: Arith>(y: &[f32], cap: f32, d: &mut [f32]) {
    let inverse = 1.0 / cap;
    for (d, y) in d.iter_mut().zip(y) {
        let t = y * inverse;
        *d *= F::fma(-t, t, 1.0);
    }
}

#[inline(always)]
pub(crate) fn cross_entropy<F: Arith>(logits: &mut [f32], label: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let at_label = f64::from(logits[label]) - f64::from(max);
    for x in logits.iter_mut() {
        *x = exp::<F>(*x - max);
    }
    let sum = lane_sum(logits.len(), |i, sum| *sum += logits[i]);
    let inverse = 1.0 / sum;
    for x in logits.iter_mut() {
        *x *= inverse;
    }
    logits[label] -= 1.0;
    // NaN and infinities have no logarithm here.
    if sum.is_finite() && sum >= 1.0 {
        double::ln(f64::from(sum)) - at_label
    } else {
        f64::NAN
    }
}
