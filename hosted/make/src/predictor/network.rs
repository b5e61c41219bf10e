//! The networks that have predictors: dense ones, and each expert of a mixture.

use sluice_core::model::{Activation, Channel, ModelConfig, ModelWeights, Site, Weight};

/// A network of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Network {
    pub(super) layer: usize,
    pub(super) expert: Option<u32>,
    /// Elements of the rows that it reads.
    pub(super) n_in: usize,
    pub(super) n_ff: usize,
    pub(super) activation: Activation,
    /// The site of the matrix that tells which neurons are active: gate, or up without a gate.
    pub(super) site: Site,
    /// Experts that work on a token, and all of them.
    pub(super) share: (usize, usize),
}

impl Network {
    /// The networks of a layer, of experts in ascending order.
    pub(super) fn of(config: &ModelConfig, layer: usize) -> Vec<Self> {
        let site = |is_gated| if is_gated { Site::FfnGate } else { Site::FfnUp };
        match &config.kind(layer).channel {
            Channel::Ffn(shape) => vec![Self {
                layer,
                expert: None,
                n_in: config.n_embd,
                n_ff: shape.n_ff,
                activation: shape.activation,
                site: site(shape.is_gated),
                share: (1, 1),
            }],
            Channel::Experts(shape) => {
                let network = |expert| Self {
                    layer,
                    expert: Some(expert),
                    n_in: shape.width(config.n_embd),
                    n_ff: shape.n_ff,
                    activation: shape.activation,
                    site: site(shape.is_gated),
                    share: (shape.n_expert_used, shape.n_expert),
                };
                (0..).map(network).take(shape.n_expert).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The networks of a model.
    pub(super) fn all(config: &ModelConfig) -> impl Iterator<Item = Self> {
        (0..config.n_layer()).flat_map(|layer| Self::of(config, layer))
    }

    /// One of its matrices.
    pub(super) fn matrix<'w>(&self, weights: &ModelWeights<'w>, site: Site) -> Weight<'w> {
        match self.expert {
            None => weights.site(self.layer, site),
            Some(expert) => weights.expert(self.layer, site, expert),
        }
    }

    /// The norms of its neurons' columns of down, from the norms of all layers, [`ModelConfig::neurons_max`] for each.
    pub(super) fn norms<'n>(&self, config: &ModelConfig, norms: &'n [f32]) -> &'n [f32] {
        let before = self.expert.unwrap_or(0) as usize * self.n_ff;
        let start = self.layer * config.neurons_max() + before;
        &norms[start..start + self.n_ff]
    }

    /// Bytes of what is kept of it while a text is read, about: of `n_train` tokens, and twice `n_held`.
    pub(super) fn bytes(&self, n_train: usize, n_held: usize) -> usize {
        let (used, all) = self.share;
        let row = 4 * self.n_in + self.n_ff / 8;
        ((n_train + 2 * n_held) * row + 8 * n_held * self.n_ff) * used / all
    }
}
