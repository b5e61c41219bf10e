//! Encoders other than `bert`.
//!
//! `nomic-bert` and `jina-bert-v3` are bert's layers with rotations instead of learned positions.
//! `jina-bert-v2` has distances instead (ALiBi), a gate, and optionally norms over whole queries and keys and a second
//! norm after attention. `nomic-bert-moe` has experts without gates in every other layer, weighted by the router.
//! `eurobert` has llama's layers, `gemma-embedding` gemma3's. `modern-bert` has layer norms without
//! biases before attention and network, and one after the embeddings, which serves as the first
//! layer's; the first of every three layers sees the whole text, the others a window. GELU is computed by the error
//! function, as the published code does, except in `gemma-embedding`; llama.cpp approximates it by tanh everywhere.
//!
//! Sources: llama.cpp, `src/models/*bert*.cpp`, `src/models/gemma-embedding.cpp`.

use super::bert::{self, not_causal, post_norm};
use super::draft::{Draft, Pattern};
use super::experts::read_experts;
use super::read::read_activation;
use super::{Beside, EndNorm, Family, Keys, Site as S, Tensor, Vector as V, gemma, layers};
use crate::kernels::contract::sqrt;
use crate::kernels::words;
use crate::model::activation::Activation;
use crate::model::error::ModelError;
use crate::model::shape::{QkNorm, Router};

pub(super) static NOMIC_BERT: Family = Family {
    name: "nomic-bert",
    layer: &[bert::BEFORE, layers::QKV, bert::OUTPUT, layers::NETWORK],
    beside: Beside::Types,
    keys: &["attention.causal"],
    adjust: |keys, draft| {
        post_norm(keys, draft);
        Ok(())
    },
    ..Family::PLAIN
};

pub(super) static NOMIC_BERT_MOE: Family = Family {
    name: "nomic-bert-moe",
    layer: &[
        bert::BEFORE,
        layers::QKV,
        bert::OUTPUT,
        &[
            Tensor::Matrix("ffn_up", &[S::FfnUp]),
            Tensor::Matrix("ffn_down", &[S::FfnDown]),
            Tensor::Matrix("ffn_gate_inp", &[S::FfnGateInp]),
            Tensor::Experts("ffn_up_exps", S::FfnUp),
            Tensor::Experts("ffn_down_exps", S::FfnDown),
        ],
    ],
    beside: Beside::Types,
    activation: Activation::GeluErf,
    keys: &["attention.causal", EVERY],
    adjust: |keys, draft| {
        post_norm(keys, draft);
        // llama.cpp: experts where the layer's number leaves a remainder of 1.
        let every = keys.size_or(EVERY, 0)?;
        if every != 2 {
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            return Err(keys.refuse(EVERY, every as f64, "2"));
        }
        draft.expert_layers.step = every;
        read_experts(keys, draft, Router::SOFTMAX, None)
    },
    ..Family::PLAIN
};

const EVERY: &str = "moe_every_n_layers";

pub(super) static JINA_BERT_V3: Family = Family {
    name: "jina-bert-v3",
    layer: bert::LAYER,
    beside: Beside::Types,
    activation: Activation::GeluErf,
    keys: &["attention.causal"],
    adjust: |keys, draft| {
        post_norm(keys, draft);
        Ok(())
    },
    ..Family::PLAIN
};

pub(super) static JINA_BERT_V2: Family = Family {
    name: "jina-bert-v2",
    layer: &[
        bert::BEFORE,
        layers::QKV,
        &[
            Tensor::LayerNorm("attn_q_norm", V::QueryNorm),
            Tensor::LayerNorm("attn_k_norm", V::KeyNorm),
            Tensor::Matrix("attn_output", &[S::AttnOutput]),
            Tensor::LayerNorm("attn_output_norm", V::ChannelNorm),
            Tensor::LayerNorm("attn_norm_2", V::SecondNorm),
        ],
        layers::NETWORK,
    ],
    beside: Beside::Types,
    qk_norm: QkNorm::Row,
    activation: Activation::GeluErf,
    keys: &["attention.causal", "attention.max_alibi_bias"],
    adjust: jina_bert_v2,
    ..Family::PLAIN
};

fn jina_bert_v2(keys: &Keys<'_, '_>, draft: &mut Draft<'_>) -> Result<(), ModelError> {
    post_norm(keys, draft);
    let gguf = keys.gguf();
    let has = |name: &str| gguf.tensor(name).is_some();
    draft.has_second_norm = has("blk.0.attn_norm_2.weight");
    draft.config.ropes.clear();
    let attention = &mut draft.attention;
    attention.rope = None;
    attention.max_alibi_bias = keys.f32_or("attention.max_alibi_bias", 8.0)?;
    draft.qk_norm_if_there(keys);
    draft.ffn.is_gated = has("blk.0.ffn_gate.weight") || draft.config.fused.gate_up;
    Ok(())
}

pub(super) static EUROBERT: Family = Family {
    name: "eurobert",
    layer: layers::DENSE,
    keys: &["attention.causal"],
    adjust: |keys, draft| {
        not_causal(keys, draft);
        Ok(())
    },
    ..Family::PLAIN
};

pub(super) static MODERN_BERT: Family = Family {
    name: "modern-bert",
    layer: &[&[
        Tensor::LayerNormAfterFirst("attn_norm", V::MixerNorm),
        Tensor::Matrix("attn_qkv", &[S::AttnQ, S::AttnK, S::AttnV]),
        Tensor::Matrix("attn_output", &[S::AttnOutput]),
        Tensor::LayerNorm("ffn_norm", V::ChannelNorm),
        Tensor::Matrix("ffn_up", &[S::FfnGate, S::FfnUp]),
        Tensor::Matrix("ffn_down", &[S::FfnDown]),
    ]],
    output_norm: EndNorm::Layer("output_norm"),
    embedding_norm: Some(EndNorm::Layer("token_embd_norm")),
    activation: Activation::GeluErf,
    keys: words!(
        "attention.causal attention.sliding_window attention.sliding_window_pattern \
         classifier.pooling_type hidden_activation rope.freq_base_swa"
    ),
    adjust: modern_bert,
    ..Family::PLAIN
};

fn modern_bert<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    not_causal(keys, draft);
    draft.window = keys.size_or("attention.sliding_window", 0)?;
    draft.windows = match Pattern::read(keys, 3, draft.n_block)? {
        Pattern::Period(n) => Pattern::DenseFirst(n),
        other => other,
    };
    if draft.window > 0 {
        draft.window_rope = gemma::window_rope(keys, draft, false)?;
    }
    // llama.cpp's key, which has no name for the tanh approximation.
    match keys.text("activation")? {
        None => read_activation(keys, draft, "hidden_activation"),
        Some(_) => Ok(()),
    }
}

pub(super) static GEMMA_EMBEDDING: Family = Family {
    name: "gemma-embedding",
    layer: gemma::LAYER_WITH_QK_NORMS,
    qk_norm: QkNorm::Head,
    activation: Activation::Gelu,
    keys: words!(
        "attention.causal attention.sliding_window attention.sliding_window_pattern \
         dense_2_feat_in dense_2_feat_out dense_3_feat_in dense_3_feat_out rope.freq_base_swa"
    ),
    adjust: gemma_embedding,
    ..Family::PLAIN
};

fn gemma_embedding<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    draft.config.is_causal = false;
    #[expect(clippy::cast_precision_loss, reason = "widths are below 2^24")]
    let n_embd = draft.config.n_embd as f32;
    draft.config.embedding_scale = sqrt(n_embd);
    draft.window = keys.size("attention.sliding_window")?;
    draft.windows = Pattern::read(keys, 6, draft.n_block)?;
    if draft.window > 0 {
        draft.window_rope = gemma::window_rope(keys, draft, false)?;
    }
    Ok(())
}
