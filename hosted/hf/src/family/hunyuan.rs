//! Hunyuan: norms of queries and keys after the rotation, and its own rotary base.

use super::context::narrow;
use super::keys::{Key, Or};
use super::parts::Parts;
use super::rows::{
    self, ATTENTION, EXPERTS, NORMS, Row, SWIGLU, block, head_dim, n_embd, n_expert, n_ff, row,
    sparse,
};
use super::shape::ExpertSizes;
use super::shape::same_of_all;
use super::traits::{Means, Traits, VocabularyTraits, means};
use crate::HfError;
use crate::unread::Neutral;
use sluice::file::GgufHeader;

pub(super) const HUNYUAN: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(ATTENTION),
        block(HUNYUAN_NORMS),
        block(SWIGLU),
    ],
    keys: &[Key::By(|header, parts, _| write_alpha(header, parts, 50.0))],
    has_alpha_rope: true,
    means: HUNYUAN_MEANS,
    vocabulary: VocabularyTraits {
        end_key: Some("eod_token_id"),
        ..VocabularyTraits::PLAIN
    },
    ..Traits::TABLES
};

pub(super) const HUNYUAN_MEANS: &[Means] = &[
    means("use_qk_norm", Neutral::On),
    means("use_cla", Neutral::Off),
    means("use_mla", Neutral::Off),
    means("group_limited_greedy", Neutral::Off),
    means("moe_layer_num_skipped", Neutral::Off),
    means("norm_type", Neutral::Text(&["rms"])),
];

pub(super) const HUNYUAN_NORMS: &[Row] = &[
    row("attn_q_norm", "self_attn.query_layernorm", &[head_dim]),
    row("attn_k_norm", "self_attn.key_layernorm", &[head_dim]),
];

/// Hunyuan's base, which alpha raises for a context of 256 Ki tokens that config.json does not mention.
pub(super) fn write_alpha(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    default: f64,
) -> Result<(), HfError> {
    const N_CTX: u32 = 256 << 10;
    let named = |to: &str| format!("{}.{to}", parts.family.architecture);
    let Some(alpha) = parts.rope.alpha(default)? else {
        return Ok(());
    };
    let dim = f64::from(parts.shape.head_dim);
    let n_ctx = parts.config.count(&["max_position_embeddings"])?;
    let base = parts.rope.base();
    if narrow(base).to_bits() != 1e4_f32.to_bits() || ![N_CTX, 32 << 10].contains(&n_ctx) {
        let what =
            format!("is dynamic, with a base of {base} and {n_ctx} tokens, which is not supported");
        return Err(parts.config.error(&["rope_scaling type"], &what));
    }
    header.set(
        &named("rope.freq_base"),
        narrow(base * alpha.powf(dim / (dim - 2.0))),
    );
    header.set(&named("rope.scaling.type"), "none");
    header.set(&named("rope.scaling.factor"), 1_f32);
    header.set(&named("rope.scaling.original_context_length"), N_CTX);
    header.set(&named("context_length"), N_CTX);
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
        block(&[
            row(
                "ffn_gate_shexp",
                "mlp.shared_mlp.gate_proj",
                &[n_ff, n_embd],
            ),
            row("ffn_up_shexp", "mlp.shared_mlp.up_proj", &[n_ff, n_embd]),
            row(
                "ffn_down_shexp",
                "mlp.shared_mlp.down_proj",
                &[n_embd, n_ff],
            ),
        ]),
    ],
    keys: &[
        Key::Count(
            "intermediate_size",
            "expert_shared_feed_forward_length",
            Or::Missing,
        ),
        Key::By(write_hunyuan_experts),
        Key::By(|header, parts, _| write_alpha(header, parts, 1000.0)),
    ],
    experts: ExpertSizes::Always("moe_intermediate_size"),
    has_alpha_rope: true,
    means: HUNYUAN_MEANS,
    ..Traits::TABLES
};

/// Numbers that config.json repeats for each layer.
fn write_hunyuan_experts(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    _: &mut Vec<String>,
) -> Result<(), HfError> {
    for (from, to) in [
        ("moe_intermediate_size", "expert_feed_forward_length"),
        ("moe_topk", "expert_used_count"),
        ("num_shared_expert", "expert_shared_count"),
    ] {
        let config = parts.config;
        let n = match config.find(&[from]) {
            Some(serde_json::Value::Array(_)) => same_of_all(config, from)?,
            _ => config.count(&[from])?,
        };
        header.set(&format!("hunyuan-moe.{to}"), n);
    }
    Ok(())
}
