//! `cohere2` (Command R7B, Command A, Aya): attention and feed-forward network read one norm, a layer norm without
//! bias; queries and keys are turned in layers with a window alone. Logits times `logit_scale`.
//!
//! Source: llama.cpp, `src/models/cohere2.cpp`.

use super::draft::{Draft, Pattern, RopeLayers};
use super::{EndNorm, Family, Keys, Site as S, Tensor, Vector as V, layers};
use crate::kernels::table::RopePairing;
use crate::model::error::ModelError;

pub(super) static COHERE2: Family = Family {
    name: "cohere2",
    layer: &[
        &[Tensor::LayerNorm("attn_norm", V::MixerNorm)],
        layers::QKV,
        &[Tensor::Matrix("attn_output", &[S::AttnOutput])],
        layers::NETWORK,
    ],
    output_norm: EndNorm::Layer("output_norm"),
    rope_pairing: RopePairing::Interleaved,
    keys: &[
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "logit_scale",
        "rope.freq_base_swa",
    ],
    adjust,
    ..Family::PLAIN
};

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    draft.is_parallel = true;
    draft.config.logit_scale = keys.f32("logit_scale")?;
    draft.window = keys.size("attention.sliding_window")?;
    draft.windows = Pattern::read(keys, 4, draft.n_block)?;
    draft.window_rope = super::gemma::window_rope(keys, draft, true)?;
    draft.rope_layers = RopeLayers::Windowed;
    Ok(())
}
