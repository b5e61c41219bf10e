//! `qwen35` (Qwen3.5, Qwen3.6, Qwen3.8): gated delta nets, and attention in every fourth layer, whose query
//! heads have gates. `qwen35moe` has experts in every layer and a gated shared expert;
//! `qwen3next` (Qwen3-Next) is `qwen35moe` with a different order of heads.
//!
//! The norm before the feed-forward network is called `post_attention_norm`. Text has one position per token, so the
//! sections of the rotation make no difference. A block after the last layer, which predicts one more token, has
//! attention. Source: llama.cpp, `src/models/qwen35.cpp`, `qwen35moe.cpp`, `qwen3next.cpp`.

use super::draft::{Draft, Pattern};
use super::experts::{NORMALIZED, n_ff_of_experts, read_experts, share_expert};
use super::keys::Keys;
use super::{Family, Site as S, Tensor, Vector as V, layers};
use crate::kernels::words;
use crate::model::error::ModelError;
use crate::model::kind::Mixer;
use crate::model::shape::{DeltaKeys, DeltaNet, QkNorm};

pub(super) static QWEN35: Family = Family {
    name: "qwen35",
    layer: LAYER,
    qk_norm: QkNorm::Head,
    has_next_token: true,
    keys: KEYS,
    adjust: |keys, draft| adjust(keys, draft, DeltaKeys::Alternate),
    ..Family::PLAIN
};

pub(super) static QWEN35_MOE: Family = Family {
    name: "qwen35moe",
    layer: LAYER,
    qk_norm: QkNorm::Head,
    has_next_token: true,
    keys: KEYS,
    adjust: |keys, draft| {
        adjust(keys, draft, DeltaKeys::Alternate)?;
        adjust_experts(keys, draft)
    },
    ..Family::PLAIN
};

pub(super) static QWEN3_NEXT: Family = Family {
    name: "qwen3next",
    layer: LAYER,
    qk_norm: QkNorm::Head,
    has_next_token: true,
    keys: KEYS,
    adjust: |keys, draft| {
        adjust(keys, draft, DeltaKeys::Neighbours)?;
        adjust_experts(keys, draft)
    },
    ..Family::PLAIN
};

/// Attention or a delta net, then a feed-forward network or experts.
const LAYER: &[&[Tensor]] = &[
    layers::ATTENTION_QK,
    &[
        Tensor::Matrix("attn_qkv", &[S::SsmQkv]),
        Tensor::Matrix("ssm_in", &[S::SsmIn]),
        Tensor::Matrix("attn_gate", &[S::SsmGate]),
        Tensor::Matrix("ssm_beta", &[S::SsmBeta]),
        Tensor::Matrix("ssm_alpha", &[S::SsmAlpha]),
        Tensor::Matrix("ssm_ba", &[S::SsmBa]),
        Tensor::Vector("ssm_conv1d", V::SsmConv),
        Tensor::Named("ssm_dt.bias", V::SsmDt),
        Tensor::Named("ssm_a", V::SsmA),
        Tensor::Vector("ssm_norm", V::SsmNorm),
        Tensor::Matrix("ssm_out", &[S::SsmOut]),
        Tensor::Vector("post_attention_norm", V::ChannelNorm),
    ],
    layers::NETWORK,
    layers::ROUTED,
    layers::SHARED,
];

/// The settings that families with delta nets read.
pub(super) const KEYS: &[&str] = words!(
    "attention.recurrent_layers attention.scale expert_feed_forward_length \
     expert_shared_feed_forward_length full_attention_interval rope.dimension_sections \
     ssm.conv_kernel ssm.group_count ssm.inner_size ssm.state_size ssm.time_step_rank"
);

/// Delta nets with gated attention.
pub(super) fn adjust<'a>(
    keys: &Keys<'_, 'a>,
    draft: &mut Draft<'a>,
    heads: DeltaKeys,
) -> Result<(), ModelError> {
    draft.attention.has_gate = true;
    let scale = keys.f32_or("attention.scale", 0.0)?;
    if scale != 0.0 {
        draft.attention.scale = scale;
    }
    let n_head_v = keys.size("ssm.time_step_rank")?;
    let n_inner = keys.size("ssm.inner_size")?;
    if n_head_v == 0 || !n_inner.is_multiple_of(n_head_v) {
        #[expect(clippy::cast_precision_loss, reason = "for a message")]
        let n_inner = n_inner as f64;
        return Err(keys.refuse("ssm.inner_size", n_inner, "a multiple of time_step_rank"));
    }
    // Files of Qwen3-Next from before 2026.
    let is_joint = (keys.gguf().tensors()).any(|tensor| tensor.name.ends_with(".ssm_in.weight"));
    draft.instead = Some(Mixer::DeltaNet(DeltaNet {
        n_head_k: keys.size("ssm.group_count")?,
        n_head_v,
        head_dim_k: keys.size("ssm.state_size")?,
        head_dim_v: n_inner / n_head_v,
        n_taps: keys.size("ssm.conv_kernel")?,
        keys: heads,
        is_joint,
    }));
    let listed = Pattern::listed(keys, "attention.recurrent_layers", draft.n_block)?;
    draft.recurrent = match listed {
        Some(listed) => listed,
        None => match keys.size_or("full_attention_interval", 4)? {
            0 => return Err(keys.refuse("full_attention_interval", 0.0, "1 or more")),
            period => Pattern::Period(period),
        },
    };
    Ok(())
}

/// Experts in every layer, and a gated shared expert.
fn adjust_experts(keys: &Keys<'_, '_>, draft: &mut Draft<'_>) -> Result<(), ModelError> {
    let n_ff = n_ff_of_experts(keys, draft, None)?;
    read_experts(keys, draft, NORMALIZED, Some(n_ff))?;
    let n_ff = keys.size_or("expert_shared_feed_forward_length", n_ff)?;
    share_expert(draft, n_ff, true);
    Ok(())
}
