//! Model families: for each, a table of tensor names and options, in a file of its own.
//!
//! To add one: a file with its [`Family`], a variant of [`Architecture`], a line in [`FAMILIES`].
//! Loader, forward pass, packed files and quantisation all follow from the table.

mod bert;
mod experts;
mod gemma;
mod keys;
mod llama;
mod phi3;
mod qwen;

pub(in crate::model) use gemma::is_listed;
pub(in crate::model) use keys::Keys;

use super::config::{Activation, ModelConfig, QkNorm};
use super::error::ModelError;
use crate::kernels::table::RopePairing;

/// Names of the tensors outside of layers.
pub(super) const TOKEN_EMBD: &str = "token_embd.weight";
pub(super) const OUTPUT: &str = "output.weight";
/// Embeddings of positions and token types, of encoders.
pub(super) const POSITION_EMBD: &str = "position_embd.weight";
pub(super) const TOKEN_TYPES: &str = "token_types";
pub(super) const OUTPUT_NORM: &str = "output_norm.weight";
/// Optional divisors of the rotary frequencies, (n_rot / 2) f32: for any context (Llama 3), or
/// one set up to the original context and one beyond it (longrope).
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";
pub(super) const ROPE_FACTORS_SHORT: &str = "rope_factors_short.weight";
pub(super) const ROPE_FACTORS_LONG: &str = "rope_factors_long.weight";

/// Architectures that this build runs, by `general.architecture`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// `llama`: RMSNorm, rotary embedding of adjacent pairs, grouped-query attention, SwiGLU.
    Llama,
    /// `qwen2`: halves rotate together; biases of Q, K and V.
    Qwen2,
    /// `qwen3`: a norm of every query and key head.
    Qwen3,
    /// `phi3` (Phi-3, Phi-3.5, Phi-4): Q, K and V are one tensor, gate and up another.
    Phi3,
    /// `gemma2`: norms behind attention and feed-forward too, GeGLU, soft caps, every other layer
    /// with a sliding window.
    Gemma2,
    /// `gemma3`: as gemma2 with norms of query and key heads instead of caps, and another rotary
    /// base in layers with a window.
    Gemma3,
    /// `llama` with experts: the router's weights of the chosen ones add up to 1.
    Mixtral,
    /// `olmoe`: norms over whole queries and keys, experts with the router's weights.
    Olmoe,
    /// `qwen3moe`: qwen3 with experts, weights as in Mixtral.
    Qwen3Moe,
    /// `bert`: an encoder. Attention over the whole text, layer norms behind residual sums.
    Bert,
}

impl Architecture {
    /// Its name, as `general.architecture` spells it.
    pub fn name(self) -> &'static str {
        self.family().name
    }

    pub(super) fn family(self) -> &'static Family {
        let family = FAMILIES.iter().find(|family| family.architecture == self);
        family.expect("every variant has its family in the list")
    }
}

/// All families of this build.
pub(super) static FAMILIES: [&Family; 10] = [
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
];

/// What makes a family: where its layers' weights are, and how they are used.
#[derive(Debug)]
pub(super) struct Family {
    /// `general.architecture`, and the prefix of its metadata keys.
    pub(super) name: &'static str,
    pub(super) architecture: Architecture,
    /// The tensors of a layer.
    pub(super) layer: &'static [Tensor],
    /// Which dimensions rotate together.
    pub(super) rope_pairing: RopePairing,
    /// What the norms of queries and keys span, where the table has such norms.
    pub(super) qk_norm: QkNorm,
    /// What the gate of the feed-forward network goes through.
    pub(super) activation: Activation,
    /// Reads what the family alone has, into a configuration with everything else.
    pub(super) adjust: fn(&Keys<'_, '_>, &mut ModelConfig) -> Result<(), ModelError>,
}

/// A tensor of a layer, `blk.N.NAME`.
#[derive(Debug)]
pub(super) enum Tensor {
    /// `NAME.weight`, f32: the weights of a norm.
    Norm(&'static str, Norm),
    /// `NAME.weight`, and `NAME.bias` if the file has it. Several matrices are one tensor's rows,
    /// in that order. Files may hold Q, K and V, and gate and up, the other way ([`Fused`]).
    Matrix(&'static str, &'static [Matrix]),
    /// `NAME.weight` of three dimensions: the matrix of every expert, one after the other.
    Experts(&'static str, Matrix),
    /// `NAME.weight` and `NAME.bias`, f32: a layer norm.
    LayerNorm(&'static str, Norm),
    /// A layer norm that files count to the layer before (the second name); the first layer's is
    /// outside of layers (the first name). The last layer's is the model's output norm.
    OutputNormBefore(&'static str, &'static str, Norm),
}

/// The norms that a layer may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norm {
    /// Before attention, (n_embd).
    Attn,
    /// Of queries: (head_dim_k) or (n_head * head_dim_k).
    Query,
    /// Of keys: (head_dim_k) or (n_head_kv * head_dim_k).
    Key,
    /// Of what attention adds, (n_embd).
    AttnPost,
    /// Before the feed-forward network, (n_embd).
    Ffn,
    /// Of what the feed-forward network adds, (n_embd).
    FfnPost,
}

impl Norm {
    pub(super) const COUNT: usize = Self::FfnPost as usize + 1;

    /// Weights in it.
    pub(super) const fn len(self, c: &ModelConfig) -> usize {
        match (self, c.qk_norm) {
            (Self::Query, QkNorm::Row) => c.n_head * c.head_dim_k,
            (Self::Key, QkNorm::Row) => c.n_head_kv * c.head_dim_k,
            (Self::Query | Self::Key, _) => c.head_dim_k,
            (Self::Attn | Self::AttnPost | Self::Ffn | Self::FfnPost, _) => c.n_embd,
        }
    }
}

/// The matrices that a layer may have, by (rows, columns); every row is one output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matrix {
    /// (n_head * head_dim_k, n_embd)
    AttnQ,
    /// (n_head_kv * head_dim_k, n_embd)
    AttnK,
    /// (n_head_kv * head_dim_v, n_embd)
    AttnV,
    /// (n_embd, n_head * head_dim_v)
    AttnOutput,
    /// (n_ff, n_embd)
    FfnGate,
    /// (n_ff, n_embd)
    FfnUp,
    /// (n_embd, n_ff)
    FfnDown,
    /// The router, (n_expert, n_embd). Where there is one, the three above are of one expert.
    FfnGateInp,
}

impl Matrix {
    pub(super) const COUNT: usize = Self::FfnGateInp as usize + 1;

    /// Rows and columns.
    pub(super) const fn shape(self, c: &ModelConfig) -> [usize; 2] {
        match self {
            Self::AttnQ => [c.n_head * c.head_dim_k, c.n_embd],
            Self::AttnK => [c.n_head_kv * c.head_dim_k, c.n_embd],
            Self::AttnV => [c.n_head_kv * c.head_dim_v, c.n_embd],
            Self::AttnOutput => [c.n_embd, c.n_embd_attention()],
            Self::FfnGate | Self::FfnUp => [c.n_ff, c.n_embd],
            Self::FfnDown => [c.n_embd, c.n_ff],
            Self::FfnGateInp => [c.n_expert, c.n_embd],
        }
    }
}

/// Which matrices a file holds as the rows of one tensor. Converters differ: most families have files
/// of both kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fused {
    /// Q, K and V are `attn_qkv`.
    pub qkv: bool,
    /// Gate and up are `ffn_up`.
    pub gate_up: bool,
}

impl Fused {
    /// As the first layer of the file has it; where nothing is there, as the family's table.
    pub(super) fn of(family: &Family, keys: &Keys<'_, '_>, n_ff: usize) -> Self {
        let gguf = keys.gguf();
        let has = |name: &str| gguf.tensor(name).is_some();
        let is_fused = |matrix: Matrix| {
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
                || is_fused(Matrix::AttnQ) && !has("blk.0.attn_q.weight"),
            gate_up: is_dense && !has_gate && (is_double || is_fused(Matrix::FfnUp)),
        }
    }

    /// The tensors with the matrices of a table's entry; `None` is the entry as it stands.
    pub(super) const fn instead(self, parts: &[Matrix]) -> Option<Parts> {
        use Matrix::{AttnK, AttnQ, AttnV, FfnGate, FfnUp};
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
type Parts = &'static [(&'static str, &'static [Matrix])];

impl ModelConfig {
    /// The tensor of a layer that holds `matrix` in this model's file, such as `attn_q`.
    pub(crate) fn tensor_of(&self, matrix: Matrix) -> Option<&'static str> {
        let in_parts = |parts: Parts| {
            let found = parts.iter().find(|(_, parts)| parts.contains(&matrix))?;
            Some(found.0)
        };
        self.architecture
            .family()
            .layer
            .iter()
            .find_map(|tensor| match tensor {
                Tensor::Matrix(name, parts) => match self.fused.instead(parts) {
                    Some(parts) => in_parts(parts),
                    None => parts.contains(&matrix).then_some(*name),
                },
                Tensor::Experts(name, other) if *other == matrix => Some(*name),
                _ => None,
            })
    }
}

impl Family {
    /// Whether layers have this norm.
    pub(super) fn has(&self, norm: Norm) -> bool {
        let is_it = |tensor: &Tensor| matches!(tensor, Tensor::Norm(_, other) if *other == norm);
        self.layer.iter().any(is_it)
    }

    /// The matrix, or the first of several, in the tensor `blk.N.NAME.weight`, and whether every expert
    /// has one.
    pub(super) fn matrix(&self, name: &str) -> Option<(Matrix, bool)> {
        self.layer.iter().find_map(|tensor| match tensor {
            Tensor::Matrix(other, parts) if *other == name => Some((parts[0], false)),
            Tensor::Experts(other, matrix) if *other == name => Some((*matrix, true)),
            _ => None,
        })
    }

    /// Whether layers have experts.
    pub(super) fn has_experts(&self) -> bool {
        let is_it = |tensor: &Tensor| matches!(tensor, Tensor::Experts(..));
        self.layer.iter().any(is_it)
    }

    /// Whether a gate multiplies what enters the feed-forward network's inside.
    pub(super) fn is_gated(&self) -> bool {
        self.layer.iter().any(|tensor| match tensor {
            Tensor::Matrix(_, parts) => parts.contains(&Matrix::FfnGate),
            Tensor::Experts(_, matrix) => *matrix == Matrix::FfnGate,
            _ => false,
        })
    }

    /// Whether norms are layer norms.
    pub(super) fn has_layer_norms(&self) -> bool {
        let is_it = |tensor: &Tensor| matches!(tensor, Tensor::LayerNorm(..));
        self.layer.iter().any(is_it)
    }

    /// Whether positions have embeddings, and tokens a type.
    pub(super) fn has_learned_positions(&self) -> bool {
        self.architecture == Architecture::Bert
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
    fn tables_name_every_part_once() {
        for family in FAMILIES {
            assert_eq!(family.architecture.family().name, family.name);
            let mut seen = [0; Matrix::COUNT];
            for tensor in family.layer {
                match tensor {
                    Tensor::Matrix(_, parts) => parts.iter().for_each(|p| seen[*p as usize] += 1),
                    Tensor::Experts(_, matrix) => seen[*matrix as usize] += 1,
                    _ => {}
                }
            }
            let mut expected = [1; Matrix::COUNT];
            expected[Matrix::FfnGateInp as usize] = i32::from(family.has_experts());
            expected[Matrix::FfnGate as usize] = i32::from(family.is_gated());
            assert_eq!(seen, expected, "{:?}", family.architecture);
            let mut seen = [0; Norm::COUNT];
            for tensor in family.layer {
                if let Tensor::Norm(_, norm)
                | Tensor::LayerNorm(_, norm)
                | Tensor::OutputNormBefore(_, _, norm) = tensor
                {
                    seen[*norm as usize] += 1;
                }
            }
            assert!(seen.iter().all(|&n| n <= 1), "{}", family.name);
            assert_eq!(seen[Norm::Query as usize], seen[Norm::Key as usize]);
            assert_eq!(seen[Norm::AttnPost as usize], seen[Norm::FfnPost as usize]);
            let has_qk_norm = seen[Norm::Query as usize] == 1;
            assert_eq!(
                has_qk_norm,
                family.qk_norm != QkNorm::None,
                "{}",
                family.name
            );
        }
    }
}
