//! `gpt-oss`: attention sinks, every other layer with a window, experts with biases and clamped SwiGLU,
//! weights of experts by a softmax over the chosen ones.
//!
//! Whole heads are rotated. `post_attention_norm` is the norm before the experts. Source:
//! llama.cpp, `src/models/openai-moe.cpp`.

use super::draft::{Draft, Pattern};
use super::experts::read_experts;
use super::keys::Keys;
use super::read::YARN_TRUNCATE;
use super::{Family, Site as S, Tensor, Vector as V, layers};
use crate::model::activation::Activation;
use crate::model::error::ModelError;
use crate::model::shape::{Router, RouterScore};

pub(super) static GPT_OSS: Family = Family {
    name: "gpt-oss",
    layer: &[
        &[Tensor::Vector("attn_norm", V::MixerNorm)],
        layers::QKV,
        &[
            Tensor::Vector("attn_sinks", V::Sinks),
            Tensor::Matrix("attn_output", &[S::AttnOutput]),
            Tensor::Vector("post_attention_norm", V::ChannelNorm),
        ],
        layers::ROUTED,
    ],
    activation: Activation::SwigluClamped {
        alpha: 1.702,
        limit: 7.0,
    },
    keys: &[
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "expert_feed_forward_length",
        "rope.freq_base_swa",
    ],
    adjust,
    ..Family::PLAIN
};

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    let n_ff = keys.size("expert_feed_forward_length")?;
    let router = Router {
        score: RouterScore::SoftmaxOfChosen,
        ..Router::SOFTMAX
    };
    read_experts(keys, draft, router, Some(n_ff))?;
    // All published models say `truncate: false`, for which GGUF has no key of its own.
    draft.config.rope_scaling.yarn.truncates = keys.bool_or(YARN_TRUNCATE, false)?;
    let n_rot = keys.size("rope.dimension_count")?;
    for key in ["attention.key_length", "attention.value_length"] {
        let len = keys.size_or(key, n_rot)?;
        if len != n_rot {
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            return Err(keys.refuse(key, len as f64, "rope.dimension_count"));
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "heads are at most 2^24 long")]
    let scale = 1.0 / crate::kernels::contract::sqrt(n_rot as f32);
    let attention = &mut draft.attention;
    (attention.head_dim_k, attention.head_dim_v) = (n_rot, n_rot);
    (attention.scale, attention.has_sink) = (scale, true);
    draft.window = keys.size("attention.sliding_window")?;
    draft.windows = Pattern::read(keys, 2, draft.n_block)?;
    draft.window_rope = super::gemma::window_rope(keys, draft, true)?;
    Ok(())
}
