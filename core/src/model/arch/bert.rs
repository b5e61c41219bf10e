//! `bert` (BERT, bge, e5, MiniLM): encoders. Every token sees the whole text; positions have
//! learned embeddings; norms are layer norms, applied after the residual sums.
//!
//! A norm after a sum equals the norm before the next layer's linear layers, provided its result
//! replaces the residual stream ([`ModelConfig::norms_replace_stream`]). The layers here are therefore
//! a decoder's, cut before the last norm: the norm of the embeddings precedes the first layer's
//! attention, the norm of layer i's output precedes layer i + 1's, and the last one is the output
//! norm. Every token has the type of sentence A, as in llama.cpp.

use super::draft::Draft;
use super::{Beside, Family, Keys, Site as S, Tensor, Vector as V, layers};
use crate::model::activation::Activation;

pub(super) static BERT: Family = Family {
    name: "bert",
    layer: LAYER,
    beside: Beside::TypesAndPositions,
    activation: Activation::GeluErf,
    keys: &["attention.causal"],
    adjust: |keys, draft| {
        post_norm(keys, draft);
        // No rotation: positions are in the embeddings.
        draft.config.ropes.clear();
        draft.attention.rope = None;
        Ok(())
    },
    ..Family::PLAIN
};

/// The norm before a layer: of the embeddings, or of the previous layer's output.
pub(super) const BEFORE: &[Tensor] = &[Tensor::OutputNormBefore(
    "token_embd_norm",
    "layer_output_norm",
    V::MixerNorm,
)];

/// The attention output and the norm after it.
pub(super) const OUTPUT: &[Tensor] = &[
    Tensor::Matrix("attn_output", &[S::AttnOutput]),
    Tensor::LayerNorm("attn_output_norm", V::ChannelNorm),
];

/// A layer with GELU.
pub(super) const LAYER: &[&[Tensor]] = &[
    BEFORE,
    layers::QKV,
    OUTPUT,
    &[
        Tensor::Matrix("ffn_up", &[S::FfnUp]),
        Tensor::Matrix("ffn_down", &[S::FfnDown]),
    ],
];

/// Every token sees the whole text, and the norms' results replace the stream.
pub(super) fn post_norm(keys: &Keys<'_, '_>, draft: &mut Draft<'_>) {
    not_causal(keys, draft);
    draft.config.norms_replace_stream = true;
}

/// Every token sees the whole text, unless the file says otherwise.
pub(super) fn not_causal(keys: &Keys<'_, '_>, draft: &mut Draft<'_>) {
    let key = keys.name("attention.causal");
    draft.config.is_causal = keys.gguf().bool(key.as_str()).unwrap_or(false);
}
