//! `bert` (BERT, bge, e5, MiniLM): encoders. Every token sees the whole text; positions have
//! learned embeddings; norms are layer norms and stand behind the residual sums.
//!
//! A norm behind a sum is the norm before the next layer's linear layers, if what it gives takes
//! the place of the residual stream ([`ModelConfig::norms_replace_stream`]). So the layers here are
//! those of a decoder, cut before the last norm: the norm of the embeddings comes before the first
//! layer's attention, that of layer i's output before layer i + 1's, and the last one is the output
//! norm. The type of every token is that of sentence A, as in llama.cpp.

use super::draft::Draft;
use super::{Beside, Family, Keys, Site as S, Tensor, Vector as V, layers};
use crate::model::shape::Activation;

pub(super) static BERT: Family = Family {
    name: "bert",
    layer: LAYER,
    beside: Beside::TypesAndPositions,
    activation: Activation::Gelu,
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

/// The norm that stands before a layer, of the embeddings or of the layer before.
pub(super) const BEFORE: &[Tensor] = &[Tensor::OutputNormBefore(
    "token_embd_norm",
    "layer_output_norm",
    V::MixerNorm,
)];

/// What attention gives, and the norm behind it.
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

/// Every token sees the whole text, and norms' results take the place of the stream.
pub(super) fn post_norm(keys: &Keys<'_, '_>, draft: &mut Draft<'_>) {
    not_causal(keys, draft);
    draft.config.norms_replace_stream = true;
}

/// Every token sees the whole text, unless the file says otherwise.
pub(super) fn not_causal(keys: &Keys<'_, '_>, draft: &mut Draft<'_>) {
    let key = keys.name("attention.causal");
    draft.config.is_causal = keys.gguf().bool(key.as_str()).unwrap_or(false);
}
