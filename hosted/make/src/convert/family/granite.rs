//! Granite: Llama with four factors, with or without experts.

use super::Shape;
use super::keys::{Key, Or};
use super::rows::{
    NORMS, PAIRED_ATTENTION, Row, SWIGLU, Size, block, block_when, n_embd, n_expert, n_ff_exp,
    of_each, row, run,
};
use super::traits::{ExpertSizes, Traits};

/// The four factors of Granite.
pub(super) const GRANITE_SCALES: [Key; 4] = [
    Key::Number("attention_multiplier", "attention.scale", Or::Default(1.0)),
    Key::Number("embedding_multiplier", "embedding_scale", Or::Default(1.0)),
    Key::Number("residual_multiplier", "residual_scale", Or::Default(1.0)),
    Key::Number("logits_scaling", "logit_scale", Or::Default(1.0)),
];

pub(super) const GRANITE: Traits = Traits {
    blocks: &[block(NORMS), block(PAIRED_ATTENTION), block(SWIGLU)],
    keys: &GRANITE_SCALES,
    hides_head_dim: true,
    ..Traits::LLAMA_TABLES
};

/// Columns of Granite's shared expert.
pub(super) fn n_ff_granite(shape: &Shape) -> u64 {
    shape.size("shared_intermediate_size")
}

fn two_granite(shape: &Shape) -> u64 {
    2 * n_ff_granite(shape)
}

fn two_exp(shape: &Shape) -> u64 {
    2 * n_ff_exp(shape)
}

pub(super) const GRANITE_MOE: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(PAIRED_ATTENTION),
        block(GRANITE_EXPERTS),
        block_when(|shape, _| n_ff_granite(shape) > 0, GRANITE_SHARED),
    ],
    keys: &{
        let [a, b, c, d] = GRANITE_SCALES;
        [a, b, c, d, GRANITE_SHARED_KEY]
    },
    sizes: &[("shared_intermediate_size", Some(0))],
    experts: ExpertSizes::Always(""),
    stacks_experts: true,
    hides_head_dim: true,
    ..Traits::LLAMA_TABLES
};

pub(super) const GRANITE_SHARED_KEY: Key = Key::Count(
    "shared_intermediate_size",
    "expert_shared_feed_forward_length",
    Or::Nothing,
);

/// Gates, then ups, of every expert in one tensor.
pub(super) const GRANITE_EXPERTS: &[Row] = &[
    row(
        "ffn_gate_inp",
        "block_sparse_moe.router.layer",
        &[n_expert, n_embd],
    ),
    row("ffn_gate_exps", "block_sparse_moe.input_linear", EXPERT_UP).of(GATES_AND_UPS, |shape| {
        of_each(n_expert(shape), [0, n_ff_exp(shape)], two_exp(shape))
    }),
    row("ffn_up_exps", "block_sparse_moe.input_linear", EXPERT_UP).of(GATES_AND_UPS, |shape| {
        of_each(n_expert(shape), [n_ff_exp(shape); 2], two_exp(shape))
    }),
    row(
        "ffn_down_exps",
        "block_sparse_moe.output_linear",
        &[n_expert, n_embd, n_ff_exp],
    ),
];

const EXPERT_UP: &[Size] = &[n_expert, n_ff_exp, n_embd];

const GATES_AND_UPS: &[Size] = &[n_expert, two_exp, n_embd];

pub(super) const GRANITE_SHARED: &[Row] = &[
    row(
        "ffn_gate_shexp",
        "shared_mlp.input_linear",
        &[n_ff_granite, n_embd],
    )
    .of(&[two_granite, n_embd], |shape| run(0, n_ff_granite(shape))),
    row(
        "ffn_up_shexp",
        "shared_mlp.input_linear",
        &[n_ff_granite, n_embd],
    )
    .of(&[two_granite, n_embd], |shape| {
        run(n_ff_granite(shape), n_ff_granite(shape))
    }),
    row(
        "ffn_down_shexp",
        "shared_mlp.output_linear",
        &[n_embd, n_ff_granite],
    ),
];

/// The shared expert of a model that has no others is its feed-forward network.
pub(super) const GRANITE_DENSE: &[Row] = &[
    row(
        "ffn_gate",
        "shared_mlp.input_linear",
        &[n_ff_granite, n_embd],
    )
    .of(&[two_granite, n_embd], |shape| run(0, n_ff_granite(shape))),
    row("ffn_up", "shared_mlp.input_linear", &[n_ff_granite, n_embd])
        .of(&[two_granite, n_embd], |shape| {
            run(n_ff_granite(shape), n_ff_granite(shape))
        }),
    row(
        "ffn_down",
        "shared_mlp.output_linear",
        &[n_embd, n_ff_granite],
    ),
];
