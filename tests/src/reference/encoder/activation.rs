//! Activations.

use super::super::Unreadable;

/// An activation by its name in a file.
pub(super) fn named(name: &str) -> Result<fn(f64) -> f64, Unreadable> {
    match name {
        "gelu" => Ok(gelu),
        "gelu_pytorch_tanh" => Ok(gelu_tanh),
        "silu" => Ok(|x| x / (1.0 + (-x).exp())),
        _ => Err(Unreadable::new(format!("activation {name}"))),
    }
}

/// GELU (Hendrycks and Gimpel, 2016).
pub(super) fn gelu(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x * core::f64::consts::FRAC_1_SQRT_2)
}

/// GELU in its tanh approximation, which is ggml's.
fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}
