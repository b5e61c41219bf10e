//! Decoders with experts.

use super::Shape;
use super::attention::{ATTENTION, NO_BIAS, WIDE_NORMS, attention};
use super::description::Description;
use super::keys::{Key, MAYBE_EXPERT_WIDTH, Or};
use super::rope::RopeTraits;
use super::rows::{
    EXPERTS, MIXTRAL_EXPERTS, NORMS, Need, ROUTER, Row, always, bare, block, gated, is_sparse,
    n_embd, n_expert, n_ff_exp, n_vocab, one_row, row, sparse,
};
use super::shape::ExpertSizes;
use super::traits::{Traits, means};
use super::windows;
use crate::HfError;
use crate::unread::Neutral;

/// Columns of Qwen's shared expert.
fn n_ff_qwen(shape: &Shape) -> u64 {
    shape.size("shared_expert_intermediate_size")
}

/// The gate that weights the shared expert for each token.
pub(super) const QWEN_GATE: &[Row] = &[row(
    "ffn_gate_inp_shexp",
    "mlp.shared_expert_gate",
    &[one_row, n_embd],
)];

pub(super) const QWEN_SHARED: &[Row] = gated!("_shexp", "mlp.shared_expert", n_ff_qwen);

/// Columns of Qwen's shared expert, if they are given.
const QWEN_SHARED_WIDTH: Key = Key::Count(
    "shared_expert_intermediate_size",
    "expert_shared_feed_forward_length",
    Or::Nothing,
);

/// Keys of the expert widths of Qwen models.
pub(super) const QWEN_EXPERT_KEYS: [Key; 2] = [MAYBE_EXPERT_WIDTH, QWEN_SHARED_WIDTH];

pub(super) const QWEN2_MOE: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(&attention(
            Need::Where(|shape| shape.size("qkv_bias") > 0),
            NO_BIAS,
        )),
        sparse(always, ROUTER, EXPERTS),
        block(QWEN_GATE),
        block(QWEN_SHARED),
    ],
    keys: &[
        MAYBE_EXPERT_WIDTH,
        QWEN_SHARED_WIDTH,
        Key::By(windows::in_early),
    ],
    sizes: &[
        ("shared_expert_intermediate_size", Some(5632)),
        ("qkv_bias", Some(1)),
    ],
    experts: ExpertSizes::Always("moe_intermediate_size"),
    // The engine does not normalise.
    means: &[means("norm_topk_prob", Neutral::Off)],
    ..Traits::TABLES
};

/// Columns of all shared experts together.
pub(super) fn n_ff_shared(shape: &Shape) -> u64 {
    n_ff_exp(shape).saturating_mul(shape.size("n_shared_experts"))
}

/// DeepSeek's router, with the bias added to scores for the choice of experts.
pub(super) const BIASED_ROUTER: &[Row] = &[
    row("ffn_gate_inp", "mlp.gate", &[n_expert, n_embd]),
    bare(
        "exp_probs_b.bias",
        "mlp.gate.e_score_correction_bias",
        &[n_expert],
    )
    .if_there(),
];

/// The shared experts, side by side.
pub(super) const SHARED: &[Row] = gated!("_shexp", "mlp.shared_experts", n_ff_shared);

/// The tensors of an MTP block in addition to a layer's own.
pub(super) const NEXTN: &[Row] = &[
    row(
        "nextn.eh_proj",
        "eh_proj",
        &[n_embd, |shape| 2 * n_embd(shape)],
    ),
    row("nextn.enorm", "enorm", &[n_embd]),
    row("nextn.hnorm", "hnorm", &[n_embd]),
    row("nextn.embed_tokens", "embed_tokens", &[n_vocab, n_embd]).if_there(),
    row(
        "nextn.shared_head_head",
        "shared_head.head",
        &[n_vocab, n_embd],
    )
    .if_there(),
    row("nextn.shared_head_norm", "shared_head.norm", &[n_embd]).if_there(),
];

/// Whether a layer also has shared experts.
pub(super) fn shares(shape: &Shape, layer: u32) -> bool {
    is_sparse(shape, layer) && shape.size("n_shared_experts") > 0
}

pub(super) const MINIMAX_M2: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(ATTENTION),
        block(WIDE_NORMS),
        sparse(
            always,
            &[
                row("ffn_gate_inp", "block_sparse_moe.gate", &[n_expert, n_embd]),
                bare(
                    "exp_probs_b.bias",
                    "block_sparse_moe.e_score_correction_bias",
                    &[n_expert],
                ),
            ],
            MIXTRAL_EXPERTS,
        ),
    ],
    keys: &[
        Key::Count(
            "intermediate_size",
            "expert_feed_forward_length",
            Or::Missing,
        ),
        Key::By(write_rotation),
    ],
    experts: ExpertSizes::Always(""),
    means: &[
        means("use_qk_norm", Neutral::On),
        means("qk_norm_type", Neutral::Text(&["per_layer"])),
        means("use_routing_bias", Neutral::On),
        means("scoring_func", Neutral::Text(&["sigmoid"])),
        means("shared_intermediate_size", Neutral::Off),
        means("attn_type_list", Neutral::Number(1.0)),
    ],
    rope: RopeTraits::of_base(5e6),
    ..Traits::TABLES
};

/// Columns of a head that rotate: a number in published files, a share in files of transformers 5.
fn write_rotation(out: &mut Description<'_>) -> Result<(), HfError> {
    let (config, head_dim) = (out.config, out.shape.head_dim);
    let given = config.maybe_count(&["rotary_dim"])?;
    let share = f64::from(given.unwrap_or(head_dim)) / f64::from(head_dim);
    let n_rot = out.rope.rotated(config, head_dim, share)?;
    if let Some(given) = given.filter(|given| *given != n_rot) {
        let what = format!("is {given}, but partial_rotary_factor gives {n_rot}");
        return Err(config.error(&["rotary_dim"], &what));
    }
    out.set("rope.dimension_count", n_rot);
    Ok(())
}
