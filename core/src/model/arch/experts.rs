//! Mixtures of experts: Mixtral (a `llama` file with experts), `olmoe` (norms over whole queries
//! and keys, weights as the router gives them) and `qwen3moe` (a norm of every query and key head,
//! weights that add up to 1). Every layer has experts, and nothing beside them.

use super::{Architecture, Family, Keys, Matrix as M, Norm, Tensor};
use crate::kernels::table::RopePairing;
use crate::model::config::{Activation, ModelConfig, QkNorm};
use crate::model::error::ModelError;

pub(super) static MIXTRAL: Family = Family {
    name: "llama",
    architecture: Architecture::Mixtral,
    layer: &[
        Tensor::Norm("attn_norm", Norm::Attn),
        Tensor::Matrix("attn_q", &[M::AttnQ]),
        Tensor::Matrix("attn_k", &[M::AttnK]),
        Tensor::Matrix("attn_v", &[M::AttnV]),
        Tensor::Matrix("attn_output", &[M::AttnOutput]),
        Tensor::Norm("ffn_norm", Norm::Ffn),
        Tensor::Matrix("ffn_gate_inp", &[M::FfnGateInp]),
        Tensor::Experts("ffn_gate_exps", M::FfnGate),
        Tensor::Experts("ffn_up_exps", M::FfnUp),
        Tensor::Experts("ffn_down_exps", M::FfnDown),
    ],
    rope_pairing: RopePairing::Interleaved,
    qk_norm: QkNorm::None,
    activation: Activation::Silu,
    adjust: |keys, c| {
        c.expert_weights_norm = true;
        read_counts(keys, c)
    },
};

pub(super) static OLMOE: Family = Family {
    name: "olmoe",
    architecture: Architecture::Olmoe,
    layer: LAYER_WITH_QK_NORMS,
    rope_pairing: RopePairing::Halves,
    qk_norm: QkNorm::Row,
    activation: Activation::Silu,
    adjust: read_counts,
};

pub(super) static QWEN3MOE: Family = Family {
    name: "qwen3moe",
    architecture: Architecture::Qwen3Moe,
    layer: LAYER_WITH_QK_NORMS,
    rope_pairing: RopePairing::Halves,
    qk_norm: QkNorm::Head,
    activation: Activation::Silu,
    adjust: |keys, c| {
        const N_FF: &str = "expert_feed_forward_length";
        c.expert_weights_norm = true;
        read_counts(keys, c)?;
        // As in llama.cpp: without a width of their own, experts share that of the layer.
        c.n_ff = keys.size_or(N_FF, c.n_ff / c.n_expert_used.max(1))?;
        Ok(())
    },
};

const LAYER_WITH_QK_NORMS: &[Tensor] = &[
    Tensor::Norm("attn_norm", Norm::Attn),
    Tensor::Matrix("attn_q", &[M::AttnQ]),
    Tensor::Matrix("attn_k", &[M::AttnK]),
    Tensor::Matrix("attn_v", &[M::AttnV]),
    Tensor::Norm("attn_q_norm", Norm::Query),
    Tensor::Norm("attn_k_norm", Norm::Key),
    Tensor::Matrix("attn_output", &[M::AttnOutput]),
    Tensor::Norm("ffn_norm", Norm::Ffn),
    Tensor::Matrix("ffn_gate_inp", &[M::FfnGateInp]),
    Tensor::Experts("ffn_gate_exps", M::FfnGate),
    Tensor::Experts("ffn_up_exps", M::FfnUp),
    Tensor::Experts("ffn_down_exps", M::FfnDown),
];

fn read_counts(keys: &Keys<'_, '_>, c: &mut ModelConfig) -> Result<(), ModelError> {
    c.n_expert = keys.size("expert_count")?;
    c.n_expert_used = keys.size("expert_used_count")?;
    if c.n_expert == 0 {
        return Err(keys.refuse("expert_count", 0.0, "1 to 1024"));
    }
    Ok(())
}
