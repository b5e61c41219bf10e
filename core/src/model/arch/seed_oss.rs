//! `seed_oss`: llama with biases of queries, keys and values; halves of a head rotate together.
//!
//! `post_attention_norm` is the norm before the feed-forward network. Source: llama.cpp, `src/models/seed-oss.cpp`.

use super::{Family, Tensor, Vector as V, layers};

pub(super) static SEED_OSS: Family = Family {
    name: "seed_oss",
    layer: &[
        layers::ATTENTION,
        &[Tensor::Vector("post_attention_norm", V::ChannelNorm)],
        layers::NETWORK,
    ],
    ..Family::PLAIN
};
