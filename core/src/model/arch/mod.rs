//! Model families: for each, a table of tensor names and options, in a file of its own.
//!
//! To add one: a file with its [`Family`], a variant of [`Architecture`], a line in [`FAMILIES`].
//! Loader, forward pass, packed files and quantisation all follow from the table.

mod bert;
mod draft;
mod encoders;
mod experts;
mod gemma;
mod gpt_oss;
mod keys;
mod lfm2;
mod llama;
mod phi3;
mod qwen;
mod read;
mod unread;

pub(in crate::model) use keys::Keys;

use super::architecture::Architecture;
use super::config::{Fused, ModelConfig};
use super::error::ModelError;
use super::shape::{Activation, Norm, QkNorm};
use super::site::{Site, Vector};
use crate::kernels::table::RopePairing;
use draft::Draft;

/// Names of the tensors outside of layers.
pub(super) const TOKEN_EMBD: &str = "token_embd.weight";
pub(super) const OUTPUT: &str = "output.weight";
/// Embeddings of positions and token types, of encoders.
pub(super) const POSITION_EMBD: &str = "position_embd.weight";
pub(super) const TOKEN_TYPES: &str = "token_types";
/// Optional divisors of the rotary frequencies, (n_rot / 2) f32: for any context (Llama 3), or
/// one set up to the original context and one beyond it (longrope).
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";
pub(super) const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
pub(super) const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

impl Architecture {
    pub(in crate::model) fn family(self) -> &'static Family {
        let family = FAMILIES.iter().find(|family| family.architecture == self);
        family.expect("every variant has its family in the list")
    }
}

/// All families of this build.
pub(super) static FAMILIES: [&Family; 18] = [
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
    &encoders::NOMIC_BERT,
    &encoders::JINA_BERT_V3,
    &encoders::JINA_BERT_V2,
    &encoders::EUROBERT,
    &encoders::MODERN_BERT,
    &encoders::GEMMA_EMBEDDING,
];

/// What makes a family: where its layers' weights are, and how they are used.
#[derive(Debug)]
pub(super) struct Family {
    /// `general.architecture`, and the prefix of its metadata keys.
    pub(super) name: &'static str,
    pub(super) architecture: Architecture,
    /// The tensors of its layers. A layer has those of them that its kind asks for.
    pub(super) layer: &'static [Tensor],
    /// The output norm.
    pub(super) output_norm: &'static str,
    /// The norm of embeddings, where it begins the residual stream.
    pub(super) embedding_norm: Option<&'static str>,
    /// What is added to the embeddings of tokens.
    pub(super) beside: Beside,
    /// What norms over the residual stream are.
    pub(super) norm: Norm,
    /// Which dimensions rotate together.
    pub(super) rope_pairing: RopePairing,
    /// What the norms of queries and keys span, where the table has such norms.
    pub(super) qk_norm: QkNorm,
    /// What the gate of the feed-forward network goes through.
    pub(super) activation: Activation,
    /// Metadata keys that it alone reads, without its name before them.
    keys: &'static [&'static str],
    /// Reads what the family alone has, into a draft with everything else.
    adjust: for<'a> fn(&Keys<'_, 'a>, &mut Draft<'a>) -> Result<(), ModelError>,
}

/// What an encoder adds to the embeddings of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// The embedding of the first token type, if the file has types.
    Types,
    /// That, and the embedding of the position.
    TypesAndPositions,
}

/// A tensor of a layer, `blk.N.NAME`.
#[derive(Debug)]
pub(super) enum Tensor {
    /// `NAME.weight`, f32.
    Vector(&'static str, Vector),
    /// The same; in the first layer only if the file has it.
    VectorBehindFirst(&'static str, Vector),
    /// `NAME.weight`, and `NAME.bias` if the file has it. Several matrices are one tensor's rows,
    /// in that order. Files may hold Q, K and V, and gate and up, the other way ([`Fused`]).
    Matrix(&'static str, &'static [Site]),
    /// `NAME.weight` of three dimensions: the matrix of every expert, one after the other; and `NAME.bias`
    /// if the file has it.
    Experts(&'static str, Site),
    /// `NAME.weight` and `NAME.bias`, f32: a layer norm.
    LayerNorm(&'static str, Vector),
    /// A layer norm that files count to the layer before (the second name); the first layer's is
    /// outside of layers (the first name). The last layer's is the model's output norm.
    OutputNormBefore(&'static str, &'static str, Vector),
}

impl Fused {
    /// As the first layer of the file has it; where nothing is there, as the family's table.
    fn of(family: &Family, keys: &Keys<'_, '_>, n_ff: usize) -> Self {
        let gguf = keys.gguf();
        let has = |name: &str| gguf.tensor(name).is_some();
        let is_fused = |matrix: Site| {
            let parts = |tensor: &Tensor| match tensor {
                Tensor::Matrix(_, parts) => parts.len() > 1 && parts.contains(&matrix),
                _ => false,
            };
            family.layer.iter().any(parts)
        };
        let is_dense = !family.has_experts() && family.is_gated();
        let up_rows = gguf.tensor("blk.0.ffn_up.weight").map(|up| up.n_rows());
        let is_double = up_rows == Some(2 * n_ff as u64);
        let has_gate = has("blk.0.ffn_gate.weight");
        Self {
            qkv: has("blk.0.attn_qkv.weight")
                || is_fused(Site::AttnQ) && !has("blk.0.attn_q.weight"),
            gate_up: is_dense && !has_gate && (is_double || is_fused(Site::FfnUp)),
        }
    }

    /// The tensors with the matrices of a table's entry; `None` is the entry as it stands.
    pub(super) const fn instead(self, parts: &[Site]) -> Option<Parts> {
        use Site::{AttnK, AttnQ, AttnV, FfnGate, FfnUp};
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
            // Part of what has been named.
            [AttnK | AttnV] if self.qkv => Some(&[]),
            [FfnUp] if self.gate_up => Some(&[]),
            [AttnQ, AttnK, AttnV] if !self.qkv => Some(Q_K_V),
            [FfnGate, FfnUp] if !self.gate_up => Some(GATE_AND_UP),
            _ => None,
        }
    }
}

/// Names of tensors, and the matrices in each.
type Parts = &'static [(&'static str, &'static [Site])];

impl Site {
    /// The tensor of a layer that holds it in the model's file, such as `attn_q`; several matrices may
    /// share one. `None` where the family has no such matrix in its layers.
    pub fn tensor(self, config: &ModelConfig) -> Option<&'static str> {
        let in_parts = |parts: Parts| {
            let found = parts.iter().find(|(_, parts)| parts.contains(&self))?;
            Some(found.0)
        };
        config
            .architecture
            .family()
            .layer
            .iter()
            .find_map(|tensor| match tensor {
                Tensor::Matrix(name, parts) => match config.fused.instead(parts) {
                    Some(parts) => in_parts(parts),
                    None => parts.contains(&self).then_some(*name),
                },
                Tensor::Experts(name, other) if *other == self => Some(*name),
                _ => None,
            })
    }
}

impl Family {
    /// What families have in common, to be completed.
    const PLAIN: Self = Self {
        name: "",
        architecture: Architecture::Llama,
        layer: &[],
        output_norm: "output_norm.weight",
        embedding_norm: None,
        beside: Beside::Nothing,
        norm: Norm::Rms,
        rope_pairing: RopePairing::Halves,
        qk_norm: QkNorm::None,
        activation: Activation::Silu,
        keys: &[],
        adjust: |_, _| Ok(()),
    };

    /// Whether layers have this norm.
    fn has(&self, norm: Vector) -> bool {
        let is_it = |tensor: &Tensor| matches!(tensor, Tensor::Vector(_, other) if *other == norm);
        self.layer.iter().any(is_it)
    }

    /// The matrix, or the first of several, in the tensor `blk.N.NAME.weight`, and whether every expert
    /// has one.
    fn matrix(&self, name: &str) -> Option<(Site, bool)> {
        self.layer.iter().find_map(|tensor| match tensor {
            Tensor::Matrix(other, parts) if *other == name => Some((parts[0], false)),
            Tensor::Experts(other, matrix) if *other == name => Some((*matrix, true)),
            _ => None,
        })
    }

    /// Whether layers have experts.
    fn has_experts(&self) -> bool {
        let is_it = |tensor: &Tensor| matches!(tensor, Tensor::Experts(..));
        self.layer.iter().any(is_it)
    }

    /// Whether a gate multiplies what enters the feed-forward network's inside.
    fn is_gated(&self) -> bool {
        self.layer.iter().any(|tensor| match tensor {
            Tensor::Matrix(_, parts) => parts.contains(&Site::FfnGate),
            Tensor::Experts(_, matrix) => *matrix == Site::FfnGate,
            _ => false,
        })
    }

    /// The layers' norm that ends in the output norm, if the output norm has no name of its own.
    pub(super) fn output_norm_of_layer(&self) -> Option<&'static str> {
        self.layer.iter().find_map(|tensor| match tensor {
            Tensor::OutputNormBefore(_, name, _) => Some(*name),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_has_one_family() {
        for architecture in Architecture::ALL {
            assert_eq!(architecture.family().name, architecture.name());
        }
        assert_eq!(Architecture::ALL.len(), FAMILIES.len());
    }

    #[test]
    fn tables_name_every_part_at_most_once() {
        for family in FAMILIES {
            let mut seen = [0; Site::IN_LAYER.len()];
            for tensor in family.layer {
                match tensor {
                    Tensor::Matrix(_, parts) => parts.iter().for_each(|p| seen[*p as usize] += 1),
                    Tensor::Experts(_, matrix) => seen[*matrix as usize] += 1,
                    _ => {}
                }
            }
            assert!(seen.iter().all(|&n| n <= 1), "{:?}", family.architecture);
            for site in [Site::AttnQ, Site::AttnOutput, Site::FfnUp, Site::FfnDown] {
                assert_eq!(seen[site as usize], 1, "{:?}", family.architecture);
            }
            let has_router = seen[Site::FfnGateInp as usize] == 1;
            assert_eq!(has_router, family.has_experts());
            let mut seen = [0; Vector::COUNT];
            for tensor in family.layer {
                if let Tensor::Vector(_, norm)
                | Tensor::VectorBehindFirst(_, norm)
                | Tensor::LayerNorm(_, norm)
                | Tensor::OutputNormBefore(_, _, norm) = tensor
                {
                    seen[*norm as usize] += 1;
                }
            }
            assert!(seen.iter().all(|&n| n <= 1), "{}", family.name);
            let count = |vector: Vector| seen[vector as usize];
            assert_eq!(count(Vector::QueryNorm), count(Vector::KeyNorm));
            assert_eq!(count(Vector::MixerPostNorm), count(Vector::ChannelPostNorm));
            let has_qk_norm = count(Vector::QueryNorm) == 1;
            assert_eq!(
                has_qk_norm,
                family.qk_norm != QkNorm::None,
                "{}",
                family.name
            );
        }
    }
}
