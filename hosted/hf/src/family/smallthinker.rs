//! SmallThinker: experts with ReLU as their gate's activation, whose router reads the layer's input.

use super::attention::{NO_BIAS, attention};
use super::description::Description;
use super::keys::{EPSILON, Key, Or};
use super::mixers::check_len;
use super::rows::{Experts, NORMS, always, block, n_embd, n_expert, row, sparse};
use super::shape::ExpertSizes;
use super::traits::{Traits, means};
use crate::HfError;
use crate::unread::Neutral;
use sluice::file::MetaValue;

pub(super) const SMALLTHINKER: Traits = Traits {
    blocks: &[
        block(NORMS),
        block(&attention(NO_BIAS, NO_BIAS)),
        sparse(
            always,
            &[row(
                "ffn_gate_inp",
                "block_sparse_moe.primary_router",
                &[n_expert, n_embd],
            )],
            Experts {
                from: "block_sparse_moe.experts",
                parts: &[("down", "down"), ("gate", "gate"), ("up", "up")],
                width: n_embd,
                may_be_turned: false,
            },
        ),
    ],
    // Written after the experts' width.
    n_ff: |_| Ok(0),
    is_tied: true,
    experts: ExpertSizes::Always("moe_ffn_hidden_size"),
    keys: &[
        EPSILON,
        Key::Count("moe_num_primary_experts", "expert_count", Or::Missing),
        Key::Count(
            "moe_num_active_primary_experts",
            "expert_used_count",
            Or::Missing,
        ),
        Key::Count(
            "moe_ffn_hidden_size",
            "expert_feed_forward_length",
            Or::Missing,
        ),
        Key::Count("moe_ffn_hidden_size", "feed_forward_length", Or::Missing),
        Key::By(write_router),
        Key::By(write_layouts),
    ],
    // Of the class from before its release, whose other values GGUF cannot express.
    means: &[
        means("moe_enable_early_router", Neutral::On),
        means("moe_enable_secondary_experts", Neutral::Off),
        means("moe_layer_layout", Neutral::Number(1.0)),
        means("moe_shared_primary_experts", Neutral::Off),
        means("use_qk_norm", Neutral::Off),
    ],
    activations: &["relu"],
    ..Traits::TABLES
};

/// Whether scores are a softmax over all experts, or sigmoids.
fn write_router(out: &mut Description<'_>) -> Result<(), HfError> {
    let config = out.config;
    let is_softmax = config.bool("moe_primary_router_apply_softmax") == Some(true);
    out.set("expert_gating_func", if is_softmax { 1_u32 } else { 2 });
    // They say nothing of layers that all have experts of one size.
    for key in [
        "dense_ffn_hidden_size",
        "moe_num_secondary_experts",
        "moe_secondary_expert_size",
        "model_name",
    ] {
        config.find(&[key]);
    }
    Ok(())
}

/// Which layers have a window, and which rotate. Files without lists have the layouts of published models: in every four
/// layers the first sees all tokens and does not rotate, if there are windows.
fn write_layouts(out: &mut Description<'_>) -> Result<(), HfError> {
    let (config, n_layer) = (out.config, out.shape.n_layer);
    let flags = |key: &str| -> Result<Option<Vec<bool>>, HfError> {
        let Some(numbers) = config.numbers(key)? else {
            return Ok(None);
        };
        check_len(config, key, numbers.len(), n_layer)?;
        Ok(Some(numbers.iter().map(|x| *x != 0.0).collect()))
    };
    let windows = flags("sliding_window_layout")?.unwrap_or_default();
    let rotates = flags("rope_layout")?.unwrap_or_else(|| vec![true; n_layer as usize]);
    let window = config
        .maybe_count(&["sliding_window_size"])?
        .unwrap_or(4096);
    let is_usual = |flags: &[bool]| {
        let mut layers = (0..).zip(flags);
        layers.all(|(layer, flag): (u32, _)| *flag != layer.is_multiple_of(4))
    };
    let has_window = windows.contains(&true);
    if has_window {
        out.set("attention.sliding_window", window);
        if !is_usual(&windows) {
            let pattern = MetaValue::bools(&windows);
            out.set("attention.sliding_window_pattern", pattern);
        }
    }
    let is_implied = match has_window {
        true => is_usual(&rotates),
        false => !rotates.contains(&false),
    };
    if !is_implied {
        out.set("attention.rope_pattern", MetaValue::bools(&rotates));
    }
    Ok(())
}
