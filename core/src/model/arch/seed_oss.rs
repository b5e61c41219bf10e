//! `seed_oss`: llama with biases of queries, keys and values; halves of a head rotate together.
//!
//! `post_attention_norm` is the norm before the feed-forward network. Source: llama.cpp, `src/models/seed-oss.cpp`.

use super::{Architecture, Family, Site as S, Tensor, Vector as V};

pub(super) static SEED_OSS: Family = Family {
    name: "seed_oss",
    architecture: Architecture::SeedOss,
    layer: &[
        Tensor::Vector("attn_norm", V::MixerNorm),
        Tensor::Matrix("attn_q", &[S::AttnQ]),
        Tensor::Matrix("attn_k", &[S::AttnK]),
        Tensor::Matrix("attn_v", &[S::AttnV]),
        Tensor::Matrix("attn_output", &[S::AttnOutput]),
        Tensor::Vector("post_attention_norm", V::ChannelNorm),
        Tensor::Matrix("ffn_gate", &[S::FfnGate]),
        Tensor::Matrix("ffn_up", &[S::FfnUp]),
        Tensor::Matrix("ffn_down", &[S::FfnDown]),
    ],
    ..Family::PLAIN
};
