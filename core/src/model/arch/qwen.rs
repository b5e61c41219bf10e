//! `qwen2` (Qwen 2 and 2.5: biases of Q, K and V) and `qwen3` (a norm of every query and key
//! head instead). Halves of a head rotate together.

use super::{Architecture, Family, Matrix as M, Norm, Tensor, llama};
use crate::kernels::table::RopePairing;
use crate::model::config::{Activation, QkNorm};

pub(super) static QWEN2: Family = Family {
    name: "qwen2",
    architecture: Architecture::Qwen2,
    layer: llama::LAYER,
    rope_pairing: RopePairing::Halves,
    qk_norm: QkNorm::None,
    activation: Activation::Silu,
    adjust: |_, _| Ok(()),
};

pub(super) static QWEN3: Family = Family {
    name: "qwen3",
    architecture: Architecture::Qwen3,
    layer: &[
        Tensor::Norm("attn_norm", Norm::Attn),
        Tensor::Matrix("attn_q", &[M::AttnQ]),
        Tensor::Matrix("attn_k", &[M::AttnK]),
        Tensor::Matrix("attn_v", &[M::AttnV]),
        Tensor::Norm("attn_q_norm", Norm::Query),
        Tensor::Norm("attn_k_norm", Norm::Key),
        Tensor::Matrix("attn_output", &[M::AttnOutput]),
        Tensor::Norm("ffn_norm", Norm::Ffn),
        Tensor::Matrix("ffn_gate", &[M::FfnGate]),
        Tensor::Matrix("ffn_up", &[M::FfnUp]),
        Tensor::Matrix("ffn_down", &[M::FfnDown]),
    ],
    rope_pairing: RopePairing::Halves,
    qk_norm: QkNorm::Head,
    activation: Activation::Silu,
    adjust: |_, _| Ok(()),
};
