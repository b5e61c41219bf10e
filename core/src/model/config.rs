//! What a model is: the numbers that every size follows from.

use super::architecture::Architecture;
use super::error::ModelError;
use super::kind::LayerKind;
use super::rope::{RopeConfig, RopeScaling};
use super::shape::{Attention, Experts};
use crate::kernels::activation::ActivationKinds;
use heapless::Vec;

/// Maximum kinds of layers in a model.
pub const KINDS_MAX: usize = 8;
/// Maximum layers.
pub const LAYERS_MAX: usize = 512;
/// Maximum rotations that the layers of a model use.
pub const ROPES_MAX: usize = 4;

/// Shape and constants of a model, spelled as in GGUF and llama.cpp. Its layers are a list, each of
/// one of a few kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Which matrices the file stores fused.
    pub fused: Fusion,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Context length in training, in tokens.
    pub n_ctx_train: usize,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// The kinds of layers.
    pub kinds: Vec<LayerKind, KINDS_MAX>,
    /// The kind of each layer, as an index into `kinds`.
    pub layers: Vec<u8, LAYERS_MAX>,
    /// Rotations of queries and keys, which layers refer to by index.
    pub ropes: Vec<RopeConfig, ROPES_MAX>,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// The cap on logits; 0 for no cap.
    pub logit_soft_cap: f32,
    /// Factor on logits, before the cap.
    pub logit_scale: f32,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// Factor on what mixers and channels add to the residual stream.
    pub residual_scale: f32,
    /// Width of the per-layer embeddings; 0 for none.
    pub n_embd_layer: usize,
    /// Whether a token sees only those before it. If it sees all, the engine takes whole
    /// texts and gives only hidden states.
    pub is_causal: bool,
    /// Whether a norm's result replaces the residual stream.
    pub norms_replace_stream: bool,
    /// Whether the output layer shares the embedding's weights.
    pub tied_output: bool,
    /// The kinds of activations that the weight types of its layers multiply.
    pub activations: LayerActivations,
    /// The kinds of activations that the weight type of the output layer multiplies.
    pub output_activations: ActivationKinds,
    /// Set for a head after another model's layers, whose only layer is a block of that model's file.
    pub next_token: Option<NextToken>,
}

/// A head that predicts one more token than its trunk, the model whose file it is part of, from each token and
/// the trunk's preceding hidden state. It is a model of one layer with a state of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextToken {
    /// The file's block that is its layer.
    pub block: usize,
    /// Whether it has its own embedding, rather than the trunk's.
    pub has_embedding: bool,
    /// Whether it has its own output layer, rather than the trunk's.
    pub has_output: bool,
    /// Whether it has its own output norm, rather than the trunk's.
    pub has_output_norm: bool,
}

/// Which matrices a file stores as the rows of one tensor, or by columns. Converters differ: most families have files
/// of both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fusion {
    /// Q, K and V are `attn_qkv`.
    pub qkv: bool,
    /// Gate and up are `ffn_up`.
    pub gate_up: bool,
    /// Gate and up of experts are `ffn_gate_up_exps`.
    pub gate_up_exps: bool,
    /// Down is `ffn_down_t`, whose rows are neurons (PowerInfer).
    pub down_by_neuron: bool,
}

/// The kinds of activations that the matrices of layers multiply, by what they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerActivations {
    /// The residual stream after a norm: projections into the mixer, gate and up projections, routers.
    pub stream: ActivationKinds,
    /// The stream sorted by expert: gate and up projections of experts. A subset of the stream's kinds.
    pub experts: ActivationKinds,
    /// The mixer's result: its output projection.
    pub mixed: ActivationKinds,
    /// The neurons of the feed-forward network: down projections.
    pub neurons: ActivationKinds,
}

impl LayerActivations {
    /// One set of kinds for all matrices.
    pub const fn all(kinds: ActivationKinds) -> Self {
        Self {
            stream: kinds,
            experts: kinds,
            mixed: kinds,
            neurons: kinds,
        }
    }

    /// These kinds and `kinds`.
    #[must_use]
    pub fn with(self, kinds: ActivationKinds) -> Self {
        Self {
            stream: self.stream | kinds,
            experts: self.experts | kinds,
            mixed: self.mixed | kinds,
            neurons: self.neurons | kinds,
        }
    }
}

impl ModelConfig {
    /// The number of layers.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// The index of layer `layer` among the blocks of the file.
    pub const fn block(&self, layer: usize) -> usize {
        match self.next_token {
            Some(head) => head.block + layer,
            None => layer,
        }
    }

    /// Whether block `block` of the file is one of its layers.
    pub(super) fn has_block(&self, block: usize) -> bool {
        (self.block(0)..self.block(self.n_layer())).contains(&block)
    }

    /// The kind of a layer.
    ///
    /// # Panics
    /// If `layer` is not below [`Self::n_layer`].
    pub fn kind(&self, layer: usize) -> &LayerKind {
        &self.kinds[self.kind_index(layer)]
    }

    /// The kind of a layer, as an index into [`Self::kinds`].
    ///
    /// # Panics
    /// If `layer` is not below [`Self::n_layer`].
    pub fn kind_index(&self, layer: usize) -> usize {
        usize::from(self.layers[layer])
    }

    /// Appends a layer of that kind.
    ///
    /// # Errors
    /// Too many kinds, or layers, for a model.
    pub fn push_layer(&mut self, kind: LayerKind) -> Result<(), ModelError> {
        let known = self.kinds.iter().position(|other| *other == kind);
        let index = match known {
            Some(index) => index,
            None => {
                let many = |_| ModelError::NotImplemented {
                    what: "a model of more than 8 kinds of layers",
                    name: self.architecture.name().into(),
                };
                self.kinds.push(kind).map_err(many)?;
                self.kinds.len() - 1
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "kinds are few")]
        let index = index as u8;
        let layers = &mut self.layers;
        layers.push(index).map_err(|_| ModelError::NotImplemented {
            what: "a model of more than 512 layers",
            name: self.architecture.name().into(),
        })
    }

    /// The shape of each layer's attention, in layers with attention.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.kinds.iter().filter_map(LayerKind::attention)
    }

    /// The shapes of experts, of the kinds with experts.
    pub fn experts(&self) -> impl Iterator<Item = &Experts> {
        self.kinds.iter().filter_map(LayerKind::experts)
    }

    /// Whether some layer has experts.
    pub fn has_experts(&self) -> bool {
        self.experts().next().is_some()
    }

    /// Whether tokens can be removed from the middle of a text: no state depends on all of them, and keys can be
    /// rotated back to other positions, which a norm after their rotation prevents.
    pub fn can_remove(&self) -> bool {
        self.why_not_remove().is_none()
    }

    /// The feature of a model that prevents removing tokens from a text ([`Self::can_remove`]), for messages.
    pub fn why_not_remove(&self) -> Option<&'static str> {
        if self.is_recurrent() {
            return Some("is recurrent");
        }
        let has_norms = self.attentions().any(|shape| shape.norms_rotated);
        has_norms.then_some("has norms behind the rotation of its keys")
    }

    /// Whether some layer keeps a recurrent state in addition to keys and values.
    pub fn is_recurrent(&self) -> bool {
        self.kinds
            .iter()
            .any(|kind| kind.state_len(self.n_embd) > 0)
    }
}
