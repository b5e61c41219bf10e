//! ERNIE 4.5, with or without experts.

use super::Shape;
use super::attention::ATTENTION;
use super::description::Description;
use super::keys::{Key, MAYBE_EXPERT_WIDTH, Or};
use super::rope::RopeTraits;
use super::rows::{
    Experts, NORMS, Row, SWIGLU, bare, block, block_when, gated, n_embd, n_expert, n_ff_exp,
    one_row, row, sparse,
};
use super::shape::{ExpertSizes, Nextn};
use super::traits::{Traits, VocabularyTraits, means};
use crate::HfError;
use crate::unread::Neutral;

pub(super) const ERNIE: Traits = Traits {
    blocks: &[block(NORMS), block(ATTENTION), block(SWIGLU)],
    vocabulary: VocabularyTraits {
        has_space_flag: true,
        ..VocabularyTraits::PLAIN
    },
    is_tied: true,
    rope: RopeTraits::of_base(5e5),
    ..Traits::TABLES
};

pub(super) const ERNIE_MOE: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(ATTENTION),
        block_when(|shape, layer| !is_ernie_sparse(shape, layer), SWIGLU),
        sparse(is_ernie_sparse, ERNIE_ROUTER, ERNIE_EXPERTS),
        block_when(
            |shape, layer| {
                is_ernie_sparse(shape, layer) && shape.size("moe_num_shared_experts") > 0
            },
            ERNIE_SHARED,
        ),
    ],
    keys: &[
        Key::Count("moe_num_experts", "expert_count", Or::Missing),
        Key::Count("moe_k", "expert_used_count", Or::Missing),
        Key::Count(
            "moe_layer_interval",
            "interleave_moe_layer_step",
            Or::Default(1),
        ),
        Key::Count(
            "moe_layer_start_index",
            "leading_dense_block_count",
            Or::Missing,
        ),
        MAYBE_EXPERT_WIDTH,
        Key::Count("moe_num_shared_experts", "expert_shared_count", Or::Nothing),
        Key::By(write_ernie_shared),
    ],
    sizes: &[
        ("moe_layer_start_index", None),
        ("moe_layer_interval", Some(1)),
        ("moe_num_shared_experts", Some(0)),
    ],
    experts: ExpertSizes::Always("moe_intermediate_size"),
    means: &[means("moe_norm_min", Neutral::Number(1e-12))],
    nextn: Nextn::Dropped,
    other_parts: &[
        "mtp_block.",
        "mtp_emb_norm.",
        "mtp_hidden_norm.",
        "mtp_linear_proj.",
    ],
    ..ERNIE
};

fn is_ernie_sparse(shape: &Shape, layer: u32) -> bool {
    let interval = shape.size("moe_layer_interval").max(1);
    let layer = u64::from(layer);
    layer >= shape.size("moe_layer_start_index") && (layer + 1).is_multiple_of(interval)
}

const ERNIE_ROUTER: &[Row] = &[
    row("ffn_gate_inp", "mlp.gate", &[n_expert, n_embd]),
    bare(
        "exp_probs_b.bias",
        "mlp.moe_statics.e_score_correction_bias",
        &[one_row, n_expert],
    )
    .if_there(),
];

const ERNIE_EXPERTS: Experts = Experts {
    from: "mlp.experts",
    parts: &[
        ("gate", "gate_proj"),
        ("up", "up_proj"),
        ("down", "down_proj"),
    ],
    width: n_embd,
    may_be_turned: false,
};

fn n_ff_ernie(shape: &Shape) -> u64 {
    n_ff_exp(shape).saturating_mul(shape.size("moe_num_shared_experts"))
}

const ERNIE_SHARED: &[Row] = gated!("_shexp", "mlp.shared_experts", n_ff_ernie);

/// The total width of the shared experts. llama.cpp's converter computes it from other values.
fn write_ernie_shared(out: &mut Description<'_>) -> Result<(), HfError> {
    let (config, shape) = (out.config, out.shape);
    let end = config
        .find(&["moe_layer_end_index"])
        .and_then(serde_json::Value::as_i64);
    if end.is_some_and(|end| end >= 0 && end + 1 < i64::from(shape.n_layer)) {
        let what = "ends before the last layer, which ernie4_5-moe in GGUF cannot express";
        return Err(config.error(&["moe_layer_end_index"], what));
    }
    if shape.size("moe_num_shared_experts") > 0 {
        out.set_size("expert_shared_feed_forward_length", n_ff_ernie(shape));
    }
    Ok(())
}
