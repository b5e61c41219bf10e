//! Hunyuan: norms of queries and keys after the rotation, and its own rotary base.

use super::attention::ATTENTION;
use super::context::narrow;
use super::description::Description;
use super::keys::{Key, Or};
use super::rope::{RopeTraits, ScalingKind};
use super::rows::{
    self, EXPERTS, NORMS, Row, SWIGLU, block, gated, head_dim, n_embd, n_expert, n_ff, row, sparse,
};
use super::shape::ExpertSizes;
use super::shape::same_of_all;
use super::traits::{Means, Traits, VocabularyTraits, means};
use crate::HfError;
use crate::unread::Neutral;

pub(super) const HUNYUAN: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(ATTENTION),
        block(HUNYUAN_NORMS),
        block(SWIGLU),
    ],
    keys: &[Key::By(|out| write_alpha(out, 50.0))],
    rope: RopeTraits {
        kinds: &[ScalingKind::Alpha],
        ..RopeTraits::PLAIN
    },
    means: HUNYUAN_MEANS,
    vocabulary: VocabularyTraits {
        end_key: Some("eod_token_id"),
        ..VocabularyTraits::PLAIN
    },
    ..Traits::TABLES
};

const HUNYUAN_MEANS: &[Means] = &[
    means("use_qk_norm", Neutral::On),
    means("use_cla", Neutral::Off),
    means("use_mla", Neutral::Off),
    means("group_limited_greedy", Neutral::Off),
    means("moe_layer_num_skipped", Neutral::Off),
    means("norm_type", Neutral::Text(&["rms"])),
];

const HUNYUAN_NORMS: &[Row] = &[
    row("attn_q_norm", "self_attn.query_layernorm", &[head_dim]),
    row("attn_k_norm", "self_attn.key_layernorm", &[head_dim]),
];

/// Hunyuan's base, which alpha raises for a context of 256 Ki tokens that config.json does not mention.
fn write_alpha(out: &mut Description<'_>, default: f64) -> Result<(), HfError> {
    const N_CTX: u32 = 256 << 10;
    let Some(alpha) = out.rope.alpha(default)? else {
        return Ok(());
    };
    out.rope.scaling().number(&["alpha"])?;
    let dim = f64::from(out.shape.head_dim);
    let n_ctx = out.config.count(&["max_position_embeddings"])?;
    let base = out.rope.base();
    if narrow(base).to_bits() != 1e4_f32.to_bits() || ![N_CTX, 32 << 10].contains(&n_ctx) {
        let what =
            format!("is dynamic, with a base of {base} and {n_ctx} tokens, which is not supported");
        return Err(out.config.error(&["rope_scaling type"], &what));
    }
    out.set(
        "rope.freq_base",
        narrow(base * alpha.powf(dim / (dim - 2.0))),
    );
    out.set("rope.scaling.type", "none");
    out.set("rope.scaling.factor", 1_f32);
    out.set("rope.scaling.original_context_length", N_CTX);
    out.set("context_length", N_CTX);
    Ok(())
}

pub(super) const HUNYUAN_MOE: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(ATTENTION),
        block(HUNYUAN_NORMS),
        sparse(
            rows::always,
            &[row("ffn_gate_inp", "mlp.gate.wg", &[n_expert, n_embd])],
            EXPERTS,
        ),
        block(gated!("_shexp", "mlp.shared_mlp", n_ff)),
    ],
    keys: &[
        Key::Count(
            "intermediate_size",
            "expert_shared_feed_forward_length",
            Or::Missing,
        ),
        Key::By(write_hunyuan_experts),
        Key::By(|out| write_alpha(out, 1000.0)),
    ],
    experts: ExpertSizes::Always("moe_intermediate_size"),
    rope: RopeTraits {
        kinds: &[ScalingKind::Alpha],
        ..RopeTraits::PLAIN
    },
    means: HUNYUAN_MEANS,
    ..Traits::TABLES
};

/// Numbers that config.json repeats for each layer.
fn write_hunyuan_experts(out: &mut Description<'_>) -> Result<(), HfError> {
    for (from, to) in [
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("moe_topk", "expert_used_count"),
        ("num_shared_expert", "expert_shared_count"),
    ] {
        let config = out.config;
        let n = match config.find(&[from]) {
            Some(serde_json::Value::Array(_)) => same_of_all(config, from)?,
            _ => config.count(&[from])?,
        };
        out.set(to, n);
    }
    Ok(())
}
