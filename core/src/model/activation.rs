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
    /// The gate times up where the gate exceeds the threshold, else 0: ReGLU with threshold 0, `FATReLU` (arXiv 2402.13516) above.
    Relu {
        /// Least gate that is not replaced by 0, exclusive; not negative.
        threshold: f32,
    },
    /// `max(gate, 0) · max(up, 0)`: dReLU (arXiv 2406.05955).
    Drelu,
    /// `g · sigmoid(alpha · g) · (u + 1)` with `g = min(gate, limit)` and `u` within ± `limit`.
    SwigluClamped {
        /// Factor inside the sigmoid.
        alpha: f32,
        /// Maximum gate, and maximum magnitude of the value that it multiplies.
        limit: f32,
    },
}

impl Activation {
    /// The largest gate with which the network's neuron is 0 whatever up is, where there are such gates.
    pub(crate) const fn gate_threshold(self) -> Option<f32> {
        match self {
            Self::Relu { threshold } => Some(threshold),
            Self::Drelu => Some(0.0),
            Self::Silu
            | Self::Gelu
            | Self::GeluErf
            | Self::ReluSquared
            | Self::SwigluClamped { .. } => None,
        }
    }
}
