//! BERT and RoBERTa: encoders with learned positions, and norms after the residual sums.

use super::labels;
use super::parameters::write_bert;
use super::parts::Model;
use super::rows::{self, Need, row};
use super::tables;
use super::traits::Traits;
use super::wanted::{Change, Slice, Wanted, one, with_bias};
use super::{Family, Kind};

pub(super) const TRAITS: Traits = Traits {
    first,
    layer: layer_tensors,
    write: write_bert,
    head_dim: |_, _| None,
    is_encoder: true,
    activations: GELU,
    ..Traits::LLAMA
};

/// BERT with a scoring head: the pooler and a classifier.
pub(super) const RANK: Traits = Traits {
    head: &[
        row("cls", "pooler.dense", &[rows::n_embd, rows::n_embd])
            .if_there()
            .bias(Need::IfThere),
        row(
            "cls.output",
            "classifier",
            &[labels::n_labels, rows::n_embd],
        )
        .bias(Need::Always),
    ],
    ..TRAITS
};

/// [`RANK`] with RoBERTa's names.
pub(super) const ROBERTA_RANK: Traits = Traits {
    head: &[
        row("cls", "classifier.dense", &[rows::n_embd, rows::n_embd]).bias(Need::Always),
        row(
            "cls.output",
            "classifier.out_proj",
            &[labels::n_labels, rows::n_embd],
        )
        .bias(Need::Always),
    ],
    ..TRAITS
};

/// The names of GELU variants that a GGUF file does not tell apart.
pub(super) const GELU: &[&str] = &[
    "gelu",
    "gelu_new",
    "gelu_pytorch_tanh",
    "gelu_fast",
    "gelu_python",
];

fn first(model: &Model<'_>) -> Vec<Wanted> {
    let shape = model.shape;
    let (n_embd, n_vocab) = (u64::from(shape.n_embd), u64::from(shape.n_vocab));
    let [n_rows, n_skipped, n_types] = shape.positions.map(u64::from);
    let from = "embeddings.";
    let embedding = |name: &str, source: &str, rows| {
        one(name, &format!("{from}{source}.weight"), &[rows, n_embd])
    };
    let mut positions = embedding("position_embd.weight", "position_embeddings", n_rows);
    if n_skipped > 0 {
        positions.shape[0] = n_rows - n_skipped;
        positions.change = Change::Rows(vec![Slice::run(n_skipped, n_rows - n_skipped)]);
    }
    let mut all = vec![
        embedding("token_embd.weight", "word_embeddings", n_vocab),
        positions,
        embedding("token_types.weight", "token_type_embeddings", n_types),
    ];
    all.extend(norm("token_embd_norm", &format!("{from}LayerNorm"), n_embd));
    tables::add_head(model, &mut all);
    all
}

fn layer_tensors(model: &Model<'_>, layer: u32, all: &mut Vec<Wanted>) {
    let shape = model.shape;
    let (to, from) = (format!("blk.{layer}."), format!("encoder.layer.{layer}."));
    let (n_embd, n_ff) = (u64::from(shape.n_embd), u64::from(shape.n_ff));
    for (name, source, rows, columns) in [
        ("attn_q", "attention.self.query", n_embd, n_embd),
        ("attn_k", "attention.self.key", n_embd, n_embd),
        ("attn_v", "attention.self.value", n_embd, n_embd),
        ("attn_output", "attention.output.dense", n_embd, n_embd),
        ("ffn_up", "intermediate.dense", n_ff, n_embd),
        ("ffn_down", "output.dense", n_embd, n_ff),
    ] {
        let (name, source) = (format!("{to}{name}"), format!("{from}{source}"));
        all.extend(with_bias(&name, &source, &[rows, columns]));
    }
    for (name, source) in [
        ("attn_output_norm", "attention.output.LayerNorm"),
        ("layer_output_norm", "output.LayerNorm"),
    ] {
        let (name, source) = (format!("{to}{name}"), format!("{from}{source}"));
        all.extend(norm(&name, &source, n_embd));
    }
}

fn norm(name: &str, source: &str, n_embd: u64) -> [Wanted; 2] {
    with_bias(name, source, &[n_embd])
}

/// A tensor's name without the encoder's prefix, with the suffixes of weights and biases that all but the oldest files
/// use. `None` for the heads of other tasks, which an encoder does not need.
pub(crate) fn plain_name(family: &Family, name: &str) -> Option<String> {
    let prefixes = ["bert.", "roberta."];
    let inner = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
    let inner = inner.unwrap_or(name);
    // BERT's scoring head starts with its pooler.
    let scores = family.kind == Kind::Bert && !family.traits.head.is_empty();
    let heads = ["cls.", "lm_head.", "pooler."];
    let heads = &heads[..if scores { 2 } else { 3 }];
    if heads.iter().any(|head| inner.starts_with(head)) {
        return None;
    }
    let gamma = inner
        .strip_suffix(".gamma")
        .map(|rest| format!("{rest}.weight"));
    let beta = || {
        inner
            .strip_suffix(".beta")
            .map(|rest| format!("{rest}.bias"))
    };
    Some(gamma.or_else(beta).unwrap_or_else(|| inner.into()))
}
