//! Encoders with rotary embeddings and norms before their layers: ModernBERT, EuroBERT, EmbeddingGemma.

use super::Shape;
use super::attention::{ATTENTION, HEAD_NORMS, NO_BIAS};
use super::context::narrow;
use super::description::Description;
use super::keys::{Key, N_VOCAB, Or, Said, UNSCALED};
use super::labels;
use super::mixers::{self, Mixer, only_every};
use super::pooling;
use super::rope::{RopeTraits, WindowBase};
use super::rows::{NORMS, Need, Row, SWIGLU, block, block_when, n_embd, n_ff, n_vocab, row};
use super::shape::HeadDim;
use super::traits::{Traits, VocabularyTraits, means, must_say};
use crate::HfError;
use crate::unread::Neutral;
use sluice::file::MetaValue;

/// The common traits of encoders.
pub(super) const ENCODER: Traits = Traits {
    is_encoder: true,
    rope: RopeTraits::of_base(0.0),
    ..Traits::TABLES
};

pub(super) fn three(shape: &Shape) -> u64 {
    3 * n_embd(shape)
}

pub(super) fn two_ff(shape: &Shape) -> u64 {
    2 * n_ff(shape)
}

/// Writes that attention is not causal, the pooling mode, and the labels of a scoring head.
pub(super) fn write_encoder(out: &mut Description<'_>) -> Result<(), HfError> {
    out.set("attention.causal", false);
    write_pooling(out)?;
    labels::write(out);
    if let Some(n) = out.config.maybe_count(&["type_vocab_size"])? {
        out.header.set("tokenizer.ggml.token_type_count", n);
    }
    Ok(())
}

fn write_pooling(out: &mut Description<'_>) -> Result<(), HfError> {
    pooling::write(out)?;
    let config = out.config;
    let Some(pooling) = config.str("classifier_pooling") else {
        return Ok(());
    };
    let number = match pooling {
        "mean" => 1_u32,
        "cls" => 2,
        _ => {
            let what = format!("is {pooling:?}; GGUF supports only mean and cls");
            return Err(config.error(&["classifier_pooling"], &what));
        }
    };
    out.set("classifier.pooling_type", number);
    Ok(())
}

const MODERN_GLOBALS: &[Row] = &[
    row(
        "token_embd",
        "embeddings.tok_embeddings",
        &[n_vocab, n_embd],
    ),
    row("token_embd_norm", "embeddings.norm", &[n_embd]),
    row("output_norm", "final_norm", &[n_embd]),
];

pub(super) const MODERN_BERT: Traits = Traits {
    globals: MODERN_GLOBALS,
    vocabulary: VocabularyTraits::with_flags(&[
        ("add_bos_token", true),
        ("add_eos_token", true),
        ("add_sep_token", true),
    ]),
    layers: "layers.",
    blocks: &[
        // The embedding's norm replaces the first layer's.
        block_when(
            |_, layer| layer > 0,
            &[row("attn_norm", "attn_norm", &[n_embd])],
        ),
        block(&[
            row("attn_qkv", "attn.Wqkv", &[three, n_embd]),
            row("attn_output", "attn.Wo", &[n_embd, n_embd]),
            row("ffn_norm", "mlp_norm", &[n_embd]),
            row("ffn_up", "mlp.Wi", &[two_ff, n_embd]),
            row("ffn_down", "mlp.Wo", &[n_embd, n_ff]),
        ]),
    ],
    keys: &[
        Key::By(write_encoder),
        Key::Count("local_attention", "attention.sliding_window", Or::Missing),
        Key::By(write_global_layers),
        UNSCALED,
        N_VOCAB,
        Key::By(|out| {
            // llama.cpp's key, then the one of all encoders.
            let name = out.config.str("hidden_activation");
            if let Some(name) = name {
                out.set("hidden_activation", name);
            }
            out.set("activation", name.unwrap_or("gelu"));
            Ok(())
        }),
    ],
    mixers: |_, _| Ok(Vec::new()),
    activations: &["gelu", "silu"],
    means: &[
        means("norm_bias", Neutral::Off),
        // Ignored: the layers use rotary embeddings.
        means("position_embedding_type", Neutral::Text(&["absolute"])),
        means("classifier_activation", Neutral::Text(&["gelu"])),
    ],
    rope: RopeTraits {
        window: WindowBase::IfGiven,
        ..RopeTraits::of_base(160_000.0)
    },
    rename: |name| {
        let name = name.strip_prefix("model.").unwrap_or(name);
        let is_left_out = name.starts_with("head.") || name.starts_with("decoder.");
        (!is_left_out).then(|| name.into())
    },
    ..ENCODER
};

/// Which layers see the whole text: the first of every few, or those that transformers 5 lists.
fn write_global_layers(out: &mut Description<'_>) -> Result<(), HfError> {
    const KEY: &str = "attention.sliding_window_pattern";
    let n_layer = out.shape.n_layer;
    let period = out.config.maybe_count(&["global_attn_every_n_layers"])?;
    let has_window: Vec<_> = (0..n_layer)
        .map(|layer| layer % period.unwrap_or(3) > 0)
        .collect();
    let listed = mixers::listed(out.config, n_layer)?;
    let listed: Vec<_> = listed.iter().map(|mixer| *mixer == Mixer::Window).collect();
    if !listed.is_empty() && listed != has_window {
        out.set(KEY, MetaValue::bools(&listed));
    } else if let Some(period) = period {
        out.set(KEY, period);
    }
    Ok(())
}

/// ModernBERT with a scoring head.
pub(super) const MODERN_BERT_RANK: Traits = Traits {
    head: &[
        row("cls", "head.dense", &[n_embd, n_embd])
            .bias(Need::Where(|shape| shape.size("classifier_bias") > 0)),
        row("cls.norm", "head.norm", &[n_embd]).bias(NO_BIAS),
        row("cls.output", "classifier", &[labels::n_labels, n_embd]).bias(Need::Always),
    ],
    rename: |name| Some(name.strip_prefix("model.").unwrap_or(name).into()),
    sizes: &[("classifier_bias", Some(0))],
    defaults: r#"{"classifier_pooling": "cls"}"#,
    ..MODERN_BERT
};

pub(super) const EUROBERT: Traits = Traits {
    globals: HEADLESS,
    vocabulary: VocabularyTraits::with_flags(&[("add_bos_token", false)]),
    blocks: &[block(NORMS), block(ATTENTION), block(SWIGLU)],
    keys: &[
        Key::Always("attention.causal", Said::Flag(false)),
        UNSCALED,
        Key::By(|out| {
            // About a classifier, which the class does not have.
            let _unused = out.config.find(&["classifier_pooling"]);
            pooling::write(out)
        }),
    ],
    rope: RopeTraits::of_base(10_000.0),
    ..ENCODER
};

pub(super) const GEMMA_EMBEDDING: Traits = Traits {
    globals: HEADLESS,
    head: &[
        row(
            "dense_2",
            "dense_2.linear",
            &[|shape| dense(shape, 0).1, |shape| dense(shape, 0).0],
        )
        .need(Need::Unless(|shape| dense(shape, 0).0 == 0)),
        row(
            "dense_3",
            "dense_3.linear",
            &[|shape| dense(shape, 1).1, |shape| dense(shape, 1).0],
        )
        .need(Need::Unless(|shape| dense(shape, 1).0 == 0)),
    ],
    blocks: &[
        block(&[
            row("attn_norm", "input_layernorm", &[n_embd]),
            row("post_attention_norm", "post_attention_layernorm", &[n_embd]),
            row("ffn_norm", "pre_feedforward_layernorm", &[n_embd]),
            row("post_ffw_norm", "post_feedforward_layernorm", &[n_embd]),
        ]),
        block(ATTENTION),
        block(HEAD_NORMS),
        block(SWIGLU),
    ],
    keys: &[
        Key::Count("sliding_window", "attention.sliding_window", Or::Missing),
        Key::By(write_dense),
        Key::By(write_pooling),
    ],
    mixers: |config, n_layer| only_every(6, config, n_layer),
    head_dim: HeadDim::Of(256),
    norms_add_one: true,
    activations: &["gelu_pytorch_tanh"],
    means: &[
        must_say("use_bidirectional_attention", Neutral::On),
        means("sliding_window_pattern", Neutral::Number(6.0)),
        means("_sliding_window_pattern", Neutral::Number(6.0)),
    ],
    is_encoder: true,
    is_tied: true,
    rope: RopeTraits {
        window: WindowBase::IfGiven,
        ..RopeTraits::of_base(1e6)
    },
    ..Traits::TABLES
};

const HEADLESS: &[Row] = &[
    row("token_embd", "model.embed_tokens", &[n_vocab, n_embd]),
    row("output_norm", "model.norm", &[n_embd]),
];

/// Input and output size of a matrix after the pooling.
fn dense(shape: &Shape, place: usize) -> (u64, u64) {
    let name = ["dense_2", "dense_3"][place];
    let found = shape.dense.iter().find(|dense| dense.name == name);
    found.map_or((0, 0), |dense| (dense.n_in.into(), dense.n_out.into()))
}

fn write_dense(out: &mut Description<'_>) -> Result<(), HfError> {
    let config = out.config;
    let head_dim = f64::from(out.shape.head_dim);
    let scale = config
        .maybe_number(&["query_pre_attn_scalar"])?
        .unwrap_or(256.0);
    if narrow(scale).to_bits() != narrow(head_dim).to_bits() {
        let what = format!("is {scale}, but gemma-embedding in GGUF implies {head_dim}");
        return Err(config.error(&["query_pre_attn_scalar"], &what));
    }
    for dense in &out.shape.dense {
        out.set(&format!("{}_feat_in", dense.name), dense.n_in);
        out.set(&format!("{}_feat_out", dense.name), dense.n_out);
    }
    Ok(())
}
