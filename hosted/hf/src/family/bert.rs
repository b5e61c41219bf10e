//! BERT and RoBERTa: encoders with learned positions, and norms after the residual sums.

use super::Shape;
use super::context::epsilon;
use super::description::Description;
use super::encoders::{ENCODER, write_encoder};
use super::keys::Key;
use super::labels;
use super::rows::{Need, block, n_embd, n_ff, n_vocab, row, run};
use super::traits::Traits;
use super::wanted::Change;
use crate::HfError;
use sluice_core::kernels::words;

pub(super) const BERT: Traits = Traits {
    globals: &[
        row(
            "token_embd",
            "embeddings.word_embeddings",
            &[n_vocab, n_embd],
        ),
        row(
            "position_embd",
            "embeddings.position_embeddings",
            &[n_positions, n_embd],
        )
        .of(
            &[|shape| shape.positions[0].into(), n_embd],
            |shape| match shape.positions[1] {
                0 => Change::None,
                n_skipped => run(n_skipped.into(), n_positions(shape)),
            },
        ),
        row(
            "token_types",
            "embeddings.token_type_embeddings",
            &[|shape| shape.positions[2].into(), n_embd],
        ),
        row("token_embd_norm", "embeddings.LayerNorm", &[n_embd]).bias(Need::Always),
    ],
    layers: "encoder.layer.",
    blocks: &[block(&[
        row("attn_q", "attention.self.query", &[n_embd, n_embd]).bias(Need::Always),
        row("attn_k", "attention.self.key", &[n_embd, n_embd]).bias(Need::Always),
        row("attn_v", "attention.self.value", &[n_embd, n_embd]).bias(Need::Always),
        row("attn_output", "attention.output.dense", &[n_embd, n_embd]).bias(Need::Always),
        row("ffn_up", "intermediate.dense", &[n_ff, n_embd]).bias(Need::Always),
        row("ffn_down", "output.dense", &[n_embd, n_ff]).bias(Need::Always),
        row("attn_output_norm", "attention.output.LayerNorm", &[n_embd]).bias(Need::Always),
        row("layer_output_norm", "output.LayerNorm", &[n_embd]).bias(Need::Always),
    ])],
    rename: |name| plain_name(name, &["cls.", "lm_head.", "pooler."]),
    keys: &[
        Key::By(write_positions),
        Key::By(write_encoder),
        Key::By(write_types),
        Key::By(write_gelu),
    ],
    activations: GELU,
    ..ENCODER
};

/// BERT with a scoring head: the pooler and a classifier.
pub(super) const BERT_RANK: Traits = Traits {
    head: &[
        row("cls", "pooler.dense", &[n_embd, n_embd])
            .if_there()
            .bias(Need::IfThere),
        row("cls.output", "classifier", &[labels::n_labels, n_embd]).bias(Need::Always),
    ],
    rename: |name| plain_name(name, &["cls.", "lm_head."]),
    ..BERT
};

/// [`BERT_RANK`] with RoBERTa's names.
pub(super) const ROBERTA_RANK: Traits = Traits {
    head: &[
        row("cls", "classifier.dense", &[n_embd, n_embd]).bias(Need::Always),
        row(
            "cls.output",
            "classifier.out_proj",
            &[labels::n_labels, n_embd],
        )
        .bias(Need::Always),
    ],
    ..BERT
};

/// config.json's names of GELU: by the error function, and its tanh approximation.
pub(super) const GELU: &[&str] = words!("gelu gelu_python gelu_new gelu_pytorch_tanh gelu_fast");

/// Writes which GELU the encoder computes, by the one name of each that the engine knows. Absent, it is the classes' own.
pub(super) fn write_gelu(out: &mut Description<'_>) -> Result<(), HfError> {
    let name = out.config.str("hidden_act").unwrap_or("gelu");
    let is_exact = ["gelu", "gelu_python"].contains(&name);
    out.set(
        "activation",
        if is_exact {
            "gelu"
        } else {
            "gelu_pytorch_tanh"
        },
    );
    Ok(())
}

fn n_positions(shape: &Shape) -> u64 {
    let [n_rows, n_skipped, _] = shape.positions;
    u64::from(n_rows - n_skipped)
}

fn write_positions(out: &mut Description<'_>) -> Result<(), HfError> {
    out.set_size("context_length", n_positions(out.shape));
    let epsilon = epsilon(out.config, &["layer_norm_eps"], 1e-12)?;
    out.set("attention.layer_norm_epsilon", epsilon);
    Ok(())
}

fn write_types(out: &mut Description<'_>) -> Result<(), HfError> {
    let [_, _, n_types] = out.shape.positions;
    out.header.set("tokenizer.ggml.token_type_count", n_types);
    Ok(())
}

/// A tensor's name without the encoder's prefix, with the suffixes of weights and biases that all but the oldest files
/// use. `None` for the heads of other tasks, which an encoder does not need.
fn plain_name(name: &str, heads: &[&str]) -> Option<String> {
    let prefixes = ["bert.", "roberta."];
    let inner = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
    let inner = inner.unwrap_or(name);
    if heads.iter().any(|head| inner.starts_with(head)) {
        return None;
    }
    let renamed = |old, new| Some(format!("{}{new}", inner.strip_suffix(old)?));
    let renamed = renamed(".gamma", ".weight").or_else(|| renamed(".beta", ".bias"));
    Some(renamed.unwrap_or_else(|| inner.into()))
}
