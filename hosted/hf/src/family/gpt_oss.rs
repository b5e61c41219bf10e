//! gpt-oss: attention sinks, experts whose gate and up rows alternate in one tensor, in MXFP4 as published.

use super::context::epsilon;
use super::description::Description;
use super::rope::RopeTraits;
use super::rows::{Need, bare, block, n_embd, n_expert, n_ff, n_head, n_kv, n_q, row};
use super::shape::{ExpertSizes, HeadDim};
use super::tensors::{self, Model};
use super::traits::{self, Traits, means};
use super::wanted::{Change, Slice, Wanted, one};
use crate::HfError;
use crate::unread::Neutral;
use sluice::file::MetaValue;

pub(super) const GPT_OSS: Traits = Traits {
    blocks: &[block(&[
        row("attn_norm", "input_layernorm", &[n_embd]),
        row("post_attention_norm", "post_attention_layernorm", &[n_embd]),
        bare("attn_sinks.weight", "self_attn.sinks", &[n_head]),
        row("attn_q", "self_attn.q_proj", &[n_q, n_embd]).bias(Need::Always),
        row("attn_k", "self_attn.k_proj", &[n_kv, n_embd]).bias(Need::Always),
        row("attn_v", "self_attn.v_proj", &[n_kv, n_embd]).bias(Need::Always),
        row("attn_output", "self_attn.o_proj", &[n_embd, n_q]).bias(Need::Always),
        row("ffn_gate_inp", "mlp.router", &[n_expert, n_embd]).bias(Need::Always),
    ])],
    layer: |model, layer, all| {
        tensors::layer(model, layer, all);
        expert_tensors(model, layer, all);
    },
    write,
    head_dim: HeadDim::Of(64),
    experts: ExpertSizes::Always(""),
    rope: RopeTraits {
        truncates: false,
        ..RopeTraits::of_base(150_000.0)
    },
    defaults: r#"{"rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "truncate": false, "original_max_position_embeddings": 4096}}"#,
    means: &[
        means("attention_bias", Neutral::On),
        means("swiglu_alpha", Neutral::Number(1.702)),
        means("swiglu_limit", Neutral::Number(7.0)),
    ],
    activations: traits::SILU,
    ..Traits::TABLES
};

/// The experts of a layer: gate and up alternate in the rows of one tensor (in its columns if it is not MXFP4); down
/// has its own.
fn expert_tensors(model: &Model<'_>, layer: u32, all: &mut Vec<Wanted>) {
    let Model { shape, dims, .. } = *model;
    let (n_embd, n_ff, n_expert) = (n_embd(shape), n_ff(shape), n_expert(shape));
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
        let is_mxfp4 = dims(&blocks).is_some();
        let source = if is_mxfp4 {
            blocks
        } else {
            format!("{from}{projection}")
        };
        let name = format!("blk.{layer}.ffn_{part}_exps");
        let mut weight = one(
            &format!("{name}.weight"),
            &source,
            &[n_expert, rows, columns],
        );
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

fn write(out: &mut Description<'_>) -> Result<(), HfError> {
    let (config, shape) = (out.config, out.shape);
    let n_ctx = config.count(&["max_position_embeddings"])?;
    // Repeated in the YaRN scaling.
    let _original = config.find(&["initial_context_length"]);
    out.set("block_count", shape.n_layer);
    out.set("context_length", n_ctx);
    out.set("embedding_length", shape.n_embd);
    out.set("feed_forward_length", shape.n_ff);
    out.set("attention.head_count", shape.n_head);
    out.set("attention.head_count_kv", shape.n_head_kv);
    out.rope.write(out.header, out.family.architecture);
    out.set("rope.dimension_count", shape.head_dim);
    let epsilon = epsilon(config, &["rms_norm_eps"], 1e-5)?;
    out.set("attention.layer_norm_rms_epsilon", epsilon);
    out.set("expert_count", shape.n_expert());
    let n_used = config.count(&["num_experts_per_tok", "experts_per_token"])?;
    out.set("expert_used_count", n_used);
    out.set("attention.key_length", shape.head_dim);
    out.set("attention.value_length", shape.head_dim);
    out.header.set("general.file_type", out.file_type);
    let window = config.count(&["sliding_window"])?;
    out.set("attention.sliding_window", window);
    out.set("expert_feed_forward_length", shape.n_ff);
    let has_window = shape.windows();
    // Readers assume a window in every other layer, starting with the first.
    let default = (0..shape.n_layer).map(|layer| layer % 2 == 0);
    if !has_window.is_empty() && !default.eq(has_window.iter().copied()) {
        let pattern = MetaValue::bools(&has_window);
        out.set("attention.sliding_window_pattern", pattern);
    }
    Ok(())
}
