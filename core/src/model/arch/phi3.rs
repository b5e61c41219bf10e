//! `phi3` (Phi-3, Phi-3.5, Phi-4): Q, K and V are the rows of one tensor, gate and up those of
//! another. Long-context models have two sets of rotary divisors (longrope).
//!
//! `attention.sliding_window` is ignored, as llama.cpp does: files state windows that the models
//! were not trained with.

use super::{Architecture, Family, Matrix as M, Norm, Tensor};
use crate::kernels::table::RopePairing;
use crate::model::config::{Activation, QkNorm};

pub(super) static PHI3: Family = Family {
    name: "phi3",
    architecture: Architecture::Phi3,
    layer: &[
        Tensor::Norm("attn_norm", Norm::Attn),
        Tensor::Matrix("attn_qkv", &[M::AttnQ, M::AttnK, M::AttnV]),
        Tensor::Matrix("attn_output", &[M::AttnOutput]),
        Tensor::Norm("ffn_norm", Norm::Ffn),
        Tensor::Matrix("ffn_up", &[M::FfnGate, M::FfnUp]),
        Tensor::Matrix("ffn_down", &[M::FfnDown]),
    ],
    rope_pairing: RopePairing::Halves,
    qk_norm: QkNorm::None,
    activation: Activation::Silu,
    adjust: |_, _| Ok(()),
};
