//! gpt-oss: attention sinks, experts whose gate and up rows alternate in one tensor, in MXFP4 as published.

use super::Shape;
use super::context::epsilon;
use super::gemma::window_layers;
use super::parts::{Model, Parts};
use super::shape::ExpertSizes;
use super::traits::Traits;
use super::wanted::{Change, Slice, Wanted, one, with_bias};
use crate::HfError;
use sluice::file::{GgufHeader, MetaValue};

/// `general.architecture`.
pub(super) const ARCHITECTURE: &str = "gpt-oss";

pub(super) const TRAITS: Traits = Traits {
    layer: layer_tensors,
    write,
    head_dim: |_, _| Some(64),
    stacks_experts: true,
    experts: ExpertSizes::Always(""),
    rope_base: 150_000.0,
    ..Traits::LLAMA
};

fn layer_tensors(model: &Model<'_>, layer: u32, all: &mut Vec<Wanted>) {
    let Model { shape, has, .. } = *model;
    let (to, from) = (format!("blk.{layer}."), format!("model.layers.{layer}."));
    let n_embd = u64::from(shape.n_embd);
    let n_q = u64::from(shape.n_head) * u64::from(shape.head_dim);
    let n_kv = u64::from(shape.n_head_kv) * u64::from(shape.head_dim);
    let n_expert = u64::from(shape.n_expert.unwrap_or(0));
    for (name, source, dims) in [
        ("attn_norm.weight", "input_layernorm.weight", n_embd),
        (
            "post_attention_norm.weight",
            "post_attention_layernorm.weight",
            n_embd,
        ),
        (
            "attn_sinks.weight",
            "self_attn.sinks",
            u64::from(shape.n_head),
        ),
    ] {
        all.push(one(
            &format!("{to}{name}"),
            &format!("{from}{source}"),
            &[dims],
        ));
    }
    for (name, source, rows, columns) in [
        ("attn_q", "self_attn.q_proj", n_q, n_embd),
        ("attn_k", "self_attn.k_proj", n_kv, n_embd),
        ("attn_v", "self_attn.v_proj", n_kv, n_embd),
        ("attn_output", "self_attn.o_proj", n_embd, n_q),
        ("ffn_gate_inp", "mlp.router", n_expert, n_embd),
    ] {
        let (name, source) = (format!("{to}{name}"), format!("{from}{source}"));
        all.extend(with_bias(&name, &source, &[rows, columns]));
    }
    expert_tensors(shape, layer, has, all);
}

/// The experts of a layer: gate and up alternate in the rows of one tensor (in its columns if it is not MXFP4); down
/// has its own.
fn expert_tensors(shape: &Shape, layer: u32, has: &dyn Fn(&str) -> bool, all: &mut Vec<Wanted>) {
    let n_embd = u64::from(shape.n_embd);
    let n_ff = u64::from(shape.n_ff);
    let n_expert = u64::from(shape.n_expert.unwrap_or(0));
    let from = format!("model.layers.{layer}.mlp.experts.");
    for (part, projection, start, step) in [
        ("down", "down_proj", 0, 1),
        ("gate", "gate_up_proj", 0, 2),
        ("up", "gate_up_proj", 1, 2),
    ] {
        let (rows, columns) = if part == "down" {
            (n_embd, n_ff)
        } else {
            (n_ff, n_embd)
        };
        let blocks = format!("{from}{projection}_blocks");
        let is_mxfp4 = has(&blocks);
        let source = if is_mxfp4 {
            blocks
        } else {
            format!("{from}{projection}")
        };
        let name = format!("blk.{layer}.ffn_{part}_exps");
        let dims = [n_expert, rows, columns];
        let mut weight = one(&format!("{name}.weight"), &source, &dims);
        if is_mxfp4 {
            weight.source = vec![n_expert, step * rows, columns / 32, 16];
            weight.parts.push(format!("{from}{projection}_scales"));
            weight.change = every(start, step, n_expert * rows);
        } else {
            weight.source = vec![n_expert, columns, step * rows];
            weight.change = Change::Turned {
                start,
                step,
                of: columns,
            };
        }
        let source = format!("{from}{projection}_bias");
        let mut bias = one(&format!("{name}.bias"), &source, &[n_expert, rows]);
        if step > 1 {
            bias.source = vec![n_expert, step * rows];
            bias.change = every(start, step, n_expert * rows);
        }
        all.extend([weight, bias]);
    }
}

/// `n` rows, one every `step`.
fn every(start: u64, step: u64, n: u64) -> Change {
    let (len, of) = (1, step);
    Change::Rows(vec![Slice { start, len, of, n }])
}

fn write(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    _warnings: &mut Vec<String>,
) -> Result<(), HfError> {
    let Parts {
        config,
        shape,
        rope,
        ..
    } = *parts;
    let key = |name: &str| format!("{ARCHITECTURE}.{name}");
    let limit = config.maybe_number(&["swiglu_limit"])?.unwrap_or(7.0);
    if limit.to_bits() != 7f64.to_bits() {
        let what = format!("is {limit}, but {ARCHITECTURE} in GGUF implies 7");
        return Err(config.error(&["swiglu_limit"], &what));
    }
    let n_ctx = config.count(&["max_position_embeddings"])?;
    // Repeated in the YaRN scaling.
    let _original = config.find(&["initial_context_length"]);
    header.set(&key("block_count"), shape.n_layer);
    header.set(&key("context_length"), n_ctx);
    header.set(&key("embedding_length"), shape.n_embd);
    header.set(&key("feed_forward_length"), shape.n_ff);
    header.set(&key("attention.head_count"), shape.n_head);
    header.set(&key("attention.head_count_kv"), shape.n_head_kv);
    rope.write(header, ARCHITECTURE);
    header.set(&key("rope.dimension_count"), shape.head_dim);
    let epsilon = epsilon(config, &["rms_norm_eps"], 1e-5)?;
    header.set(&key("attention.layer_norm_rms_epsilon"), epsilon);
    if let Some(n_expert) = shape.n_expert {
        header.set(&key("expert_count"), n_expert);
    }
    let n_used = config.count(&["num_experts_per_tok", "experts_per_token"])?;
    header.set(&key("expert_used_count"), n_used);
    header.set(&key("attention.key_length"), shape.head_dim);
    header.set(&key("attention.value_length"), shape.head_dim);
    header.set("general.file_type", parts.file_type);
    let window = config.count(&["sliding_window"])?;
    header.set(&key("attention.sliding_window"), window);
    header.set(&key("expert_feed_forward_length"), shape.n_ff);
    if let Some(types) = config.texts("layer_types")? {
        let has_window = window_layers(config, &types, shape.n_layer)?;
        // Readers assume a window in every other layer, starting with the first.
        let default = (0..shape.n_layer).map(|layer| layer % 2 == 0);
        if !default.eq(has_window.iter().copied()) {
            let pattern = MetaValue::bools(&has_window);
            header.set(&key("attention.sliding_window_pattern"), pattern);
        }
    }
    Ok(())
}
