//! Activations of feed-forward networks.

use core::fmt;

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

    /// `silu`, `relu`, `drelu`, `fatrelu` or `fatrelu:THRESHOLD`, where the threshold is a finite number of 0 or more
    /// and 0 unless it is given: the activations that a gate may have in place of another.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once(':') {
            None => match text {
                "silu" => Some(Self::Silu),
                "relu" | "fatrelu" => Some(Self::Relu { threshold: 0.0 }),
                "drelu" => Some(Self::Drelu),
                _ => None,
            },
            Some(("fatrelu", threshold)) => {
                let threshold: f32 = threshold.parse().ok()?;
                let is_sound = threshold.is_finite() && threshold >= 0.0;
                is_sound.then_some(Self::Relu {
                    threshold: threshold.abs(),
                })
            }
            Some(_) => None,
        }
    }

    /// Whether it gives zeros, so that neurons can be skipped.
    pub const fn has_zeros(&self) -> bool {
        matches!(self, Self::Relu { .. } | Self::Drelu | Self::ReluSquared)
    }

    /// Its name, without its numbers.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu_pytorch_tanh",
            Self::GeluErf => "gelu",
            Self::ReluSquared => "relu2",
            Self::Relu { .. } => "relu",
            Self::Drelu => "drelu",
            Self::SwigluClamped { .. } => "swiglu_clamped",
        }
    }

    /// Whether another of [`Self::parse`]'s can stand in its place: it is the activation of a gate without clamps.
    pub(super) const fn is_replaceable(&self) -> bool {
        matches!(self, Self::Silu | Self::Relu { .. } | Self::Drelu)
    }
}

/// As [`Activation::parse`] reads it, where it reads one.
impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Relu { threshold } if *threshold > 0.0 => write!(f, "fatrelu:{threshold}"),
            _ => f.write_str(self.name()),
        }
    }
}
