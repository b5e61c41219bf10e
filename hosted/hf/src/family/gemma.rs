//! Gemma 2 and 3: norms before and after attention and the feed-forward network, windows in most layers.

use super::context::{epsilon, narrow};
use super::parts::{Model, Parts};
use super::traits::Traits;
use super::wanted::{Wanted, one};
use super::{Family, Kind, Shape};
use crate::HfError;
use crate::config::Config;
use serde_json::Value;
use sluice::file::{GgufHeader, MetaValue};

pub(super) const TRAITS: Traits = Traits {
    layer: layer_tensors,
    write,
    norms_add_one: true,
    head_dim: |_, _| Some(256),
    is_tied: true,
    activations: &["gelu_pytorch_tanh", "gelu_new"],
    ..Traits::LLAMA
};

pub(super) const GEMMA3: Traits = Traits {
    rope_base: 1e6,
    is_wrapped: true,
    has_window_rope: true,
    ..TRAITS
};

fn layer_tensors(model: &Model<'_>, layer: u32, all: &mut Vec<Wanted>) {
    let Model { family, shape, .. } = *model;
    let (to, from) = (format!("blk.{layer}."), format!("model.layers.{layer}."));
    let (n_embd, n_ff) = (u64::from(shape.n_embd), u64::from(shape.n_ff));
    let head_dim = u64::from(shape.head_dim);
    let n_q = u64::from(shape.n_head) * head_dim;
    let n_kv = u64::from(shape.n_head_kv) * head_dim;
    let mut add = |name: &str, source: &str, dims: &[u64]| {
        let (name, source) = (
            format!("{to}{name}.weight"),
            format!("{from}{source}.weight"),
        );
        all.push(one(&name, &source, dims));
    };
    add("attn_norm", "input_layernorm", &[n_embd]);
    add("ffn_down", "mlp.down_proj", &[n_embd, n_ff]);
    add("ffn_gate", "mlp.gate_proj", &[n_ff, n_embd]);
    add("ffn_up", "mlp.up_proj", &[n_ff, n_embd]);
    add("post_attention_norm", "post_attention_layernorm", &[n_embd]);
    add("post_ffw_norm", "post_feedforward_layernorm", &[n_embd]);
    add("ffn_norm", "pre_feedforward_layernorm", &[n_embd]);
    add("attn_q", "self_attn.q_proj", &[n_q, n_embd]);
    add("attn_k", "self_attn.k_proj", &[n_kv, n_embd]);
    add("attn_v", "self_attn.v_proj", &[n_kv, n_embd]);
    add("attn_output", "self_attn.o_proj", &[n_embd, n_q]);
    if family.kind == Kind::Gemma3 {
        add("attn_q_norm", "self_attn.q_norm", &[head_dim]);
        add("attn_k_norm", "self_attn.k_norm", &[head_dim]);
    }
}

/// Number of layers of the largest model, which scales queries by the width per head.
const fn n_layer_27b(family: &Family) -> u32 {
    match family.kind {
        Kind::Gemma2 => 46,
        _ => 62,
    }
}

fn write(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    _warnings: &mut Vec<String>,
) -> Result<(), HfError> {
    let Parts {
        family,
        config,
        shape,
        rope,
        ..
    } = *parts;
    let key = |name: &str| format!("{}.{name}", family.architecture);
    check_scale(family, config, shape)?;
    let n_ctx = match config.maybe_count(&["max_position_embeddings"])? {
        Some(n_ctx) => n_ctx,
        None if family.kind == Kind::Gemma3 => 131_072,
        None => config.count(&["max_position_embeddings"])?,
    };
    // Gemma 2 and Gemma 3 write their keys in different orders.
    let is_gemma3 = family.kind == Kind::Gemma3;
    if is_gemma3 {
        header.set(&key("block_count"), shape.n_layer);
    }
    header.set(&key("context_length"), n_ctx);
    header.set(&key("embedding_length"), shape.n_embd);
    header.set(&key("block_count"), shape.n_layer);
    header.set(&key("feed_forward_length"), shape.n_ff);
    header.set(&key("attention.head_count"), shape.n_head);
    header.set(&key("attention.head_count_kv"), shape.n_head_kv);
    if is_gemma3 {
        rope.write(header, family.architecture);
    }
    let epsilon = epsilon(config, &["rms_norm_eps"], 1e-6)?;
    header.set(&key("attention.layer_norm_rms_epsilon"), epsilon);
    header.set(&key("attention.key_length"), shape.head_dim);
    header.set(&key("attention.value_length"), shape.head_dim);
    if !is_gemma3 && rope.differs_from(10_000.0) {
        rope.write(header, family.architecture);
    }
    header.set("general.file_type", parts.file_type);
    write_caps(header, family, config)?;
    write_windows(header, family, config, shape)
}

/// The engine scales queries by the root of the head size, or in the largest model by the root of the width per head.
fn check_scale(family: &Family, config: &Config, shape: &Shape) -> Result<(), HfError> {
    let given = config
        .maybe_number(&["query_pre_attn_scalar"])?
        .unwrap_or(256.0);
    let due = match shape.n_layer == n_layer_27b(family) {
        true => shape.n_embd / shape.n_head,
        false => shape.head_dim,
    };
    if narrow(given).to_bits() == narrow(f64::from(due)).to_bits() {
        return Ok(());
    }
    let what = format!(
        "is {given}, but {} in GGUF with {} layers implies {due}",
        family.architecture, shape.n_layer
    );
    Err(config.error(&["query_pre_attn_scalar"], &what))
}

/// Soft caps of the attention and output logits. Null means no cap; an absent key means the default.
fn write_caps(header: &mut GgufHeader, family: &Family, config: &Config) -> Result<(), HfError> {
    for (name, default) in [
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
    ] {
        let is_null = config.map().get(name) == Some(&Value::Null);
        let cap = config.maybe_number(&[name])?;
        let is_gemma2 = family.kind == Kind::Gemma2;
        match cap {
            Some(cap) if is_gemma2 || name.starts_with("final") => {
                header.set(&format!("{}.{name}", family.architecture), narrow(cap));
            }
            Some(_) => {
                let what = "is given, but gemma3 in GGUF cannot express it";
                return Err(config.error(&[name], what));
            }
            None if is_gemma2 && is_null => {
                let what = "is null, but gemma2 in GGUF always has a cap";
                return Err(config.error(&[name], what));
            }
            None if is_gemma2 => header.set(&format!("gemma2.{name}"), narrow(default)),
            None => {}
        }
    }
    Ok(())
}

/// Checks which layers have a window. Readers assume a period: 2 in Gemma 2, 6 in Gemma 3.
fn write_windows(
    header: &mut GgufHeader,
    family: &Family,
    config: &Config,
    shape: &Shape,
) -> Result<(), HfError> {
    let default_period = if family.kind == Kind::Gemma2 { 2 } else { 6 };
    let period = config.maybe_count(&["sliding_window_pattern", "_sliding_window_pattern"])?;
    let period = period.unwrap_or(default_period);
    let has_window: Vec<bool> = match config.texts("layer_types")? {
        Some(types) => window_layers(config, &types, shape.n_layer)?,
        None => (1..=shape.n_layer)
            .map(|layer| layer % period != 0)
            .collect(),
    };
    let window = config.maybe_count(&["sliding_window"])?;
    if !has_window.contains(&true) {
        return Ok(());
    }
    let architecture = family.architecture;
    let key = format!("{architecture}.attention.sliding_window");
    header.set(&key, window.unwrap_or(4096));
    let default = (1..=shape.n_layer).map(|layer| layer % default_period != 0);
    if !default.eq(has_window.iter().copied()) {
        let key = format!("{architecture}.attention.sliding_window_pattern");
        header.set(&key, MetaValue::bools(&has_window));
    }
    Ok(())
}

/// `layer_types` as truth values: whether a layer has a window.
pub(super) fn window_layers(
    config: &Config,
    types: &[&str],
    n_layer: u32,
) -> Result<Vec<bool>, HfError> {
    let has_window = types.iter().map(|&ty| match ty {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(config.error(
            &["layer_types"],
            &format!("has the unknown value {other:?}"),
        )),
    });
    let has_window = has_window.collect::<Result<Vec<_>, _>>()?;
    if has_window.len() != n_layer as usize {
        let what = format!("has {} entries for {n_layer} layers", has_window.len());
        return Err(config.error(&["layer_types"], &what));
    }
    Ok(has_window)
}
