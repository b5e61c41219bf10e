//! `stablelm` (StableLM 3B, StableLM 2): llama with layer norms, and part of each head rotated. The 12B model
//! also has a layer norm for every query and key head, and its attention and feed-forward network read one norm.
//!
//! Source: llama.cpp, `src/models/stablelm.cpp`.

use super::{EndNorm, Family, Site as S, Tensor, Vector as V, layers};
use crate::model::shape::QkNorm;

pub(super) static STABLELM: Family = Family {
    name: "stablelm",
    layer: &[
        &[Tensor::LayerNorm("attn_norm", V::MixerNorm)],
        layers::QKV,
        layers::HEAD_LAYER_NORMS,
        &[
            Tensor::Matrix("attn_output", &[S::AttnOutput]),
            Tensor::LayerNorm("ffn_norm", V::ChannelNorm),
        ],
        layers::NETWORK,
    ],
    output_norm: EndNorm::Layer("output_norm"),
    qk_norm: QkNorm::EachHead,
    keys: &["use_parallel_residual"],
    adjust: |keys, draft| {
        // llama.cpp's converter also writes `use_parallel_residual` for sequential models, so the tensors decide.
        draft.is_parallel = keys.gguf().tensor("blk.0.ffn_norm.weight").is_none();
        draft.qk_norm_if_there(keys);
        Ok(())
    },
    ..Family::PLAIN
};
