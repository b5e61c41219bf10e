//! `glm4` (GLM-4 9B and 32B: norms before and after attention and feed-forward network) and `glm4moe` (GLM-4.5 to
//! 4.7: experts by sigmoid scores with a bias, one shared expert). Part of each head is rotated.
//!
//! In glm4moe `post_attention_norm` is the norm before the channel. Source: llama.cpp, `src/models/glm4.cpp`,
//! `glm4-moe.cpp`.

use super::draft::Draft;
use super::experts::{
    n_ff_of_experts, read_expert_layers, read_experts, read_router, share_expert,
};
use super::{Family, Keys, Site as S, Tensor, Vector as V, layers};
use crate::kernels::table::RopePairing;
use crate::kernels::words;
use crate::model::error::ModelError;
use crate::model::shape::{QkNorm, Router, RouterScore};

pub(super) static GLM4: Family = Family {
    name: "glm4",
    layer: &[
        layers::ATTENTION,
        &[
            Tensor::Vector("post_attention_norm", V::MixerPostNorm),
            Tensor::Vector("ffn_norm", V::ChannelNorm),
            Tensor::Matrix("ffn_up", &[S::FfnGate, S::FfnUp]),
            Tensor::Matrix("ffn_down", &[S::FfnDown]),
            Tensor::Vector("post_ffw_norm", V::ChannelPostNorm),
        ],
    ],
    rope_pairing: RopePairing::Interleaved,
    ..Family::PLAIN
};

pub(super) static GLM4_MOE: Family = Family {
    name: "glm4moe",
    layer: &[
        layers::ATTENTION_QK,
        &[Tensor::Vector("post_attention_norm", V::ChannelNorm)],
        layers::NETWORK,
        layers::ROUTED,
        layers::SHARED,
    ],
    qk_norm: QkNorm::Head,
    has_next_token: true,
    keys: words!(
        "expert_feed_forward_length expert_gating_func expert_group_count expert_group_used_count \
         expert_shared_count expert_weights_norm expert_weights_scale leading_dense_block_count"
    ),
    adjust,
    ..Family::PLAIN
};

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    let default = Router {
        score: RouterScore::Sigmoid,
        has_bias: true,
        ..Router::SOFTMAX
    };
    let n_ff = n_ff_of_experts(keys, draft, None)?;
    read_experts(keys, draft, read_router(keys, default)?, Some(n_ff))?;
    read_expert_layers(keys, draft)?;
    let n_shared = keys.size_or("expert_shared_count", 0)?;
    share_expert(draft, n_ff.saturating_mul(n_shared), false);
    // The larger models have norms of queries and keys.
    draft.qk_norm_if_there(keys);
    Ok(())
}
