//! `qwen35` (Qwen3.5, Qwen3.6, Qwen3.8): gated delta nets, and attention in every fourth layer, whose query
//! heads have gates.
//!
//! The norm before the feed-forward network is called `post_attention_norm`. Text has one position, so that the
//! sections of the rotation make no difference. Blocks behind the last layer, which predict further tokens, are
//! not run. Source: llama.cpp, `src/models/qwen35.cpp`.

use super::draft::{Draft, Pattern};
use super::keys::Keys;
use super::{Architecture, Family, Site as S, Tensor, Vector as V};
use crate::model::error::ModelError;
use crate::model::kind::Mixer;
use crate::model::shape::{DeltaKeys, DeltaNet, QkNorm};

pub(super) static QWEN35: Family = Family {
    name: "qwen35",
    architecture: Architecture::Qwen35,
    layer: &[
        Tensor::Vector("attn_norm", V::MixerNorm),
        Tensor::Matrix("attn_q", &[S::AttnQ]),
        Tensor::Matrix("attn_k", &[S::AttnK]),
        Tensor::Matrix("attn_v", &[S::AttnV]),
        Tensor::Vector("attn_q_norm", V::QueryNorm),
        Tensor::Vector("attn_k_norm", V::KeyNorm),
        Tensor::Matrix("attn_output", &[S::AttnOutput]),
        Tensor::Matrix("attn_qkv", &[S::SsmQkv]),
        Tensor::Matrix("attn_gate", &[S::SsmGate]),
        Tensor::Matrix("ssm_beta", &[S::SsmBeta]),
        Tensor::Matrix("ssm_alpha", &[S::SsmAlpha]),
        Tensor::Vector("ssm_conv1d", V::SsmConv),
        Tensor::Plain("ssm_dt.bias", V::SsmDt),
        Tensor::Plain("ssm_a", V::SsmA),
        Tensor::Vector("ssm_norm", V::SsmNorm),
        Tensor::Matrix("ssm_out", &[S::SsmOut]),
        Tensor::Vector("post_attention_norm", V::ChannelNorm),
        Tensor::Matrix("ffn_gate", &[S::FfnGate]),
        Tensor::Matrix("ffn_up", &[S::FfnUp]),
        Tensor::Matrix("ffn_down", &[S::FfnDown]),
    ],
    qk_norm: QkNorm::Head,
    keys: KEYS,
    adjust: |keys, draft| adjust(keys, draft, DeltaKeys::Alternate),
    ..Family::PLAIN
};

/// What families with delta nets read.
pub(super) const KEYS: &[&str] = &[
    "attention.recurrent_layers",
    "attention.scale",
    "full_attention_interval",
    "nextn_predict_layers",
    "rope.dimension_sections",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
];

/// Delta nets with gated attention, without blocks behind the last layer.
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
    draft.instead = Some(Mixer::DeltaNet(DeltaNet {
        n_head_k: keys.size("ssm.group_count")?,
        n_head_v,
        head_dim_k: keys.size("ssm.state_size")?,
        head_dim_v: n_inner / n_head_v,
        n_taps: keys.size("ssm.conv_kernel")?,
        keys: heads,
    }));
    let listed = Pattern::listed(keys, "attention.recurrent_layers", draft.n_layer)?;
    draft.recurrent = match listed {
        Some(listed) => listed,
        None => match keys.size_or("full_attention_interval", 4)? {
            0 => return Err(keys.refuse("full_attention_interval", 0.0, "1 or more")),
            period => Pattern::Period(period),
        },
    };
    let n_next = keys.size_or("nextn_predict_layers", 0)?;
    if n_next >= draft.n_layer {
        #[expect(clippy::cast_precision_loss, reason = "for a message")]
        let n_next = n_next as f64;
        return Err(keys.refuse("nextn_predict_layers", n_next, "below block_count"));
    }
    draft.n_layer -= n_next;
    Ok(())
}
