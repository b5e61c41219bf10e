//! Activations of feed-forward networks.

/// The activation of a feed-forward network's gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x · sigmoid(x)` (SwiGLU).
    Silu,
    /// GELU in its tanh approximation (GeGLU of the Gemma family).
    Gelu,
    /// GELU by the error function.
    GeluErf,
    /// `max(x, 0)²`, without a gate (Nemotron).
    ReluSquared,
    /// `g · sigmoid(alpha · g) · (u + 1)` with `g = min(gate, limit)` and `u` within ± `limit`.
    SwigluClamped {
        /// Factor inside the sigmoid.
        alpha: f32,
        /// Maximum gate, and maximum magnitude of the value that it multiplies.
        limit: f32,
    },
}
