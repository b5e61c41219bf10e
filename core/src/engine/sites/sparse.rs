//! Modes of leaving neurons of feed-forward networks unread, or out.

use crate::engine::batch::EngineError;
use crate::engine::limits::EngineLimits;
use crate::model::{Channel, LayerKind, ModelConfig, Predictor};

/// Which neurons of feed-forward networks are left unread, where the file is by neuron
/// ([`crate::kernels::neuron::Form`]) and a step has few tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Sparse<'s> {
    /// Those that change no bit: up of neurons whose gate the activation sets to 0, down of those whose code is 0.
    #[default]
    Exact,
    /// None: all rows of gate and up are read. Columns of down whose codes are 0 are skipped all the same: that product is the
    /// fastest one.
    Off,
    /// In addition those that change little, in files of any form and steps of any length: a function of each row alone.
    Approximate(Approximation<'s>),
    /// In addition those that a predictor does not choose from what the network reads, of files in any form and in steps of
    /// any length: a function of each row alone. A selector's choice stands in its place.
    Predictor(&'s Predictor<'s>),
}

impl<'s> Sparse<'s> {
    /// The predictor.
    pub(in crate::engine) const fn predictor(&self) -> Option<&'s Predictor<'s>> {
        match self {
            Self::Predictor(predictor) => Some(predictor),
            _ => None,
        }
    }
}

/// A mode that changes results: the neurons of a row that it leaves out count as 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Approximation<'s> {
    /// What tells how much a neuron matters.
    pub signal: NeuronSignal,
    /// Which neurons are left out by it.
    pub rule: NeuronRule<'s>,
    /// Norms of the columns of all down matrices ([`crate::model::ModelWeights::neuron_norms`]), of which
    /// [`ModelConfig::neurons_max`] floats are each layer's; unused unless the signal is the contribution.
    pub norms: &'s [f32],
}

/// How much a neuron of a row matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeuronSignal {
    /// The magnitude of the activated gate, known before up is read.
    Gate,
    /// The magnitude of the neuron's value.
    Product,
    /// That times the norm of its column of down: the norm of what it adds.
    Contribution,
}

/// Which neurons of a row are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NeuronRule<'s> {
    /// Those whose signal is not above the layer's threshold, (n_layer). A negative threshold leaves none out.
    Threshold(&'s [f32]),
    /// All but a share of the neurons of each network, those with the largest signals, (n_layer). Of equal signals the first
    /// ones are kept, as in the following.
    Share(&'s [f32]),
    /// All but this many.
    Count(usize),
    /// Those with the smallest contributions, as long as the sum of what they add is at most this share of the root of
    /// the sum of squares of all.
    Budget(f32),
}

impl Approximation<'_> {
    /// Whether the neurons of a row are compared with each other by their gates, before up is read
    /// ([`EngineLimits::ranks_gates`]).
    pub const fn ranks_gates(&self) -> bool {
        let is_local = matches!(self.rule, NeuronRule::Threshold(_));
        matches!(self.signal, NeuronSignal::Gate) && !is_local
    }

    /// Checks it against the model.
    pub(in crate::engine) fn check(
        &self,
        config: &ModelConfig,
        limits: &EngineLimits,
        experts_are_resident: bool,
    ) -> Result<(), EngineError> {
        let n_layer = config.n_layer();
        let has_layers = match self.rule {
            NeuronRule::Threshold(values) | NeuronRule::Share(values) => values.len() == n_layer,
            _ => true,
        };
        let is_gate = self.signal == NeuronSignal::Gate;
        let is_contribution = self.signal == NeuronSignal::Contribution;
        let has_all = experts_are_resident || !config.has_experts();
        let can_rank = has_all && config.experts().all(|shape| shape.shared.is_none());
        let is_budget = matches!(self.rule, NeuronRule::Budget(_));
        let has_norms = self.norms.len() / n_layer >= config.neurons_max();
        let wrong = [
            (!has_layers, "one value for each layer is needed"),
            (
                is_contribution && !has_norms,
                "norms of all neurons are needed",
            ),
            (
                is_gate && !config.kinds.iter().all(is_gated),
                "a network has no gate",
            ),
            (
                self.ranks_gates() && !can_rank,
                "gates are not compared with an expert for all tokens or experts on disk",
            ),
            (
                is_budget && !is_contribution,
                "a budget is of contributions",
            ),
        ];
        if let Some((_, what)) = wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
            return Err(EngineError::Sparse { what });
        }
        match self.ranks_gates() && !limits.ranks_gates {
            true => Err(EngineError::NotMadeFor {
                what: "ranks_gates",
            }),
            false => Ok(()),
        }
    }
}

/// Whether the networks of a layer have gates, if it has any.
fn is_gated(kind: &LayerKind) -> bool {
    match &kind.channel {
        Channel::Ffn(shape) => shape.is_gated,
        Channel::Experts(shape) => shape.is_gated,
        Channel::None => true,
    }
}
