//! `qwen2` (Qwen 2 and 2.5: biases of Q, K and V) and `qwen3` (a norm of every query and key
//! head instead). Halves of a head rotate together.

use super::{Architecture, Family, Site as S, Tensor, Vector as V, llama};
use crate::model::shape::QkNorm;

pub(super) static QWEN2: Family = Family {
    name: "qwen2",
    architecture: Architecture::Qwen2,
    layer: llama::LAYER,
    ..Family::PLAIN
};

pub(super) static QWEN3: Family = Family {
    name: "qwen3",
    architecture: Architecture::Qwen3,
    layer: &[
        Tensor::Vector("attn_norm", V::MixerNorm),
        Tensor::Matrix("attn_q", &[S::AttnQ]),
        Tensor::Matrix("attn_k", &[S::AttnK]),
        Tensor::Matrix("attn_v", &[S::AttnV]),
        Tensor::Vector("attn_q_norm", V::QueryNorm),
        Tensor::Vector("attn_k_norm", V::KeyNorm),
        Tensor::Matrix("attn_output", &[S::AttnOutput]),
        Tensor::Vector("ffn_norm", V::ChannelNorm),
        Tensor::Matrix("ffn_gate", &[S::FfnGate]),
        Tensor::Matrix("ffn_up", &[S::FfnUp]),
        Tensor::Matrix("ffn_down", &[S::FfnDown]),
    ],
    qk_norm: QkNorm::Head,
    ..Family::PLAIN
};
