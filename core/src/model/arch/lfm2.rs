//! `lfm2` and `lfm2moe` (LFM2, LFM2.5): short convolutions in most layers, attention in layers with KV heads;
//! experts by sigmoid scores with a bias, after some layers without.
//!
//! The final norm is called `token_embd_norm`. Source: llama.cpp, `src/models/lfm2.cpp`.

use super::draft::{Draft, Pattern};
use super::experts::{NORMALIZED, n_ff_of_experts, read_expert_layers, read_experts, read_router};
use super::keys::Keys;
use super::{EndNorm, Family, Site as S, Tensor, Vector as V, layers};
use crate::gguf::optional;
use crate::kernels::words;
use crate::model::error::ModelError;
use crate::model::kind::Mixer;
use crate::model::shape::{QkNorm, Router, RouterScore, ShortConv};

pub(super) static LFM2: Family = Family {
    name: "lfm2",
    layer: LAYER,
    output_norm: EndNorm::Rms("token_embd_norm"),
    qk_norm: QkNorm::Head,
    keys: &[
        "attention.causal",
        "attention.sliding_window",
        "shortconv.l_cache",
    ],
    adjust,
    ..Family::PLAIN
};

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    let is_causal = keys.gguf().bool(keys.name("attention.causal").as_str());
    if optional(is_causal)? == Some(false) {
        return Err(ModelError::NotImplemented {
            what: "a convolution over tokens on both sides",
            name: keys.name("attention.causal"),
        });
    }
    draft.instead = Some(Mixer::ShortConv(ShortConv {
        n_taps: keys.size("shortconv.l_cache")?,
    }));
    draft.window = keys.size_or("attention.sliding_window", 0)?;
    draft.windows = Pattern::Period(0);
    Ok(())
}

pub(super) static LFM2MOE: Family = Family {
    name: "lfm2moe",
    layer: LAYER,
    output_norm: EndNorm::Rms("token_embd_norm"),
    qk_norm: QkNorm::Head,
    keys: words!(
        "attention.causal attention.sliding_window expert_feed_forward_length expert_gating_func \
         leading_dense_block_count shortconv.l_cache"
    ),
    adjust: |keys, draft| {
        adjust(keys, draft)?;
        let n_ff = n_ff_of_experts(keys, draft, None)?;
        let default = Router {
            score: RouterScore::Sigmoid,
            has_bias: true,
            ..NORMALIZED
        };
        let Router { score, .. } = read_router(keys, default)?;
        read_experts(keys, draft, Router { score, ..default }, Some(n_ff))?;
        read_expert_layers(keys, draft)
    },
    ..Family::PLAIN
};

const LAYER: &[&[Tensor]] = &[
    layers::ATTENTION_QK,
    &[
        Tensor::Matrix(
            "shortconv.in_proj",
            &[S::ShortConvB, S::ShortConvC, S::ShortConvX],
        ),
        Tensor::Vector("shortconv.conv", V::ConvTaps),
        Tensor::Matrix("shortconv.out_proj", &[S::ShortConvOut]),
    ],
    layers::FFN,
    layers::ROUTED,
];
