//! `deepseek2` (DeepSeek-V2, V3 and R1, Kimi-K2, GLM-4.7-Flash): latent attention, routed experts and a shared one.
//!
//! Sources: DeepSeek-AI 2024, arXiv 2405.04434; llama.cpp, `src/models/deepseek2.cpp`.

use super::draft::Draft;
use super::experts::{
    n_ff_of_experts, read_expert_layers, read_experts, read_router, share_expert,
};
use super::{Family, Keys, Site as S, Tensor, Vector as V, layers};
use crate::kernels::contract::{double, sqrt};
use crate::kernels::table::RopePairing;
use crate::kernels::words;
use crate::model::error::ModelError;
use crate::model::rope::RopeScalingKind;
use crate::model::shape::{Latent, QueryTemperature, Router, RouterScore};

pub(super) static DEEPSEEK2: Family = Family {
    name: "deepseek2",
    layer: &[
        &[
            Tensor::Vector("attn_norm", V::MixerNorm),
            Tensor::Matrix("attn_q", &[S::AttnQ]),
            Tensor::Matrix("attn_q_a", &[S::AttnQA]),
            Tensor::Vector("attn_q_a_norm", V::QueryANorm),
            Tensor::Matrix("attn_q_b", &[S::AttnQB]),
            Tensor::Matrix("attn_kv_a_mqa", &[S::AttnKvA]),
            Tensor::Vector("attn_kv_a_norm", V::LatentNorm),
            Tensor::Heads("attn_k_b", S::AttnKB),
            Tensor::Heads("attn_v_b", S::AttnVB),
            Tensor::Matrix("attn_output", &[S::AttnOutput]),
        ],
        layers::FFN,
        layers::ROUTED,
        layers::SHARED,
    ],
    rope_pairing: RopePairing::Interleaved,
    has_next_token: true,
    keys: words!(
        "attention.key_length_mla attention.kv_lora_rank attention.q_lora_rank \
         attention.temperature_length attention.temperature_scale attention.value_length_mla \
         expert_feed_forward_length expert_gating_func expert_group_count expert_group_used_count \
         expert_shared_count expert_weights_norm expert_weights_scale leading_dense_block_count"
    ),
    adjust,
    ..Family::PLAIN
};

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    read_latent(keys, draft)?;
    let n_ff = n_ff_of_experts(keys, draft, None)?;
    let gguf = keys.gguf();
    let has = |end: &str| gguf.tensors().any(|tensor| tensor.name.ends_with(end));
    let has_bias = has("exp_probs_b.bias");
    let default = Router {
        // Files may lack the key; the models with a bias of the choice score by sigmoid.
        score: match has_bias {
            true => RouterScore::Sigmoid,
            false => RouterScore::Softmax,
        },
        has_bias,
        ..Router::SOFTMAX
    };
    read_experts(keys, draft, read_router(keys, default)?, Some(n_ff))?;
    read_expert_layers(keys, draft)?;
    let n_shared = keys.size_or("expert_shared_count", 0)?;
    share_expert(draft, n_ff.saturating_mul(n_shared), false);
    Ok(())
}

fn read_latent(keys: &Keys<'_, '_>, draft: &mut Draft<'_>) -> Result<(), ModelError> {
    if keys.gguf().tensor("blk.0.attn_kv_b.weight").is_some() {
        return Err(ModelError::NotImplemented {
            what: "keys and values in one tensor, as files had it before April 2025 (convert the model again)",
            name: "blk.0.attn_kv_b.weight".into(),
        });
    }
    let n_rope = draft.config.ropes[0].n_rot;
    let head_dim = keys.size("attention.key_length_mla")?;
    let Some(head_dim_nope) = head_dim.checked_sub(n_rope).filter(|n| *n > 0) else {
        #[expect(clippy::cast_precision_loss, reason = "for a message")]
        let value = head_dim as f64;
        return Err(keys.refuse(
            "attention.key_length_mla",
            value,
            "above rope.dimension_count",
        ));
    };
    let kv_rank = keys.size("attention.kv_lora_rank")?;
    let has_q_a = keys.gguf().tensor("blk.0.attn_q_a.weight").is_some();
    let scale = score_scale(keys, draft, head_dim)?;
    let attention = &mut draft.attention;
    attention.scale = scale;
    attention.latent = Some(Latent {
        q_rank: match has_q_a {
            true => keys.size("attention.q_lora_rank")?,
            false => 0,
        },
        kv_rank,
        head_dim_nope,
        head_dim_rope: n_rope,
        head_dim_v: keys.size("attention.value_length_mla")?,
    });
    (attention.head_dim_k, attention.head_dim_v) = (kv_rank.saturating_add(n_rope), kv_rank);
    let scale = keys.f32_or("attention.temperature_scale", 0.0)?;
    if scale != 0.0 {
        attention.temperature = Some(QueryTemperature {
            scale,
            length: keys.size_or("attention.temperature_length", 0)?,
        });
    }
    Ok(())
}

/// If the file has `yarn_log_multiplier` (a tenth of the published `mscale_all_dim`), YaRN's growth is squared into
/// the scores by it, and the rotation has no growth of its own.
fn score_scale(
    keys: &Keys<'_, '_>,
    draft: &mut Draft<'_>,
    head_dim: usize,
) -> Result<f32, ModelError> {
    let scaling = &mut draft.config.rope_scaling;
    #[expect(clippy::cast_precision_loss, reason = "heads are at most 2^24 long")]
    let plain = 1.0 / f64::from(sqrt(head_dim as f32));
    let multiplier = keys.f32_or("rope.scaling.yarn_log_multiplier", 0.0)?;
    let mut growth = 1.0;
    if scaling.kind == RopeScalingKind::Yarn && scaling.factor > 1.0 {
        let ln = double::ln(f64::from(scaling.factor));
        if multiplier == 0.0 {
            growth = 1.0 + 0.1 * ln;
        } else {
            growth = 1.0 + f64::from(multiplier) * ln;
            scaling.yarn.attn_factor = Some(1.0);
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
    let scale = (growth * growth * plain) as f32;
    Ok(scale)
}
