//! Model families: for each, a table of tensor names and options, in a file of its own.
//!
//! To add one, write a file with its [`Family`] and add a line to [`FAMILIES`].
//! Loader, forward pass, packed files and quantisation all follow from the table.

mod bert;
mod cohere;
mod deepseek2;
mod draft;
mod encoders;
mod ernie;
mod exaone4;
mod experts;
mod gemma;
mod gemma4;
mod glm;
mod gpt_oss;
mod granite;
mod hunyuan;
mod keys;
mod layers;
mod lfm2;
mod llama;
mod mamba;
mod minicpm;
mod minimax;
mod mistral3;
mod next_token;
mod olmo2;
mod phi3;
mod powerinfer;
mod qwen;
mod qwen35;
mod read;
mod seed_oss;
mod smallthinker;
mod smollm3;
mod stablelm;
mod unread;

pub(in crate::model) use keys::Keys;
pub(in crate::model) use next_token::NextTokenName;
pub use powerinfer::PowerInfer;
pub(in crate::model) use powerinfer::turned_type;

use super::activation::Activation;
use super::architecture::Architecture;
use super::config::{Fusion, ModelConfig};
use super::error::ModelError;
use super::shape::QkNorm;
use super::site::{Site, Vector};
use crate::kernels::table::RopePairing;
use core::fmt;
use draft::Draft;

/// Names of the tensors outside of the layers.
pub(super) const TOKEN_EMBD: &str = "token_embd.weight";
pub(super) const OUTPUT: &str = "output.weight";
/// Embeddings of positions and token types, in encoders.
pub(super) const POSITION_EMBD: &str = "position_embd.weight";
pub(super) const TOKEN_TYPES: &str = "token_types";
/// Optional divisors of the rotary frequencies, (n_rot / 2) f32: one set for any context (Llama 3), or
/// one up to the original context and one beyond it (longrope).
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";
pub(super) const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
pub(super) const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// The per-layer embeddings, (n_vocab, n_layer * n_embd_layer), the projection of the model's embedding that is added
/// to them, and its norm.
pub(super) const LAYER_TOKEN_EMBD: &str = "per_layer_token_embd.weight";
pub(super) const LAYER_MODEL_PROJ: &str = "per_layer_model_proj.weight";
pub(super) const LAYER_PROJ_NORM: &str = "per_layer_proj_norm.weight";

/// Gates and then ups of every expert as the rows of one matrix each, in files that fuse them.
pub(super) const GATE_UP_EXPS: &str = "ffn_gate_up_exps";
/// The ups alone; the factors of both are named after them.
pub(super) const UP_EXPS: &str = "ffn_up_exps";

impl Architecture {
    /// All architectures.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> + Clone {
        (0..FAMILIES.len()).map(Self)
    }

    /// The name, as `general.architecture` spells it. Two architectures may share one.
    pub fn name(self) -> &'static str {
        self.family().name
    }

    pub(in crate::model) fn family(self) -> &'static Family {
        FAMILIES[self.0]
    }
}

impl fmt::Debug for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// All families of this build.
static FAMILIES: &[&Family] = &[
    &llama::LLAMA,
    &qwen::QWEN2,
    &qwen::QWEN3,
    &phi3::PHI3,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &experts::MIXTRAL,
    &experts::OLMOE,
    &experts::QWEN3MOE,
    &bert::BERT,
    &lfm2::LFM2,
    &gpt_oss::GPT_OSS,
    &lfm2::LFM2MOE,
    &granite::GRANITE,
    &granite::GRANITE_MOE,
    &glm::GLM4,
    &glm::GLM4_MOE,
    &mistral3::MISTRAL3,
    &smollm3::SMOLLM3,
    &olmo2::OLMO2,
    &qwen::QWEN2MOE,
    &ernie::ERNIE4_5,
    &ernie::ERNIE4_5_MOE,
    &seed_oss::SEED_OSS,
    &cohere::COHERE2,
    &exaone4::EXAONE4,
    &minimax::MINIMAX_M2,
    &hunyuan::HUNYUAN_DENSE,
    &hunyuan::HUNYUAN_MOE,
    &deepseek2::DEEPSEEK2,
    &granite::GRANITE_SWA,
    &gemma4::GEMMA4,
    &qwen35::QWEN35,
    &qwen35::QWEN35_MOE,
    &qwen35::QWEN3_NEXT,
    &mamba::GRANITE_HYBRID,
    &mamba::NEMOTRON_H,
    &mamba::NEMOTRON_H_MOE,
    &encoders::NOMIC_BERT,
    &encoders::NOMIC_BERT_MOE,
    &encoders::JINA_BERT_V3,
    &encoders::JINA_BERT_V2,
    &encoders::EUROBERT,
    &encoders::MODERN_BERT,
    &encoders::GEMMA_EMBEDDING,
    &cohere::COMMAND_R,
    &stablelm::STABLELM,
    &qwen::QWEN2_VL,
    &qwen::QWEN3_VL,
    &qwen::QWEN3_VL_MOE,
    &smallthinker::SMALLTHINKER,
    &minicpm::MINICPM,
    &powerinfer::BAMBOO,
];

/// A model family: where its layers' weights are stored, and how they are used.
#[derive(Debug)]
pub(super) struct Family {
    /// `general.architecture`, and the prefix of its metadata keys.
    pub(super) name: &'static str,
    /// The tensors of its layers. A layer has the entries that its kind needs.
    pub(super) layer: &'static [&'static [Tensor]],
    /// The tensors of the shared expert in layers with experts, if other layers have the same tensors as their
    /// feed-forward network.
    pub(super) beside_experts: &'static [(&'static str, Site)],
    /// The output norm, unless a layer's norm serves as it ([`Tensor::OutputNormBefore`]).
    pub(super) output_norm: EndNorm,
    /// The norm of the embeddings, if the residual stream begins with one.
    pub(super) embedding_norm: Option<EndNorm>,
    /// What is added to the embeddings of tokens.
    pub(super) beside: Beside,
    /// Which dimensions rotate together.
    pub(super) rope_pairing: RopePairing,
    /// What the norms of queries and keys span, if the table has such norms.
    pub(super) qk_norm: QkNorm,
    /// The activation of the feed-forward network's gate.
    pub(super) activation: Activation,
    /// Whether the first block after its layers is run as a head that predicts one more token ([`next_token`]).
    has_next_token: bool,
    /// Metadata keys that only this family reads, without the prefix.
    keys: &'static [&'static str],
    /// Reads the settings that only this family has into an otherwise complete draft.
    adjust: for<'a> fn(&Keys<'_, 'a>, &mut Draft<'a>) -> Result<(), ModelError>,
}

/// What an encoder adds to the embeddings of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// The embedding of the first token type, if the file has types.
    Types,
    /// The embedding of the first token type, and the embedding of the position.
    TypesAndPositions,
}

/// A norm outside of the layers: its kind, and the tensor's name without `.weight`.
#[derive(Clone, Copy, Debug)]
pub(super) enum EndNorm {
    Rms(&'static str),
    Layer(&'static str),
}

/// A tensor of a layer, `blk.N.NAME`.
#[derive(Debug)]
pub(super) enum Tensor {
    /// `NAME.weight`, f32: an RMSNorm, or a vector that is not a norm.
    Vector(&'static str, Vector),
    /// `NAME`, f32.
    Named(&'static str, Vector),
    /// `NAME.weight`, and `NAME.bias` if the file has it. Several matrices are rows of one tensor,
    /// in that order. Files may fuse or split Q, K and V, and gate and up, differently ([`Fusion`]).
    Matrix(&'static str, &'static [Site]),
    /// `NAME.weight` of three dimensions: the matrix of every expert, one after the other; and `NAME.bias`
    /// if the file has it.
    Experts(&'static str, Site),
    /// `NAME.weight` of three dimensions: the matrix of every head, one after the other.
    Heads(&'static str, Site),
    /// `NAME.weight`, and `NAME.bias` if the file has it, f32: a layer norm.
    LayerNorm(&'static str, Vector),
    /// `NAME.weight`, and `NAME.bias` if the file has it, f32: a layer norm; optional in the first layer.
    LayerNormAfterFirst(&'static str, Vector),
    /// A layer norm that files assign to the previous layer (the second name); the first layer's is
    /// outside of the layers (the first name). The last layer's is the model's output norm.
    OutputNormBefore(&'static str, &'static str, Vector),
}

impl Fusion {
    /// Taken from the first layer of the file; without tensors, from the family's table.
    fn of(family: &Family, keys: &Keys<'_, '_>, n_ff: usize) -> Self {
        let gguf = keys.gguf();
        let has = |name: &str| gguf.tensor(name).is_some();
        let is_fused = |matrix: Site| {
            let parts = |tensor: &Tensor| match tensor {
                Tensor::Matrix(_, parts) => parts.len() > 1 && parts.contains(&matrix),
                _ => false,
            };
            family.tensors().any(parts)
        };
        let is_dense = !family.has_experts() && family.is_gated();
        let up_rows = gguf.tensor("blk.0.ffn_up.weight").map(|up| up.n_rows());
        let is_double = up_rows == Some(2 * n_ff as u64);
        let has_gate = has("blk.0.ffn_gate.weight");
        // A delta net's convolution reads a tensor of that name.
        let is_other = family
            .matrix("attn_qkv")
            .is_some_and(|(site, _)| site != Site::AttnQ);
        Self {
            qkv: has("blk.0.attn_qkv.weight") && !is_other
                || is_fused(Site::AttnQ) && !has("blk.0.attn_q.weight"),
            gate_up: is_dense && !has_gate && (is_double || is_fused(Site::FfnUp)),
            gate_up_exps: gguf
                .tensors()
                .any(|tensor| tensor.name.ends_with(".ffn_gate_up_exps.weight")),
            down_by_neuron: is_dense && powerinfer::is_down_by_neuron(gguf),
        }
    }

    /// Whether that matrix of an expert is stored in [`GATE_UP_EXPS`].
    pub(super) const fn has(self, site: Site) -> bool {
        self.gate_up_exps && matches!(site, Site::FfnGate | Site::FfnUp)
    }

    /// The tensors that hold the matrices of a table's entry; `None` means the entry as it stands.
    pub(super) const fn instead(self, parts: &[Site]) -> Option<Parts> {
        use Site::{AttnK, AttnQ, AttnV, FfnDown, FfnGate, FfnUp};
        const QKV: Parts = &[("attn_qkv", &[AttnQ, AttnK, AttnV])];
        const GATE_UP: Parts = &[("ffn_up", &[FfnGate, FfnUp])];
        const Q_K_V: Parts = &[
            ("attn_q", &[AttnQ]),
            ("attn_k", &[AttnK]),
            ("attn_v", &[AttnV]),
        ];
        const GATE_AND_UP: Parts = &[("ffn_gate", &[FfnGate]), ("ffn_up", &[FfnUp])];
        match parts {
            [AttnQ] if self.qkv => Some(QKV),
            [FfnGate] if self.gate_up => Some(GATE_UP),
            [FfnDown] if self.down_by_neuron => Some(&[(powerinfer::DOWN_BY_NEURON, &[FfnDown])]),
            // Stored in a tensor named above.
            [AttnK | AttnV] if self.qkv => Some(&[]),
            [FfnUp] if self.gate_up => Some(&[]),
            [AttnQ, AttnK, AttnV] if !self.qkv => Some(Q_K_V),
            [FfnGate, FfnUp] if !self.gate_up => Some(GATE_AND_UP),
            _ => None,
        }
    }
}

/// Names of tensors, and the matrices that each holds.
type Parts = &'static [(&'static str, &'static [Site])];

impl Site {
    /// The tensor of layer `layer` that holds it in the model's file, such as `attn_q`; several matrices may
    /// share one. `None` if the family has no such matrix in layers of that kind.
    ///
    /// # Panics
    /// If the layer does not exist.
    pub fn tensor(self, config: &ModelConfig, layer: usize) -> Option<&'static str> {
        let has_experts = config.kind(layer).experts().is_some();
        let of_experts = self.is_of_experts() && has_experts;
        let mut beside = config.architecture.family().beside_experts.iter();
        if let Some((name, _)) = beside.find(|(_, site)| has_experts && *site == self) {
            return Some(name);
        }
        let in_parts = |parts: Parts| {
            let found = parts.iter().find(|(_, parts)| parts.contains(&self))?;
            Some(found.0)
        };
        config
            .architecture
            .family()
            .tensors()
            .find_map(|tensor| match tensor {
                Tensor::Matrix(name, parts) if !of_experts => match config.fused.instead(parts) {
                    Some(parts) => in_parts(parts),
                    None => parts.contains(&self).then_some(*name),
                },
                Tensor::Experts(_, other)
                    if of_experts && *other == self && config.fused.has(self) =>
                {
                    Some(GATE_UP_EXPS)
                }
                Tensor::Experts(name, other) if of_experts && *other == self => Some(*name),
                Tensor::Heads(name, other) if *other == self => Some(*name),
                _ => None,
            })
    }
}

impl Family {
    /// The defaults of all families, to be completed.
    const PLAIN: Self = Self {
        name: "",
        layer: &[],
        beside_experts: &[],
        output_norm: EndNorm::Rms("output_norm"),
        embedding_norm: None,
        beside: Beside::Nothing,
        rope_pairing: RopePairing::Halves,
        qk_norm: QkNorm::None,
        activation: Activation::Silu,
        has_next_token: false,
        keys: &[],
        adjust: |_, _| Ok(()),
    };

    /// The tensors of its layers, in the order in which they are placed.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &'static Tensor> + use<> {
        self.layer.iter().copied().flatten()
    }

    /// Whether layers have this norm.
    fn has(&self, norm: Vector) -> bool {
        self.tensors().any(|tensor| match tensor {
            Tensor::Vector(_, other) | Tensor::LayerNorm(_, other) => *other == norm,
            _ => false,
        })
    }

    /// Whether `blk.N.NAME.weight` is a norm or another vector.
    fn has_vector(&self, name: &str) -> bool {
        self.tensors().any(|tensor| match tensor {
            Tensor::Vector(other, _)
            | Tensor::LayerNorm(other, _)
            | Tensor::LayerNormAfterFirst(other, _) => *other == name,
            _ => false,
        })
    }

    /// The key of the epsilon added to the mean square in norms, by the kind of the output norm.
    fn eps_key(&self) -> &'static str {
        match (self.output_norm, self.output_norm_of_layer()) {
            (EndNorm::Rms(_), None) => "attention.layer_norm_rms_epsilon",
            _ => "attention.layer_norm_epsilon",
        }
    }

    /// The matrix, or the first of several, in the tensor `blk.N.NAME.weight`, and whether every expert
    /// has its own.
    fn matrix(&self, name: &str) -> Option<(Site, bool)> {
        self.tensors().find_map(|tensor| match tensor {
            Tensor::Matrix(other, parts) if *other == name => Some((parts[0], false)),
            Tensor::Experts(other, matrix) if *other == name => Some((*matrix, true)),
            Tensor::Heads(other, matrix) if *other == name => Some((*matrix, false)),
            _ => None,
        })
    }

    /// Whether layers have experts.
    fn has_experts(&self) -> bool {
        let is_it = |tensor: &Tensor| matches!(tensor, Tensor::Experts(..));
        self.tensors().any(is_it)
    }

    /// Whether the feed-forward network is gated.
    fn is_gated(&self) -> bool {
        self.tensors().any(|tensor| match tensor {
            Tensor::Matrix(_, parts) => parts.contains(&Site::FfnGate),
            Tensor::Experts(_, matrix) => *matrix == Site::FfnGate,
            _ => false,
        })
    }

    /// The layer norm that serves as the output norm, if the output norm has no name of its own.
    pub(super) fn output_norm_of_layer(&self) -> Option<&'static str> {
        self.tensors().find_map(|tensor| match tensor {
            Tensor::OutputNormBefore(_, name, _) => Some(*name),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
