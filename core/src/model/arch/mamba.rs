//! Families with Mamba 2: `granitehybrid` (Granite 4.0: Mamba 2, or attention where a layer has KV heads, then a
//! feed-forward network or experts) and `nemotron_h`, `nemotron_h_moe` (Nemotron-H, Nemotron 3: a layer is
//! Mamba 2, attention without positions, or a network, by which of its lengths are 0).
//!
//! Source: llama.cpp, `src/models/granite-hybrid.cpp`, `nemotron-h.cpp`.

use super::draft::{Draft, RopeLayers};
use super::experts::{NORMALIZED, n_ff_of_experts, read_experts, read_router, share_expert};
use super::granite::read_scales;
use super::keys::Keys;
use super::{Family, Site as S, Tensor, Vector as V, layers};
use crate::gguf::optional;
use crate::kernels::table::RopePairing;
use crate::kernels::words;
use crate::model::activation::Activation;
use crate::model::error::ModelError;
use crate::model::kind::Mixer;
use crate::model::shape::{Mamba2, Router, RouterScore};

pub(super) static GRANITE_HYBRID: Family = Family {
    name: "granitehybrid",
    layer: &[
        layers::ATTENTION,
        layers::MAMBA2,
        layers::FFN,
        layers::ROUTED,
        layers::SHARED,
    ],
    rope_pairing: RopePairing::Interleaved,
    keys: words!(
        "attention.scale embedding_scale expert_shared_feed_forward_length logit_scale \
         residual_scale rope.scaling.finetuned ssm.conv_kernel ssm.group_count ssm.inner_size \
         ssm.state_size ssm.time_step_rank"
    ),
    adjust: |keys, draft| {
        // Switches its rotation on or off.
        if !keys.bool_or("rope.scaling.finetuned", true)? {
            draft.rope_layers = RopeLayers::Never;
        }
        draft.instead = Some(read_mamba(keys)?);
        read_scales(keys, draft)?;
        if keys.size_or("expert_count", 0)? > 0 {
            read_experts(keys, draft, NORMALIZED, None)?;
            let n_ff = keys.size_or("expert_shared_feed_forward_length", 0)?;
            share_expert(draft, n_ff, false);
        }
        Ok(())
    },
    ..Family::PLAIN
};

/// The norm has the same name in every kind of layer.
const NEMOTRON: &[&[Tensor]] = &[
    layers::ATTENTION,
    layers::MAMBA2,
    &[
        Tensor::Vector("attn_norm", V::ChannelNorm),
        Tensor::Matrix("ffn_up", &[S::FfnUp]),
        Tensor::Matrix("ffn_down", &[S::FfnDown]),
        Tensor::Matrix("ffn_gate_inp", &[S::FfnGateInp]),
        Tensor::Named("exp_probs_b.bias", V::ChoiceBias),
        Tensor::Matrix("ffn_latent_down", &[S::FfnLatentDown]),
        Tensor::Matrix("ffn_latent_up", &[S::FfnLatentUp]),
        Tensor::Experts("ffn_up_exps", S::FfnUp),
        Tensor::Experts("ffn_down_exps", S::FfnDown),
        Tensor::Matrix("ffn_up_shexp", &[S::FfnUpShexp]),
        Tensor::Matrix("ffn_down_shexp", &[S::FfnDownShexp]),
    ],
];

pub(super) static NEMOTRON_H: Family = Family {
    name: "nemotron_h",
    layer: NEMOTRON,
    activation: Activation::ReluSquared,
    keys: NEMOTRON_KEYS,
    adjust: adjust_nemotron,
    ..Family::PLAIN
};

pub(super) static NEMOTRON_H_MOE: Family = Family {
    name: "nemotron_h_moe",
    layer: NEMOTRON,
    activation: Activation::ReluSquared,
    keys: NEMOTRON_KEYS,
    adjust: adjust_nemotron,
    ..Family::PLAIN
};

const NEMOTRON_KEYS: &[&str] = words!(
    "expert_feed_forward_length expert_gating_func expert_group_count expert_group_used_count \
     expert_shared_count expert_shared_feed_forward_length expert_weights_norm \
     expert_weights_scale moe_latent_size ssm.conv_kernel ssm.group_count ssm.inner_size \
     ssm.state_size ssm.time_step_rank"
);

fn adjust_nemotron<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    draft.is_mixer_or_channel = true;
    draft.rope_layers = RopeLayers::Never;
    draft.instead = Some(read_mamba(keys)?);
    if keys.size_or("expert_count", 0)? > 0 {
        let router = Router {
            score: RouterScore::Sigmoid,
            has_bias: true,
            ..Router::SOFTMAX
        };
        let n_ff = n_ff_of_experts(keys, draft, None)?;
        read_experts(keys, draft, read_router(keys, router)?, Some(n_ff))?;
        if let Some(experts) = &mut draft.experts {
            experts.n_latent = keys.size_or("moe_latent_size", 0)?;
        }
        let n_ff = keys.size_or("expert_shared_feed_forward_length", 0)?;
        share_expert(draft, n_ff, false);
    }
    Ok(())
}

/// Mamba 2, from the keys and the shapes of the first tensors.
fn read_mamba(keys: &Keys<'_, '_>) -> Result<Mixer, ModelError> {
    let n_head = keys.size("ssm.time_step_rank")?;
    let n_inner = keys.size("ssm.inner_size")?;
    if n_head == 0 || !n_inner.is_multiple_of(n_head) {
        #[expect(clippy::cast_precision_loss, reason = "for a message")]
        let n_inner = n_inner as f64;
        return Err(keys.refuse("ssm.inner_size", n_inner, "a multiple of time_step_rank"));
    }
    let mut tensors = keys.gguf().tensors();
    Ok(Mixer::Mamba2(Mamba2 {
        n_head,
        head_dim: n_inner / n_head,
        n_state: keys.size("ssm.state_size")?,
        n_group: optional(keys.size("ssm.group_count"))?.unwrap_or(1),
        n_taps: keys.size("ssm.conv_kernel")?,
        has_norm: tensors.any(|tensor| tensor.name.ends_with(".ssm_norm.weight")),
    }))
}
