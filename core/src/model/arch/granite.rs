//! `granite`, `granitemoe` (Granite 3 and 4) and `granite_swa` (Granite 4.5: sinks, and windows in listed layers): llama
//! with four factors, on embeddings, scores, branches and logits. Logits are divided by `logit_scale`.
//!
//! Source: llama.cpp, `src/models/granite.cpp`, `granite-moe.cpp`, `granite-swa.cpp`.

use super::draft::{Draft, Pattern, RopeLayers};
use super::experts::{NORMALIZED, read_experts, share_expert};
use super::{Family, Keys, Site as S, Tensor, Vector as V, layers};
use crate::kernels::table::RopePairing;
use crate::kernels::words;
use crate::model::error::ModelError;

pub(super) static GRANITE: Family = Family {
    name: "granite",
    layer: layers::EXPERTS,
    rope_pairing: RopePairing::Interleaved,
    keys: KEYS,
    adjust: |keys, draft| {
        // Switches its rotation on or off.
        if !keys.bool_or("rope.scaling.finetuned", true)? {
            draft.rope_layers = RopeLayers::Never;
        }
        adjust(keys, draft)
    },
    ..Family::PLAIN
};

pub(super) static GRANITE_MOE: Family = Family {
    name: "granitemoe",
    layer: layers::EXPERTS,
    rope_pairing: RopePairing::Interleaved,
    keys: KEYS,
    adjust,
    ..Family::PLAIN
};

pub(super) static GRANITE_SWA: Family = Family {
    name: "granite_swa",
    layer: &[
        &[Tensor::Vector("attn_norm", V::MixerNorm)],
        layers::QKV,
        &[
            Tensor::Vector("attn_sinks", V::Sinks),
            Tensor::Matrix("attn_output", &[S::AttnOutput]),
        ],
        layers::FFN,
        layers::ROUTED,
        &[
            Tensor::Matrix("ffn_up_shexp", &[S::FfnGateShexp, S::FfnUpShexp]),
            Tensor::Matrix("ffn_down_shexp", &[S::FfnDownShexp]),
        ],
    ],
    rope_pairing: RopePairing::Interleaved,
    keys: words!(
        "attention.rope_pattern attention.scale attention.sliding_window \
         attention.sliding_window_pattern embedding_scale expert_shared_feed_forward_length \
         logit_scale residual_scale rope.freq_base_swa"
    ),
    adjust: |keys, draft| {
        adjust(keys, draft)?;
        draft.attention.has_sink = true;
        draft.window = keys.size("attention.sliding_window")?;
        draft.windows = Pattern::read(keys, 0, draft.n_block)?;
        draft.window_rope = super::gemma::window_rope(keys, draft, true)?;
        draft.rope_layers = RopeLayers::read(keys, draft.n_block)?;
        Ok(())
    },
    ..Family::PLAIN
};

const KEYS: &[&str] = words!(
    "attention.scale embedding_scale expert_shared_feed_forward_length logit_scale residual_scale \
     rope.scaling.finetuned"
);

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    read_scales(keys, draft)?;
    if keys.size_or("expert_count", 0)? > 0 {
        read_experts(keys, draft, NORMALIZED, None)?;
        let n_ff = keys.size_or("expert_shared_feed_forward_length", 0)?;
        share_expert(draft, n_ff, false);
    }
    Ok(())
}

/// The four factors. 0 means none.
pub(super) fn read_scales(keys: &Keys<'_, '_>, draft: &mut Draft<'_>) -> Result<(), ModelError> {
    let or_one = |scale: f32| if scale == 0.0 { 1.0 } else { scale };
    let config = &mut draft.config;
    config.logit_scale = 1.0 / or_one(keys.f32_or("logit_scale", 0.0)?);
    config.residual_scale = or_one(keys.f32_or("residual_scale", 0.0)?);
    config.embedding_scale = or_one(keys.f32_or("embedding_scale", 0.0)?);
    let scale = keys.f32_or("attention.scale", 0.0)?;
    if scale != 0.0 {
        draft.attention.scale = scale;
    }
    Ok(())
}
