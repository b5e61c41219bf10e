//! What a model is: the numbers that every size follows from.

use super::architecture::Architecture;
use super::error::ModelError;
use super::kind::LayerKind;
use super::rope::{RopeConfig, RopeScaling};
use super::shape::{Attention, Experts};
use crate::kernels::activation::ActivationKinds;
use heapless::Vec;

/// Most kinds of layers in a model.
pub const KINDS_MAX: usize = 8;
/// Most layers accepted.
pub const LAYERS_MAX: usize = 512;
/// Most rotations that the layers of a model use.
pub const ROPES_MAX: usize = 4;

/// Shape and constants of a model, spelled as GGUF and llama.cpp spell them. Its layers are a list, each of
/// one of a few kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// How the file holds matrices that stand side by side.
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
    /// Rotations of queries and keys that layers name.
    pub ropes: Vec<RopeConfig, ROPES_MAX>,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// What logits are capped to; 0 for no cap.
    pub logit_soft_cap: f32,
    /// Factor on logits, before the cap.
    pub logit_scale: f32,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// Factor on what mixers and channels add to the residual stream.
    pub residual_scale: f32,
    /// Width of the embedding that each layer has of its own; 0 for none.
    pub n_embd_layer: usize,
    /// Whether a token sees only those before it. Where it sees all, the engine takes whole
    /// texts, and gives hidden states alone.
    pub is_causal: bool,
    /// Whether a norm's result takes the place of the residual stream.
    pub norms_replace_stream: bool,
    /// Whether the output layer is the embedding.
    pub tied_output: bool,
    /// The kinds of activations that the weight types of its layers multiply.
    pub activations: LayerActivations,
    /// The same of the output layer.
    pub output_activations: ActivationKinds,
    /// What makes it a head behind another model's layers, whose only layer is a block of that model's file.
    pub next_token: Option<NextToken>,
}

/// A head that predicts a token further than its trunk, the model whose file it is part of: of each token and
/// the trunk's hidden state before it. It is a model of one layer with a state of its own.
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

/// Which matrices a file holds as the rows of one tensor. Converters differ: most families have files
/// of both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fusion {
    /// Q, K and V are `attn_qkv`.
    pub qkv: bool,
    /// Gate and up are `ffn_up`.
    pub gate_up: bool,
    /// Those of experts are `ffn_gate_up_exps`.
    pub gate_up_exps: bool,
}

/// The kinds of activations that the matrices of layers multiply, by what they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerActivations {
    /// The residual stream after a norm: projections into the mixer, gate and up projections, routers.
    pub stream: ActivationKinds,
    /// The same in the order of experts: their gate and up projections. Part of the stream's.
    pub experts: ActivationKinds,
    /// What the mixer made of it: its output projection.
    pub mixed: ActivationKinds,
    /// The neurons of the feed-forward network: down projections.
    pub neurons: ActivationKinds,
}

impl LayerActivations {
    /// The same kinds for all.
    pub const fn all(kinds: ActivationKinds) -> Self {
        Self {
            stream: kinds,
            experts: kinds,
            mixed: kinds,
            neurons: kinds,
        }
    }

    /// Those and `kinds`.
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
    /// Layers.
    pub fn n_layer(&self) -> usize {
        self.layers.len()
    }

    /// The number that layer `layer` has among the blocks of the file.
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

    /// The same as an index into [`Self::kinds`].
    ///
    /// # Panics
    /// As [`Self::kind`].
    pub fn kind_index(&self, layer: usize) -> usize {
        usize::from(self.layers[layer])
    }

    /// Appends a layer of that kind.
    ///
    /// # Errors
    /// More kinds, or layers, than a model may have.
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

    /// The shape of each layer's attention, of those that have some.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.kinds.iter().filter_map(LayerKind::attention)
    }

    /// The shapes of experts, of the kinds that have some.
    pub fn experts(&self) -> impl Iterator<Item = &Experts> {
        self.kinds.iter().filter_map(LayerKind::experts)
    }

    /// Whether some layer has experts.
    pub fn has_experts(&self) -> bool {
        self.experts().next().is_some()
    }

    /// Whether tokens can be taken out of the middle of a text: no state depends on all of them, and keys turn back to other
    /// positions, which they do not where a norm comes behind their rotation.
    pub fn can_remove(&self) -> bool {
        self.why_not_remove().is_none()
    }

    /// What a model is or has whose tokens cannot be taken out of a text ([`Self::can_remove`]), for messages.
    pub fn why_not_remove(&self) -> Option<&'static str> {
        if self.is_recurrent() {
            return Some("is recurrent");
        }
        let has_norms = self.attentions().any(|shape| shape.norms_rotated);
        has_norms.then_some("has norms behind the rotation of its keys")
    }

    /// Whether some layer keeps a recurrent state beside keys and values.
    pub fn is_recurrent(&self) -> bool {
        self.kinds
            .iter()
            .any(|kind| kind.state_len(self.n_embd) > 0)
    }
}
