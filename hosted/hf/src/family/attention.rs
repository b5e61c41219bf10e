//! Rows of attention: its matrices and their biases, and norms of queries and keys.

use super::Shape;
use super::rows::{Need, Row, head_dim, n_embd, n_kv, n_q, row};
use super::wanted::Change;

pub(super) const ATTENTION_BIAS: Need = Need::Where(has_attention_bias);

/// A bias that the class in transformers never has.
pub(super) const NO_BIAS: Need = Need::Where(|_| false);

pub(super) const ATTENTION: &[Row] = &attention(ATTENTION_BIAS, ATTENTION_BIAS);

/// [`ATTENTION`] of classes whose output matrix never has a bias.
pub(super) const ATTENTION_IN: &[Row] = &attention(ATTENTION_BIAS, NO_BIAS);

/// Attention with these biases of queries, keys and values, and of the output.
pub(super) const fn attention(bias: Need, of_output: Need) -> [Row; 4] {
    [
        row("attn_q", "self_attn.q_proj", &[n_q, n_embd]).bias(bias),
        row("attn_k", "self_attn.k_proj", &[n_kv, n_embd]).bias(bias),
        row("attn_v", "self_attn.v_proj", &[n_kv, n_embd]).bias(bias),
        row("attn_output", "self_attn.o_proj", &[n_embd, n_q]).bias(of_output),
    ]
}

/// [`ATTENTION`] with the rows of each query and key head in pairs.
pub(super) const PAIRED_ATTENTION: &[Row] = &[
    row("attn_q", "self_attn.q_proj", &[n_q, n_embd])
        .bias(ATTENTION_BIAS)
        .changed(|shape| Change::PairRows(shape.n_head)),
    row("attn_k", "self_attn.k_proj", &[n_kv, n_embd])
        .bias(ATTENTION_BIAS)
        .changed(|shape| Change::PairRows(shape.n_head_kv)),
    row("attn_v", "self_attn.v_proj", &[n_kv, n_embd]).bias(ATTENTION_BIAS),
    row("attn_output", "self_attn.o_proj", &[n_embd, n_q]).bias(ATTENTION_BIAS),
];

/// Norms of each head's queries and keys.
pub(super) const HEAD_NORMS: &[Row] = &[
    row("attn_q_norm", "self_attn.q_norm", &[head_dim]),
    row("attn_k_norm", "self_attn.k_norm", &[head_dim]),
];

/// Norms of all queries and keys.
pub(super) const WIDE_NORMS: &[Row] = &[
    row("attn_q_norm", "self_attn.q_norm", &[n_q]),
    row("attn_k_norm", "self_attn.k_norm", &[n_kv]),
];

const fn has_attention_bias(shape: &Shape) -> bool {
    shape.has_attention_bias
}
