//! Mixtures of experts: Mixtral (a `llama` file with experts), `olmoe` (norms over whole queries
//! and keys, weights as the router gives them) and `qwen3moe` (a norm of every query and key head,
//! weights that add up to 1). Every layer has experts, and nothing beside them.

use super::draft::{Draft, optional_size};
use super::{Architecture, Family, Keys, Site as S, Tensor, Vector as V};
use crate::kernels::table::RopePairing;
use crate::model::error::ModelError;
use crate::model::kind::Channel;
use crate::model::shape::{Experts, QkNorm, RouterWeights};

pub(super) static MIXTRAL: Family = Family {
    name: "llama",
    architecture: Architecture::Mixtral,
    layer: &[
        Tensor::Vector("attn_norm", V::MixerNorm),
        Tensor::Matrix("attn_q", &[S::AttnQ]),
        Tensor::Matrix("attn_k", &[S::AttnK]),
        Tensor::Matrix("attn_v", &[S::AttnV]),
        Tensor::Matrix("attn_output", &[S::AttnOutput]),
        Tensor::Vector("ffn_norm", V::ChannelNorm),
        Tensor::Matrix("ffn_gate_inp", &[S::FfnGateInp]),
        Tensor::Experts("ffn_gate_exps", S::FfnGate),
        Tensor::Experts("ffn_up_exps", S::FfnUp),
        Tensor::Experts("ffn_down_exps", S::FfnDown),
    ],
    rope_pairing: RopePairing::Interleaved,
    adjust: |keys, draft| read_experts(keys, draft, RouterWeights::SoftmaxNormalized, None),
    ..Family::PLAIN
};

pub(super) static OLMOE: Family = Family {
    name: "olmoe",
    architecture: Architecture::Olmoe,
    layer: LAYER_WITH_QK_NORMS,
    qk_norm: QkNorm::Row,
    adjust: |keys, draft| read_experts(keys, draft, RouterWeights::Softmax, None),
    ..Family::PLAIN
};

pub(super) static QWEN3MOE: Family = Family {
    name: "qwen3moe",
    architecture: Architecture::Qwen3Moe,
    layer: LAYER_WITH_QK_NORMS,
    qk_norm: QkNorm::Head,
    keys: &["expert_feed_forward_length"],
    adjust: |keys, draft| {
        let n_ff = optional_size(keys, "expert_feed_forward_length")?;
        // As in llama.cpp: without a width of their own, experts share that of the layer.
        let n_used = keys.size("expert_used_count")?.max(1);
        let n_ff = n_ff.unwrap_or(draft.n_ff.of(0) / n_used);
        read_experts(keys, draft, RouterWeights::SoftmaxNormalized, Some(n_ff))
    },
    ..Family::PLAIN
};

const LAYER_WITH_QK_NORMS: &[Tensor] = &[
    Tensor::Vector("attn_norm", V::MixerNorm),
    Tensor::Matrix("attn_q", &[S::AttnQ]),
    Tensor::Matrix("attn_k", &[S::AttnK]),
    Tensor::Matrix("attn_v", &[S::AttnV]),
    Tensor::Vector("attn_q_norm", V::QueryNorm),
    Tensor::Vector("attn_k_norm", V::KeyNorm),
    Tensor::Matrix("attn_output", &[S::AttnOutput]),
    Tensor::Vector("ffn_norm", V::ChannelNorm),
    Tensor::Matrix("ffn_gate_inp", &[S::FfnGateInp]),
    Tensor::Experts("ffn_gate_exps", S::FfnGate),
    Tensor::Experts("ffn_up_exps", S::FfnUp),
    Tensor::Experts("ffn_down_exps", S::FfnDown),
];

/// Gives all layers experts, of `n_ff` neurons or as many as a layer has.
pub(super) fn read_experts(
    keys: &Keys<'_, '_>,
    draft: &mut Draft<'_>,
    weights: RouterWeights,
    n_ff: Option<usize>,
) -> Result<(), ModelError> {
    let n_expert = keys.size("expert_count")?;
    if n_expert == 0 {
        return Err(keys.refuse("expert_count", 0.0, "1 to 1024"));
    }
    let Channel::Ffn(ffn) = draft.channel else {
        unreachable!("a draft begins with feed-forward networks");
    };
    draft.channel = Channel::Experts(Experts {
        n_ff: n_ff.unwrap_or(ffn.n_ff),
        n_expert,
        n_expert_used: keys.size("expert_used_count")?,
        weights,
        activation: ffn.activation,
    });
    Ok(())
}
