//! `command-r` (Command R, Command R+, Aya 23) and `cohere2` (Command R7B, Command A, Aya): attention and feed-forward
//! network read one norm, a layer norm without bias. Logits times `logit_scale`. Command R+ also has a layer norm for
//! every query and key head; in cohere2 only layers with a window rotate queries and keys.
//!
//! Source: llama.cpp, `src/models/command-r.cpp`, `cohere2.cpp`.

use super::draft::{Draft, Pattern, RopeLayers};
use super::{EndNorm, Family, Keys, Site as S, Tensor, Vector as V, layers};
use crate::kernels::table::RopePairing;
use crate::model::error::ModelError;
use crate::model::shape::QkNorm;

pub(super) static COMMAND_R: Family = Family {
    name: "command-r",
    layer: &[
        NORM,
        layers::QKV,
        layers::HEAD_LAYER_NORMS,
        OUTPUT,
        layers::NETWORK,
    ],
    output_norm: EndNorm::Layer("output_norm"),
    rope_pairing: RopePairing::Interleaved,
    qk_norm: QkNorm::EachHead,
    keys: &["logit_scale"],
    adjust: |keys, draft| {
        draft.is_parallel = true;
        draft.config.logit_scale = keys.f32("logit_scale")?;
        draft.qk_norm_if_there(keys);
        Ok(())
    },
    ..Family::PLAIN
};

pub(super) static COHERE2: Family = Family {
    name: "cohere2",
    layer: &[NORM, layers::QKV, OUTPUT, layers::NETWORK],
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

const NORM: &[Tensor] = &[Tensor::LayerNorm("attn_norm", V::MixerNorm)];
const OUTPUT: &[Tensor] = &[Tensor::Matrix("attn_output", &[S::AttnOutput])];

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    draft.is_parallel = true;
    draft.config.logit_scale = keys.f32("logit_scale")?;
    draft.window = keys.size("attention.sliding_window")?;
    draft.windows = Pattern::read(keys, 4, draft.n_block)?;
    draft.window_rope = super::gemma::window_rope(keys, draft, true)?;
    draft.rope_layers = RopeLayers::Windowed;
    Ok(())
}
