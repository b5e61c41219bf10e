//! `phi3` (Phi-3, Phi-3.5, Phi-4): Q, K and V are the rows of one tensor, gate and up the rows of
//! another. Long-context models have two sets of rotary divisors (longrope). A window is in every layer.

use super::draft::WINDOW_KEYS;
use super::{Family, Site as S, Tensor, Vector as V};

pub(super) static PHI3: Family = Family {
    name: "phi3",
    layer: &[&[
        Tensor::Vector("attn_norm", V::MixerNorm),
        Tensor::Matrix("attn_qkv", &[S::AttnQ, S::AttnK, S::AttnV]),
        Tensor::Matrix("attn_output", &[S::AttnOutput]),
        Tensor::Vector("ffn_norm", V::ChannelNorm),
        Tensor::Matrix("ffn_up", &[S::FfnGate, S::FfnUp]),
        Tensor::Matrix("ffn_down", &[S::FfnDown]),
    ]],
    keys: WINDOW_KEYS,
    adjust: |keys, draft| draft.read_windows(keys),
    ..Family::PLAIN
};
