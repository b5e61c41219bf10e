//! `gemma4`: Gemma 3's layers with heads of two sizes, keys and values shared with later layers, per-layer embeddings
//! (E2B, E4B), and experts in addition to the feed-forward network (26B-A4B).
//!
//! Norm weights are used as they are. Scores are not scaled. Source: llama.cpp, `src/models/gemma4.cpp`.

use super::draft::{Draft, Pattern};
use super::experts::{NORMALIZED, n_ff_of_experts, read_experts, share_expert};
use super::{Family, Keys, Site as S, Tensor, Vector as V, layers};
use crate::kernels::contract::sqrt;
use crate::kernels::words;
use crate::model::activation::Activation;
use crate::model::error::ModelError;
use crate::model::rope::RopeConfig;
use crate::model::shape::QkNorm;

pub(super) static GEMMA4: Family = Family {
    name: "gemma4",
    layer: &[
        layers::ATTENTION_QK,
        &[Tensor::Vector("post_attention_norm", V::MixerPostNorm)],
        layers::FFN,
        &[
            Tensor::Vector("post_ffw_norm", V::ChannelPostNorm),
            Tensor::Matrix("ffn_gate_inp", &[S::FfnGateInp]),
            Tensor::Named("ffn_gate_inp.scale", V::RouterNorm),
            Tensor::Vector("pre_ffw_norm_2", V::ExpertsNorm),
            Tensor::Vector("post_ffw_norm_1", V::SharedPostNorm),
            Tensor::Vector("post_ffw_norm_2", V::ExpertsPostNorm),
            Tensor::Experts("ffn_gate_exps", S::FfnGate),
            Tensor::Experts("ffn_up_exps", S::FfnUp),
            Tensor::Experts("ffn_down_exps", S::FfnDown),
            Tensor::Named("ffn_down_exps.scale", V::ExpertScales),
            Tensor::Matrix("inp_gate", &[S::LayerInputGate]),
            Tensor::Matrix("proj", &[S::LayerInputProj]),
            Tensor::Vector("post_norm", V::LayerInputPostNorm),
            Tensor::Vector("layer_output_scale", V::OutputScale),
        ],
    ],
    // In layers with experts, the feed-forward network that runs in addition to them.
    beside_experts: &[
        ("ffn_gate", S::FfnGateShexp),
        ("ffn_up", S::FfnUpShexp),
        ("ffn_down", S::FfnDownShexp),
    ],
    qk_norm: QkNorm::Head,
    activation: Activation::Gelu,
    keys: words!(
        "attention.key_length_swa attention.shared_kv_layers attention.sliding_window \
         attention.sliding_window_pattern attention.value_length_swa \
         embedding_length_per_layer_input expert_feed_forward_length final_logit_softcapping \
         rope.dimension_count_swa rope.freq_base_swa"
    ),
    adjust,
    ..Family::PLAIN
};

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    let gguf = keys.gguf();
    #[expect(clippy::cast_precision_loss, reason = "widths are below 2^24")]
    let root = sqrt(draft.config.n_embd as f32);
    draft.config.embedding_scale = root;
    draft.config.logit_soft_cap = keys.f32_or("final_logit_softcapping", 30.0)?;
    draft.config.n_embd_layer = keys.size_or("embedding_length_per_layer_input", 0)?;
    draft.attention.scale = 1.0;
    draft.attention.norms_values = true;
    draft.n_shared = keys.size_or("attention.shared_kv_layers", 0)?;
    draft.has_output_scale = gguf.tensor("blk.0.layer_output_scale.weight").is_some();
    for layer in 0..draft.n_layer {
        let has = |part: &str| {
            let name = crate::model::Name::format(format_args!("blk.{layer}.{part}.weight"));
            gguf.tensor(name.as_str()).is_some()
        };
        draft.values_from_keys[layer] = !has("attn_v") && !has("attn_qkv");
    }
    read_windows(keys, draft)?;
    if keys.size_or("expert_count", 0)? > 0 {
        let n_ff = n_ff_of_experts(keys, draft, None)?;
        read_experts(keys, draft, NORMALIZED, Some(n_ff))?;
        let beside = draft.n_ff.of(0);
        share_expert(draft, beside, false);
        if let Some(experts) = &mut draft.experts {
            experts.has_norms = true;
        }
    }
    Ok(())
}

/// Windows: their layers have heads and a rotation of their own.
fn read_windows<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    draft.window = keys.size("attention.sliding_window")?;
    draft.windows = Pattern::read(keys, 6, draft.n_block)?;
    let head_dim = keys.size("attention.key_length_swa")?;
    if keys.size("attention.value_length_swa")? != head_dim {
        #[expect(clippy::cast_precision_loss, reason = "for a message")]
        let value = head_dim as f64;
        let expected = "attention.value_length_swa";
        return Err(keys.refuse("attention.key_length_swa", value, expected));
    }
    draft.window_head_dim = Some(head_dim);
    let ropes = &mut draft.config.ropes;
    let rope = RopeConfig {
        n_rot: keys.size_or("rope.dimension_count_swa", head_dim)?,
        freq_base: keys.f32_or("rope.freq_base_swa", 10_000.0)?,
        ..ropes[0]
    };
    ropes
        .push(rope)
        .unwrap_or_else(|_| unreachable!("there is room for two"));
    draft.window_rope = Some(1);
    Ok(())
}
