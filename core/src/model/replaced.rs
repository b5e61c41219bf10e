//! Models whose gates have another activation than their files say.

use super::activation::Activation;
use super::config::ModelConfig;
use super::error::ModelError;
use super::kind::{Channel, Mixer};

impl ModelConfig {
    /// The activation of the first layer that has a network or experts.
    pub fn activation(&self) -> Option<Activation> {
        self.kinds.iter().find_map(|kind| match &kind.channel {
            Channel::Ffn(shape) => Some(shape.activation),
            Channel::Experts(shape) => Some(shape.activation),
            Channel::None => None,
        })
    }

    /// The model with another activation of its gates, for files that do not say that theirs has zeros.
    ///
    /// # Errors
    /// [`ModelError::ActivationFixed`]: a model whose gates have GELU or clamps, one without gates, an encoder, or one
    /// whose mixers apply SiLU as well.
    pub fn with_activation(mut self, activation: Activation) -> Result<Self, ModelError> {
        let architecture = self.architecture;
        let is_fixed = |current: Activation| ModelError::ActivationFixed {
            architecture: architecture.name(),
            current: current.name(),
        };
        let current = self.activation().unwrap_or(Activation::Silu);
        let attends = |mixer: &Mixer| !matches!(mixer, Mixer::DeltaNet(_) | Mixer::Mamba2(_));
        if !self.is_causal || !self.kinds.iter().all(|kind| attends(&kind.mixer)) {
            return Err(is_fixed(current));
        }
        for kind in &mut self.kinds {
            let (is_gated, place) = match &mut kind.channel {
                Channel::Ffn(shape) => (shape.is_gated, &mut shape.activation),
                Channel::Experts(shape) => (shape.is_gated, &mut shape.activation),
                Channel::None => continue,
            };
            if !is_gated || !place.is_replaceable() {
                return Err(is_fixed(*place));
            }
            *place = activation;
        }
        Ok(self)
    }
}
