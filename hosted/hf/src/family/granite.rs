//! Granite: Llama with four scaling factors, with or without experts.

use super::Shape;
use super::attention::PAIRED_ATTENTION;
use super::description::Description;
use super::keys::{Key, Or, write_windows};
use super::mixers::{self, Mixer};
use super::rows::{
    NORMS, Row, SWIGLU, Size, bare, block, block_when, n_embd, n_expert, n_ff_exp, n_head, of_each,
    row, run,
};
use super::shape::{ExpertSizes, HeadDim};
use super::traits::Traits;
use crate::HfError;
use sluice::file::MetaValue;

/// Granite's four scaling factors.
pub(super) const GRANITE_SCALES: [Key; 4] = [
    Key::Number("attention_multiplier", "attention.scale", Or::Default(1.0)),
    Key::Number("embedding_multiplier", "embedding_scale", Or::Default(1.0)),
    Key::Number("residual_multiplier", "residual_scale", Or::Default(1.0)),
    Key::Number("logits_scaling", "logit_scale", Or::Default(1.0)),
];

pub(super) const GRANITE: Traits = Traits {
    blocks: &[block(NORMS), block(PAIRED_ATTENTION), block(SWIGLU)],
    keys: &GRANITE_SCALES,
    head_dim: HeadDim::Hidden,
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
    head_dim: HeadDim::Hidden,
    ..Traits::LLAMA_TABLES
};

pub(super) const GRANITE_SHARED_KEY: Key = Key::Count(
    "shared_intermediate_size",
    "expert_shared_feed_forward_length",
    Or::Nothing,
);

/// The gate and up matrices of every expert in one tensor, gates first.
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

/// A network whose gates and ups are one matrix in the folder, gates first.
macro_rules! fused {
    ($end:literal) => {
        &[
            row(
                concat!("ffn_gate", $end),
                "shared_mlp.input_linear",
                &[n_ff_granite, n_embd],
            )
            .of(&[two_granite, n_embd], |shape| run(0, n_ff_granite(shape))),
            row(
                concat!("ffn_up", $end),
                "shared_mlp.input_linear",
                &[n_ff_granite, n_embd],
            )
            .of(&[two_granite, n_embd], |shape| {
                run(n_ff_granite(shape), n_ff_granite(shape))
            }),
            row(
                concat!("ffn_down", $end),
                "shared_mlp.output_linear",
                &[n_embd, n_ff_granite],
            ),
        ]
    };
}

pub(super) const GRANITE_SHARED: &[Row] = fused!("_shexp");

/// Without routed experts, the shared expert is the feed-forward network.
pub(super) const GRANITE_DENSE: &[Row] = fused!("");

pub(super) const GRANITE_SWA: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(PAIRED_ATTENTION),
        block(SINKS),
        block(SWIGLU),
    ],
    keys: &{
        let [a, b, c, d] = GRANITE_SCALES;
        [
            a,
            b,
            c,
            d,
            WINDOW,
            Key::By(write_windows),
            Key::By(write_turning),
        ]
    },
    mixers: |config, n_layer| {
        let listed = mixers::listed(config, n_layer)?;
        let by_period = (0..n_layer).map(|layer| match layer % 4 {
            0 => Mixer::Full,
            _ => Mixer::Window,
        });
        Ok(match listed.is_empty() {
            true => by_period.collect(),
            false => listed,
        })
    },
    is_tied: true,
    head_dim: HeadDim::Hidden,
    ..Traits::LLAMA_TABLES
};

const WINDOW: Key = Key::Count(
    "sliding_window",
    "attention.sliding_window",
    Or::Default(128),
);

const SINKS: &[Row] = &[bare("attn_sinks.weight", "self_attn.sinks", &[n_head])];

pub(super) const GRANITE_MOE_SWA: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(PAIRED_ATTENTION),
        block(SINKS),
        block(&[
            row(
                "ffn_gate_inp",
                "block_sparse_moe.router",
                &[n_expert, n_embd],
            ),
            bare(
                "ffn_down_exps.weight",
                "block_sparse_moe.experts.down_proj",
                &[n_expert, n_embd, n_ff_exp],
            ),
            bare(
                "ffn_gate_up_exps.weight",
                "block_sparse_moe.experts.gate_up_proj",
                GATES_AND_UPS,
            ),
        ]),
        block_when(
            |shape, _| n_ff_granite(shape) > 0,
            &[
                row(
                    "ffn_up_shexp",
                    "shared_mlp.input_linear",
                    &[two_granite, n_embd],
                ),
                row(
                    "ffn_down_shexp",
                    "shared_mlp.output_linear",
                    &[n_embd, n_ff_granite],
                ),
            ],
        ),
    ],
    keys: &{
        let [a, b, c, d] = GRANITE_SCALES;
        let (windows, turning) = (Key::By(write_windows), Key::By(write_turning));
        [a, b, c, d, WINDOW, windows, turning, GRANITE_SHARED_KEY]
    },
    sizes: &[("shared_intermediate_size", Some(0))],
    experts: ExpertSizes::Always(""),
    is_tied: false,
    ..GRANITE_SWA
};

/// Which layers rotate queries and keys: those with a base above 0. `no_rope_layers` is the key of folders from before
/// transformers had the class, which ignores it.
fn write_turning(out: &mut Description<'_>) -> Result<(), HfError> {
    let (config, n_layer) = (out.config, out.shape.n_layer);
    let bases = config.numbers("layer_rope_theta")?;
    let own = out.rope.freq_base.to_bits();
    if let Some(base) = bases
        .iter()
        .flatten()
        .find(|base| **base > 0.0 && base.to_bits() != own)
    {
        let what = format!("has {base}, but granite_swa in GGUF has one base for all layers");
        return Err(config.error(&["layer_rope_theta"], &what));
    }
    let is_above_0 = |list: &Vec<f32>| list.iter().map(|number| *number > 0.0).collect();
    let turns: Option<Vec<bool>> = bases.as_ref().map(is_above_0);
    if let Some(turns) = &turns {
        mixers::check_len(config, "layer_rope_theta", turns.len(), n_layer)?;
        out.set("attention.rope_pattern", MetaValue::bools(turns));
    }
    let flags: Option<Vec<bool>> = config.numbers("no_rope_layers")?.as_ref().map(is_above_0);
    let turns = turns.unwrap_or_else(|| vec![true; n_layer as usize]);
    if flags.is_some_and(|flags| flags != turns) {
        let what = "differs from layer_rope_theta, which alone counts in transformers (0 for a layer without rotation)";
        return Err(config.error(&["no_rope_layers"], what));
    }
    Ok(())
}
