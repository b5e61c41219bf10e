//! The `llama` family (Llama 1–3, TinyLlama, SmolLM and many more), as llama.cpp writes it:
//! Q and K rows are permuted so that rotary pairs are adjacent.

use super::{Architecture, Family, Site as S, Tensor, Vector as V};
use crate::kernels::table::RopePairing;

pub(super) static LLAMA: Family = Family {
    name: "llama",
    architecture: Architecture::Llama,
    layer: LAYER,
    rope_pairing: RopePairing::Interleaved,
    ..Family::PLAIN
};

/// The tensors of a plain decoder layer.
pub(super) const LAYER: &[Tensor] = &[
    Tensor::Vector("attn_norm", V::MixerNorm),
    Tensor::Matrix("attn_q", &[S::AttnQ]),
    Tensor::Matrix("attn_k", &[S::AttnK]),
    Tensor::Matrix("attn_v", &[S::AttnV]),
    Tensor::Matrix("attn_output", &[S::AttnOutput]),
    Tensor::Vector("ffn_norm", V::ChannelNorm),
    Tensor::Matrix("ffn_gate", &[S::FfnGate]),
    Tensor::Matrix("ffn_up", &[S::FfnUp]),
    Tensor::Matrix("ffn_down", &[S::FfnDown]),
];
