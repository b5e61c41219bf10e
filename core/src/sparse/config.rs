//! Which neurons are computed, and their activation.

use super::SparsityError;
use super::error::setting;
use crate::kernels::KernelTable;

/// How neurons are selected. `top_k` comes before `threshold`, and both before `target_sparsity`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparsityConfig {
    /// Selects scores above it.
    pub threshold: Option<f32>,
    /// Selects this number of the highest scores.
    pub top_k: Option<usize>,
    /// Share of neurons to leave out, 0 to 1. At least one neuron is computed.
    pub target_sparsity: Option<f32>,
    /// For `target_sparsity`: each vector has a threshold of its own, which meets the target exactly. Otherwise
    /// calibration sets one threshold for all.
    pub adaptive_threshold: bool,
}

impl Default for SparsityConfig {
    fn default() -> Self {
        Self::with_threshold(0.01)
    }
}

impl SparsityConfig {
    const NONE: Self = Self {
        threshold: None,
        top_k: None,
        target_sparsity: None,
        adaptive_threshold: false,
    };

    /// Selects scores above `threshold`.
    #[must_use]
    pub const fn with_threshold(threshold: f32) -> Self {
        Self {
            threshold: Some(threshold),
            ..Self::NONE
        }
    }

    /// Selects the `k` highest scores.
    #[must_use]
    pub const fn with_top_k(k: usize) -> Self {
        Self {
            top_k: Some(k),
            ..Self::NONE
        }
    }

    /// Leaves out a share of the neurons, with a threshold for each vector.
    #[must_use]
    pub const fn with_target_sparsity(sparsity: f32) -> Self {
        Self {
            target_sparsity: Some(sparsity),
            adaptive_threshold: true,
            ..Self::NONE
        }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// A setting that is out of range, by name, or none at all.
    pub fn validate(&self) -> Result<(), SparsityError> {
        if let Some(x) = self.threshold
            && !(x >= 0.0 && x.is_finite())
        {
            let expected = "a finite number of at least 0";
            return Err(setting("threshold", f64::from(x), expected));
        }
        if self.top_k == Some(0) {
            return Err(setting("top_k", 0.0, "at least 1"));
        }
        if let Some(x) = self.target_sparsity
            && !(0.0..=1.0).contains(&x)
        {
            let expected = "a number from 0 to 1";
            return Err(setting("target_sparsity", f64::from(x), expected));
        }
        match (self.threshold, self.top_k, self.target_sparsity) {
            (None, None, None) => Err(SparsityError::NothingSelects),
            _ => Ok(()),
        }
    }
}

/// The activation of a two-layer network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActivationType {
    /// `max(0, x)`
    Relu,
    /// `x · Φ(x)`, the tanh approximation.
    Gelu,
    /// `x · sigmoid(x)`
    Silu,
    /// Another name of [`ActivationType::Silu`].
    Swish,
    /// `x`
    Identity,
}

/// Values that are activated together.
const CHUNK: usize = 64;

impl ActivationType {
    /// Applies it in place.
    pub fn apply_slice(self, table: &KernelTable, x: &mut [f32]) {
        let ones = [1.0; CHUNK];
        let mut out = [0.0; CHUNK];
        for x in x.chunks_mut(CHUNK) {
            let (ones, out) = (&ones[..x.len()], &mut out[..x.len()]);
            match self {
                Self::Relu => {
                    // NaN stays.
                    for x in x {
                        *x = if *x < 0.0 { 0.0 } else { *x };
                    }
                }
                Self::Gelu => {
                    table.gelu_mul(x, ones, out);
                    x.copy_from_slice(out);
                }
                Self::Silu | Self::Swish => {
                    table.silu_mul(x, ones, out);
                    x.copy_from_slice(out);
                }
                Self::Identity => {}
            }
        }
    }
}
