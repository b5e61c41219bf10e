//! The gradients of activations.

use crate::kernels::backward::{BackwardKernels, GatedActivation};
use crate::model::Activation;

/// The gradients of `activation(gate) · up`.
pub(super) fn activate_back(
    kernels: &BackwardKernels,
    activation: Activation,
    [gate, up]: [&[f32]; 2],
    dy: &[f32],
    [d_gate, d_up]: [&mut [f32]; 2],
) {
    let each = |slopes: &dyn Fn(f32, f32) -> [f32; 2], d_gate: &mut [f32], d_up: &mut [f32]| {
        let inputs = gate.iter().zip(up).zip(dy);
        for (((gate, up), dy), (d_gate, d_up)) in inputs.zip(d_gate.iter_mut().zip(d_up)) {
            let [of_gate, of_up] = slopes(*gate, *up);
            (*d_gate, *d_up) = (dy * of_gate, dy * of_up);
        }
    };
    let kind = match activation {
        Activation::Silu => GatedActivation::Silu,
        Activation::Gelu => GatedActivation::Gelu,
        Activation::GeluErf => GatedActivation::GeluErf,
        Activation::ReluSquared => {
            let slopes = |gate: f32, up: f32| {
                let positive = gate.max(0.0);
                [2.0 * positive * up, positive * positive]
            };
            return each(&slopes, d_gate, d_up);
        }
        Activation::Relu { threshold } => {
            let slopes = |gate: f32, up: f32| {
                if gate > threshold {
                    [up, gate]
                } else {
                    [0.0; 2]
                }
            };
            return each(&slopes, d_gate, d_up);
        }
        Activation::Drelu => {
            let is_open = |gate: f32, up: f32| gate > 0.0 && up > 0.0;
            let slopes = |gate, up| {
                if is_open(gate, up) {
                    [up, gate]
                } else {
                    [0.0; 2]
                }
            };
            return each(&slopes, d_gate, d_up);
        }
        Activation::SwigluClamped { alpha, limit } => {
            let clamped = Clamped { alpha, limit };
            return clamped.back(kernels, [gate, up], dy, [d_gate, d_up]);
        }
    };
    kernels.gate(kind, [gate, up, dy], [d_gate, d_up]);
}

/// `g · sigmoid(alpha · g) · (u + 1)` of a clamped gate and up.
struct Clamped {
    alpha: f32,
    limit: f32,
}

/// Elements that are computed at once.
const PIECE: usize = 64;

impl Clamped {
    fn back(
        &self,
        kernels: &BackwardKernels,
        [gate, up]: [&[f32]; 2],
        dy: &[f32],
        [d_gate, d_up]: [&mut [f32]; 2],
    ) {
        let Self { alpha, limit } = *self;
        let inverse = 1.0 / alpha;
        let inputs = gate
            .chunks(PIECE)
            .zip(up.chunks(PIECE))
            .zip(dy.chunks(PIECE));
        let outputs = d_gate.chunks_mut(PIECE).zip(d_up.chunks_mut(PIECE));
        for (((gate, up), dy), (d_gate, d_up)) in inputs.zip(outputs) {
            let (mut g, mut u, n) = ([0.0; PIECE], [0.0; PIECE], gate.len());
            for (i, (gate, up)) in gate.iter().zip(up).enumerate() {
                g[i] = gate.min(limit) * alpha;
                u[i] = (up.clamp(-limit, limit) + 1.0) * inverse;
            }
            kernels.gate(
                GatedActivation::Silu,
                [&g[..n], &u[..n], dy],
                [d_gate, d_up],
            );
            for (d, gate) in d_gate.iter_mut().zip(gate) {
                *d = if *gate > limit { 0.0 } else { *d * alpha };
            }
            for (d, up) in d_up.iter_mut().zip(up) {
                *d = if up.abs() > limit { 0.0 } else { *d * inverse };
            }
        }
    }
}
