//! Tables of tensors that several families share. A layer uses the entries that its kind needs.

use super::{Site as S, Tensor, Vector as V};

/// A decoder layer: attention, then a gated feed-forward network.
pub(super) const DENSE: &[&[Tensor]] = &[ATTENTION, FFN];

/// A decoder layer with norms of queries and keys.
pub(super) const DENSE_QK: &[&[Tensor]] = &[ATTENTION_QK, FFN];

/// Attention, then a feed-forward network or experts, with or without a shared expert.
pub(super) const EXPERTS: &[&[Tensor]] = &[ATTENTION, FFN, ROUTED, SHARED];

/// Attention with norms of queries and keys, then a feed-forward network or experts, with or without a shared expert.
pub(super) const EXPERTS_QK: &[&[Tensor]] = &[ATTENTION_QK, FFN, ROUTED, SHARED];

/// Norms of queries and keys, and norms after attention and feed-forward network instead of before them.
pub(super) const POST_NORMS_QK: &[&[Tensor]] = &[
    QKV,
    &[
        Tensor::Vector("attn_q_norm", V::QueryNorm),
        Tensor::Vector("attn_k_norm", V::KeyNorm),
        Tensor::Matrix("attn_output", &[S::AttnOutput]),
        Tensor::Vector("post_attention_norm", V::MixerPostNorm),
    ],
    NETWORK,
    &[Tensor::Vector("post_ffw_norm", V::ChannelPostNorm)],
];

/// A norm, then attention.
pub(super) const ATTENTION: &[Tensor] = &[
    Tensor::Vector("attn_norm", V::MixerNorm),
    Tensor::Matrix("attn_q", &[S::AttnQ]),
    Tensor::Matrix("attn_k", &[S::AttnK]),
    Tensor::Matrix("attn_v", &[S::AttnV]),
    Tensor::Matrix("attn_output", &[S::AttnOutput]),
];

/// A norm, then attention with norms of queries and keys.
pub(super) const ATTENTION_QK: &[Tensor] = &[
    Tensor::Vector("attn_norm", V::MixerNorm),
    Tensor::Matrix("attn_q", &[S::AttnQ]),
    Tensor::Matrix("attn_k", &[S::AttnK]),
    Tensor::Matrix("attn_v", &[S::AttnV]),
    Tensor::Vector("attn_q_norm", V::QueryNorm),
    Tensor::Vector("attn_k_norm", V::KeyNorm),
    Tensor::Matrix("attn_output", &[S::AttnOutput]),
];

/// Queries, keys and values.
pub(super) const QKV: &[Tensor] = &[
    Tensor::Matrix("attn_q", &[S::AttnQ]),
    Tensor::Matrix("attn_k", &[S::AttnK]),
    Tensor::Matrix("attn_v", &[S::AttnV]),
];

/// A layer norm for every head of queries and keys.
pub(super) const HEAD_LAYER_NORMS: &[Tensor] = &[
    Tensor::LayerNorm("attn_q_norm", V::QueryNorm),
    Tensor::LayerNorm("attn_k_norm", V::KeyNorm),
];

/// A norm, then a gated feed-forward network.
pub(super) const FFN: &[Tensor] = &[
    Tensor::Vector("ffn_norm", V::ChannelNorm),
    Tensor::Matrix("ffn_gate", &[S::FfnGate]),
    Tensor::Matrix("ffn_up", &[S::FfnUp]),
    Tensor::Matrix("ffn_down", &[S::FfnDown]),
];

/// A gated feed-forward network.
pub(super) const NETWORK: &[Tensor] = &[
    Tensor::Matrix("ffn_gate", &[S::FfnGate]),
    Tensor::Matrix("ffn_up", &[S::FfnUp]),
    Tensor::Matrix("ffn_down", &[S::FfnDown]),
];

/// Experts and their router.
pub(super) const ROUTED: &[Tensor] = &[
    Tensor::Matrix("ffn_gate_inp", &[S::FfnGateInp]),
    Tensor::Named("exp_probs_b.bias", V::ChoiceBias),
    Tensor::Experts("ffn_gate_exps", S::FfnGate),
    Tensor::Experts("ffn_up_exps", S::FfnUp),
    Tensor::Experts("ffn_down_exps", S::FfnDown),
];

/// The shared expert.
pub(super) const SHARED: &[Tensor] = &[
    Tensor::Matrix("ffn_gate_inp_shexp", &[S::FfnGateInpShexp]),
    Tensor::Matrix("ffn_gate_shexp", &[S::FfnGateShexp]),
    Tensor::Matrix("ffn_up_shexp", &[S::FfnUpShexp]),
    Tensor::Matrix("ffn_down_shexp", &[S::FfnDownShexp]),
];

/// The mixer of Mamba 2.
pub(super) const MAMBA2: &[Tensor] = &[
    Tensor::Matrix("ssm_in", &[S::SsmIn]),
    Tensor::Vector("ssm_conv1d", V::SsmConv),
    Tensor::Named("ssm_conv1d.bias", V::SsmConvBias),
    Tensor::Named("ssm_dt.bias", V::SsmDt),
    Tensor::Named("ssm_a", V::SsmA),
    Tensor::Named("ssm_d", V::SsmD),
    Tensor::Vector("ssm_norm", V::SsmNorm),
    Tensor::Matrix("ssm_out", &[S::SsmOut]),
];
