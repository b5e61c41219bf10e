//! `gemma2` and `gemma3`: norms before and after attention and feed-forward network, GeGLU,
//! embeddings times sqrt(n_embd), sliding windows in most layers.
//!
//! Norm weights are used as they are: converters have added Gemma's 1 to them.

use super::draft::{Draft, Pattern};
use super::{Family, Keys, Tensor, Vector as V, layers};
use crate::kernels::contract::sqrt;
use crate::kernels::words;
use crate::model::activation::Activation;
use crate::model::error::ModelError;
use crate::model::rope::RopeConfig;
use crate::model::shape::QkNorm;

pub(super) static GEMMA2: Family = Family {
    name: "gemma2",
    layer: &[
        layers::ATTENTION,
        &[Tensor::Vector("post_attention_norm", V::MixerPostNorm)],
        layers::FFN,
        &[Tensor::Vector("post_ffw_norm", V::ChannelPostNorm)],
    ],
    activation: Activation::Gelu,
    keys: words!(
        "attention.scale attention.sliding_window attention.sliding_window_pattern attn_logit_softcapping \
         final_logit_softcapping rope.freq_base_swa"
    ),
    adjust: gemma2,
    ..Family::PLAIN
};

pub(super) static GEMMA3: Family = Family {
    name: "gemma3",
    layer: LAYER_WITH_QK_NORMS,
    qk_norm: QkNorm::Head,
    activation: Activation::Gelu,
    keys: &[
        "attention.scale",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "final_logit_softcapping",
        "rope.freq_base_swa",
    ],
    adjust: gemma3,
    ..Family::PLAIN
};

pub(super) const LAYER_WITH_QK_NORMS: &[&[Tensor]] = &[
    layers::ATTENTION_QK,
    &[Tensor::Vector("post_attention_norm", V::MixerPostNorm)],
    layers::FFN,
    &[Tensor::Vector("post_ffw_norm", V::ChannelPostNorm)],
];

fn gemma2<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    scales(keys, draft, 46)?;
    draft.attention.soft_cap = soft_cap(keys, "attn_logit_softcapping", 50.0)?;
    draft.config.logit_soft_cap = soft_cap(keys, "final_logit_softcapping", 30.0)?;
    draft.window = keys.size_or("attention.sliding_window", 4096)?;
    draft.windows = Pattern::read(keys, 2, draft.n_block)?;
    draft.window_rope = window_rope(keys, draft, true)?;
    Ok(())
}

fn gemma3<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    scales(keys, draft, 62)?;
    draft.config.logit_soft_cap = keys.f32_or("final_logit_softcapping", 0.0)?;
    draft.window = keys.size_or("attention.sliding_window", 0)?;
    draft.windows = Pattern::read(keys, 6, draft.n_block)?;
    if draft.window > 0 {
        draft.window_rope = window_rope(keys, draft, false)?;
    }
    Ok(())
}

/// Scales of embeddings and queries. In published files, which do not state the latter, the largest model of a family
/// is known by its layer count: it divides by the width per head, which is not its head length.
fn scales(
    keys: &Keys<'_, '_>,
    draft: &mut Draft<'_>,
    n_layer_27b: usize,
) -> Result<(), ModelError> {
    #[expect(clippy::cast_precision_loss, reason = "widths are below 2^24")]
    let root = |n: usize| sqrt(n as f32);
    let n_embd = draft.config.n_embd;
    draft.config.embedding_scale = root(n_embd);
    let stated = keys.f32_or("attention.scale", 0.0)?;
    if stated != 0.0 {
        draft.attention.scale = stated;
    } else if draft.n_layer == n_layer_27b {
        let n_head = draft.attention.n_head;
        draft.attention.scale = 1.0 / root(n_embd.checked_div(n_head).unwrap_or(0));
    }
    Ok(())
}

/// A cap that every model of the family has.
fn soft_cap(keys: &Keys<'_, '_>, key: &str, default: f32) -> Result<f32, ModelError> {
    let cap = keys.f32_or(key, default)?;
    if cap == 0.0 {
        return Err(keys.refuse(key, cap, "above 0"));
    }
    Ok(cap)
}

/// The rotation of layers with a window, if it differs: `rope.freq_base_swa`. Without that key the base is that
/// of the other layers if both are scaled alike, else 10,000.
pub(super) fn window_rope(
    keys: &Keys<'_, '_>,
    draft: &mut Draft<'_>,
    is_scaled: bool,
) -> Result<Option<usize>, ModelError> {
    let ropes = &mut draft.config.ropes;
    let default = if is_scaled {
        ropes[0].freq_base
    } else {
        10_000.0
    };
    let freq_base = keys.f32_or("rope.freq_base_swa", default)?;
    if is_scaled && freq_base.to_bits() == ropes[0].freq_base.to_bits() {
        return Ok(None);
    }
    let rope = RopeConfig {
        freq_base,
        is_scaled,
        ..ropes[0]
    };
    ropes
        .push(rope)
        .unwrap_or_else(|_| unreachable!("there is room for two"));
    Ok(Some(1))
}
