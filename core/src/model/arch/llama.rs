//! The `llama` family (Llama 1–3, TinyLlama, SmolLM and many more), as llama.cpp writes it:
//! Q and K rows are permuted so that rotary pairs are adjacent.

use super::{Architecture, Family, Matrix as M, Norm, Tensor};
use crate::kernels::table::RopePairing;
use crate::model::config::{Activation, QkNorm};

pub(super) static LLAMA: Family = Family {
    name: "llama",
    architecture: Architecture::Llama,
    layer: LAYER,
    rope_pairing: RopePairing::Interleaved,
    qk_norm: QkNorm::None,
    activation: Activation::Silu,
    adjust: |_, _| Ok(()),
};

/// The tensors of a plain decoder layer.
pub(super) const LAYER: &[Tensor] = &[
    Tensor::Norm("attn_norm", Norm::Attn),
    Tensor::Matrix("attn_q", &[M::AttnQ]),
    Tensor::Matrix("attn_k", &[M::AttnK]),
    Tensor::Matrix("attn_v", &[M::AttnV]),
    Tensor::Matrix("attn_output", &[M::AttnOutput]),
    Tensor::Norm("ffn_norm", Norm::Ffn),
    Tensor::Matrix("ffn_gate", &[M::FfnGate]),
    Tensor::Matrix("ffn_up", &[M::FfnUp]),
    Tensor::Matrix("ffn_down", &[M::FfnDown]),
];
