//! Gemma 2 and 3: norms before and after attention and the feed-forward network, windows in most layers.

use super::attention::HEAD_NORMS;
use super::context::{epsilon, narrow};
use super::description::Description;
use super::rope::{RopeTraits, WindowBase};
use super::rows::{Row, block, gated, n_embd, n_ff, n_kv, n_q, row};
use super::shape::HeadDim;
use super::traits::Traits;
use super::{Family, Kind};
use crate::HfError;
use serde_json::Value;
use sluice::file::MetaValue;

const LAYER: &[Row] = &[
    row("attn_norm", "input_layernorm", &[n_embd]),
    row("post_attention_norm", "post_attention_layernorm", &[n_embd]),
    row("post_ffw_norm", "post_feedforward_layernorm", &[n_embd]),
    row("ffn_norm", "pre_feedforward_layernorm", &[n_embd]),
    row("attn_q", "self_attn.q_proj", &[n_q, n_embd]),
    row("attn_k", "self_attn.k_proj", &[n_kv, n_embd]),
    row("attn_v", "self_attn.v_proj", &[n_kv, n_embd]),
    row("attn_output", "self_attn.o_proj", &[n_embd, n_q]),
];

pub(super) const GEMMA2: Traits = Traits {
    blocks: &[block(LAYER), block(gated!("", "mlp", n_ff))],
    write,
    norms_add_one: true,
    head_dim: HeadDim::Of(256),
    is_tied: true,
    activations: &["gelu_pytorch_tanh", "gelu_new"],
    ..Traits::TABLES
};

pub(super) const GEMMA3: Traits = Traits {
    blocks: &[
        block(LAYER),
        block(HEAD_NORMS),
        block(gated!("", "mlp", n_ff)),
    ],
    rope: RopeTraits {
        window: WindowBase::IfGiven,
        ..RopeTraits::of_base(1e6)
    },
    is_wrapped: true,
    ..GEMMA2
};

/// Number of layers of the largest model, which scales queries by the width per head.
const fn n_layer_27b(family: &Family) -> u32 {
    match family.kind {
        Kind::Gemma2 => 46,
        _ => 62,
    }
}

fn write(out: &mut Description<'_>) -> Result<(), HfError> {
    let (family, config, shape) = (out.family, out.config, out.shape);
    let is_gemma3 = family.kind == Kind::Gemma3;
    let n_ctx = match config.maybe_count(&["max_position_embeddings"])? {
        None if is_gemma3 => 131_072,
        None => config.count(&["max_position_embeddings"])?,
        Some(n_ctx) => n_ctx,
    };
    // Gemma 2 and Gemma 3 write their keys in different orders.
    if is_gemma3 {
        out.set("block_count", shape.n_layer);
    }
    out.set("context_length", n_ctx);
    out.set("embedding_length", shape.n_embd);
    out.set("block_count", shape.n_layer);
    out.set("feed_forward_length", shape.n_ff);
    out.set("attention.head_count", shape.n_head);
    out.set("attention.head_count_kv", shape.n_head_kv);
    if is_gemma3 {
        out.rope.write(out.header, family.architecture);
    }
    let epsilon = epsilon(config, &["rms_norm_eps"], 1e-6)?;
    out.set("attention.layer_norm_rms_epsilon", epsilon);
    out.set("attention.key_length", shape.head_dim);
    out.set("attention.value_length", shape.head_dim);
    if !is_gemma3 && out.rope.differs_from(10_000.0) {
        out.rope.write(out.header, family.architecture);
    }
    out.header.set("general.file_type", out.file_type);
    write_caps(out)?;
    write_windows(out)?;
    write_scale(out)
}

/// The scale of queries, where it is not what readers take for granted: the root of the head size, or in the largest
/// model, known by its number of layers, the root of the width per head.
fn write_scale(out: &mut Description<'_>) -> Result<(), HfError> {
    let (family, config, shape) = (out.family, out.config, out.shape);
    let given = config
        .maybe_number(&["query_pre_attn_scalar"])?
        .unwrap_or(256.0);
    let due = match shape.n_layer == n_layer_27b(family) {
        true => shape.n_embd / shape.n_head,
        false => shape.head_dim,
    };
    if !(given > 0.0 && given.is_finite()) {
        let what = format!("is {given}, not a number above 0");
        return Err(config.error(&["query_pre_attn_scalar"], &what));
    }
    if narrow(given).to_bits() != narrow(f64::from(due)).to_bits() {
        out.set("attention.scale", narrow(given.powf(-0.5)));
    }
    Ok(())
}

/// Soft caps of the attention and output logits. Null means no cap; an absent key means the default.
fn write_caps(out: &mut Description<'_>) -> Result<(), HfError> {
    let config = out.config;
    let is_gemma2 = out.family.kind == Kind::Gemma2;
    for (name, default) in [
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
    ] {
        let is_null = config.map().get(name) == Some(&Value::Null);
        let cap = config.maybe_number(&[name])?;
        match cap {
            Some(cap) if is_gemma2 || name.starts_with("final") => out.set(name, narrow(cap)),
            Some(_) => {
                let what = "is given, but gemma3 in GGUF cannot express it";
                return Err(config.error(&[name], what));
            }
            None if is_gemma2 && is_null => {
                let what = "is null, but gemma2 in GGUF always has a cap";
                return Err(config.error(&[name], what));
            }
            None if is_gemma2 => out.set(name, narrow(default)),
            None => {}
        }
    }
    Ok(())
}

/// Checks which layers have a window. Readers assume a period: 2 in Gemma 2, 6 in Gemma 3.
fn write_windows(out: &mut Description<'_>) -> Result<(), HfError> {
    let (config, n_layer) = (out.config, out.shape.n_layer);
    let is_gemma2 = out.family.kind == Kind::Gemma2;
    let default_period = if is_gemma2 { 2 } else { 6 };
    let period = config.maybe_count(&["sliding_window_pattern", "_sliding_window_pattern"])?;
    let by_period = |period| (1..=n_layer).map(move |layer| layer % period != 0);
    let mut has_window = out.shape.windows();
    if has_window.is_empty() {
        has_window.extend(by_period(period.unwrap_or(default_period)));
    }
    let window = config.maybe_count(&["sliding_window"])?;
    if !has_window.contains(&true) {
        return Ok(());
    }
    out.set("attention.sliding_window", window.unwrap_or(4096));
    if !by_period(default_period).eq(has_window.iter().copied()) {
        let pattern = MetaValue::bools(&has_window);
        out.set("attention.sliding_window_pattern", pattern);
    }
    Ok(())
}
