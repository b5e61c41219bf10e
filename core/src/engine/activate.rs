//! Activations of gated networks.

use crate::kernels::KernelTable;
use crate::model::Activation;

/// `activation(gate) · up`, all of one length; gate and up may be changed.
pub(super) fn activate(
    table: &KernelTable,
    activation: Activation,
    gate: &mut [f32],
    up: &mut [f32],
    x: &mut [f32],
) {
    match activation {
        Activation::Silu => table.silu_mul(gate, up, x),
        Activation::Gelu => table.gelu_mul(gate, up, x),
        Activation::GeluErf => table.gelu_erf_mul(gate, up, x),
        Activation::ReluSquared => {
            let columns = x.iter_mut().zip(&*gate).zip(&*up);
            columns.for_each(|((x, gate), up)| {
                let positive = above(*gate, 0.0);
                *x = positive * positive * *up;
            });
        }
        Activation::Relu { threshold } => {
            let columns = x.iter_mut().zip(&*gate).zip(&*up);
            columns.for_each(|((x, gate), up)| *x = opened(*gate, threshold, *up));
        }
        Activation::Drelu => {
            let columns = x.iter_mut().zip(&*gate).zip(&*up);
            columns.for_each(|((x, gate), up)| *x = opened(*gate, 0.0, above(*up, 0.0)));
        }
        Activation::SwigluClamped { alpha, limit } => {
            clamp_swiglu(gate, up, alpha, limit);
            table.silu_mul(gate, up, x);
        }
    }
}

/// `x` above a threshold, else 0. NaN stays what it is.
fn above(x: f32, threshold: f32) -> f32 {
    if x <= threshold { 0.0 } else { x }
}

/// `gate · up` if the gate is above a threshold or not a number, else 0, whatever `up` is: it need not be computed.
fn opened(gate: f32, threshold: f32, up: f32) -> f32 {
    if gate <= threshold { 0.0 } else { gate * up }
}

/// Prepares gate and up so that `silu(gate) · up` is `g · sigmoid(alpha · g) · (u + 1)` of the clamped ones.
/// NaN stays what it is.
fn clamp_swiglu(gate: &mut [f32], up: &mut [f32], alpha: f32, limit: f32) {
    let inverse = 1.0 / alpha;
    for (gate, up) in gate.iter_mut().zip(up) {
        if *gate > limit {
            *gate = limit;
        }
        *gate *= alpha;
        // Not `clamp`: its message would take the formatting of floats, 15 KB, into the bare-metal image.
        if *up > limit {
            *up = limit;
        } else if *up < -limit {
            *up = -limit;
        }
        *up = (*up + 1.0) * inverse;
    }
}
