//! Gemma 4: heads of two sizes, layers that share keys and values, an embedding for each layer, experts in addition to
//! a dense network.

use super::description::Description;
use super::keys::{Key, MAYBE_EXPERT_WIDTH, Or, write_windows};
use super::mixers::{Mixer, listed_or_every};
use super::rope::{RopeTraits, ScalingKind, WindowBase};
use super::rows::{
    Need, Row, Size, bare, block, block_when, gated, head_dim, is_tied, n_embd, n_expert, n_ff,
    n_ff_exp, n_head, n_kv, n_q, n_vocab, one_row, row,
};
use super::shape::{ExpertSizes, HeadDim};
use super::traits::{NotSpelled, Traits, VocabularyTraits, Words, means};
use super::{Object, Shape};
use crate::HfError;
use crate::unread::Neutral;
use serde_json::Value;
use sluice::file::MetaValue;

pub(super) const GEMMA4: Traits = Traits {
    globals: &[
        row("token_embd", "model.embed_tokens", &[n_vocab, n_embd]),
        row("output_norm", "model.norm", &[n_embd]),
        row("output", "lm_head", &[n_vocab, n_embd]).need(Need::Unless(is_tied)),
        layered(
            "per_layer_token_embd",
            "model.embed_tokens_per_layer",
            &[n_vocab_layer, all_layers],
        ),
        layered(
            "per_layer_model_proj",
            "model.per_layer_model_projection",
            &[all_layers, n_embd],
        ),
        layered(
            "per_layer_proj_norm",
            "model.per_layer_projection_norm",
            &[n_embd_layer],
        ),
    ],
    blocks: &[
        block(NORMS),
        block_when(has_window, WINDOW_QUERIES),
        block_when(
            |shape, layer| has_window(shape, layer) && owns(shape, layer),
            WINDOW_KEYS,
        ),
        block_when(|shape, layer| !has_window(shape, layer), FULL_QUERIES),
        block_when(
            |shape, layer| !has_window(shape, layer) && owns(shape, layer),
            FULL_KEYS,
        ),
        block_when(
            |shape, layer| {
                !has_window(shape, layer) && owns(shape, layer) && !keys_are_values(shape)
            },
            FULL_VALUES,
        ),
        block_when(
            |shape, layer| !is_wide(shape, layer),
            gated!("", "mlp", n_ff),
        ),
        block_when(is_wide, gated!("", "mlp", wide)),
        block_when(|shape, _| shape.n_expert.is_some(), EXPERTS),
        block_when(|shape, _| n_embd_layer(shape) > 0, LAYER_EMBEDDING),
    ],
    keys: &[
        Key::Number(
            "final_logit_softcapping",
            "final_logit_softcapping",
            Or::Missing,
        ),
        Key::Count("sliding_window", "attention.sliding_window", Or::Missing),
        Key::Count(
            "num_kv_shared_layers",
            "attention.shared_kv_layers",
            Or::Default(0),
        ),
        Key::Count(
            "hidden_size_per_layer_input",
            "embedding_length_per_layer_input",
            Or::Default(0),
        ),
        Key::By(write_windows),
        Key::By(write_heads),
        MAYBE_EXPERT_WIDTH,
        Key::By(write_widths),
    ],
    mixers: |config, n_layer| listed_or_every(6, config, n_layer),
    respell: respell_layers,
    defaults: r#"{"rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}}}"#,
    sizes: &[
        ("global_head_dim", Some(512)),
        ("num_global_key_value_heads", Some(0)),
        ("num_kv_shared_layers", Some(0)),
        ("hidden_size_per_layer_input", Some(0)),
        ("vocab_size_per_layer_input", Some(262_144)),
        ("attention_k_eq_v", Some(0)),
        ("use_double_wide_mlp", Some(0)),
        ("enable_moe_block", Some(0)),
    ],
    experts: ExpertSizes::Maybe("moe_intermediate_size"),
    activations: &["gelu_pytorch_tanh"],
    means: &[means(
        "use_bidirectional_attention",
        Neutral::Text(&["vision"]),
    )],
    head_dim: HeadDim::Of(256),
    rope: RopeTraits {
        kinds: &[ScalingKind::Share],
        window: WindowBase::IfGiven,
        ..RopeTraits::PLAIN
    },
    is_tied: true,
    is_wrapped: true,
    vocabulary: VocabularyTraits::of(Words::Gemma4),
    ..Traits::TABLES
};

/// Sizes of experts count only if there are any. transformers 5 saves the sizes of layers without a window layer by
/// layer.
fn respell_layers(config: &mut Object) -> Result<(), NotSpelled> {
    const KEY: &str = "per_layer_config";
    if config.get("enable_moe_block") != Some(&Value::Bool(true)) {
        config.retain(|key, _| {
            !["num_experts", "top_k_experts", "moe_intermediate_size"].contains(&key.as_str())
        });
    }
    let Some(Value::Object(layers)) = config.remove(KEY) else {
        return Ok(());
    };
    let types = config.get("layer_types").and_then(Value::as_array);
    let types = types.map(Vec::as_slice).unwrap_or_default();
    let is_full = |layer: &usize| types[*layer] == "full_attention";
    let own_of = |layer: usize| layers.get(&layer.to_string());
    let own = (0..types.len()).find(is_full).and_then(own_of);
    let is_same = (0..types.len()).all(|layer| own_of(layer) == own.filter(|_| is_full(&layer)));
    let own = own.and_then(Value::as_object).cloned().unwrap_or_default();
    let known = [
        ("head_dim", "global_head_dim"),
        ("num_key_value_heads", "num_global_key_value_heads"),
    ];
    let is_known = |key: &String| known.iter().any(|(from, _)| from == key);
    if !is_same || types.is_empty() || !own.keys().all(is_known) {
        let what = "is not the same two sizes for all layers of full attention, which gemma4 in GGUF implies".into();
        return Err(NotSpelled { key: KEY, what });
    }
    for (from, to) in known {
        // Without a size, it is as in the other layers.
        let value = own.get(from).or_else(|| config.get(from)).cloned();
        if let Some(value) = value {
            config.insert(to.into(), value);
        }
    }
    Ok(())
}

const fn layered(to: &'static str, from: &'static str, shape: &'static [Size]) -> Row {
    row(to, from, shape).need(Need::Unless(|shape| n_embd_layer(shape) == 0))
}

// Layers with a window take their head sizes from config.json's usual keys; the others have separate keys.

fn head_dim_full(shape: &Shape) -> u64 {
    shape.size("global_head_dim")
}

fn keys_are_values(shape: &Shape) -> bool {
    shape.size("attention_k_eq_v") > 0
}

/// Key heads in layers without a window, if their number differs.
fn n_head_kv_full(shape: &Shape) -> Option<u64> {
    let own = shape.size("num_global_key_value_heads");
    (own > 0 && keys_are_values(shape)).then_some(own)
}

fn n_q_full(shape: &Shape) -> u64 {
    n_head(shape) * head_dim_full(shape)
}

fn n_kv_full(shape: &Shape) -> u64 {
    n_head_kv_full(shape).unwrap_or_else(|| shape.n_head_kv.into()) * head_dim_full(shape)
}

fn has_window(shape: &Shape, layer: u32) -> bool {
    shape.mixer(layer) == Mixer::Window
}

/// Whether a layer has its own keys and values; the last layers reuse those that earlier layers computed.
fn owns(shape: &Shape, layer: u32) -> bool {
    u64::from(layer) + shape.size("num_kv_shared_layers") < u64::from(shape.n_layer)
}

/// Whether a layer's network is twice as wide.
fn is_wide(shape: &Shape, layer: u32) -> bool {
    shape.size("use_double_wide_mlp") > 0 && !owns(shape, layer)
}

fn wide(shape: &Shape) -> u64 {
    2 * n_ff(shape)
}

/// Columns of the per-layer embedding.
fn n_embd_layer(shape: &Shape) -> u64 {
    shape.size("hidden_size_per_layer_input")
}

fn all_layers(shape: &Shape) -> u64 {
    n_embd_layer(shape) * u64::from(shape.n_layer)
}

fn n_vocab_layer(shape: &Shape) -> u64 {
    shape.size("vocab_size_per_layer_input")
}

const NORMS: &[Row] = &[
    row("attn_norm", "input_layernorm", &[n_embd]),
    row("post_attention_norm", "post_attention_layernorm", &[n_embd]),
    row("ffn_norm", "pre_feedforward_layernorm", &[n_embd]),
    row("post_ffw_norm", "post_feedforward_layernorm", &[n_embd]),
    bare("layer_output_scale.weight", "layer_scalar", &[one_row]).if_there(),
];

const WINDOW_QUERIES: &[Row] = &[
    row("attn_q", "self_attn.q_proj", &[n_q, n_embd]),
    row("attn_output", "self_attn.o_proj", &[n_embd, n_q]),
    row("attn_q_norm", "self_attn.q_norm", &[head_dim]),
];

const WINDOW_KEYS: &[Row] = &[
    row("attn_k", "self_attn.k_proj", &[n_kv, n_embd]),
    row("attn_v", "self_attn.v_proj", &[n_kv, n_embd]),
    row("attn_k_norm", "self_attn.k_norm", &[head_dim]),
];

const FULL_QUERIES: &[Row] = &[
    row("attn_q", "self_attn.q_proj", &[n_q_full, n_embd]),
    row("attn_output", "self_attn.o_proj", &[n_embd, n_q_full]),
    row("attn_q_norm", "self_attn.q_norm", &[head_dim_full]),
];

const FULL_KEYS: &[Row] = &[
    row("attn_k", "self_attn.k_proj", &[n_kv_full, n_embd]),
    row("attn_k_norm", "self_attn.k_norm", &[head_dim_full]),
];

const FULL_VALUES: &[Row] = &[row("attn_v", "self_attn.v_proj", &[n_kv_full, n_embd])];

/// Used in addition to the dense network; an expert's gate and up matrices stay in one tensor.
const EXPERTS: &[Row] = &[
    bare(
        "ffn_down_exps.weight",
        "experts.down_proj",
        &[n_expert, n_embd, n_ff_exp],
    ),
    bare(
        "ffn_gate_up_exps.weight",
        "experts.gate_up_proj",
        &[n_expert, |shape| 2 * n_ff_exp(shape), n_embd],
    ),
    bare(
        "ffn_down_exps.scale",
        "router.per_expert_scale",
        &[n_expert],
    ),
    row("ffn_gate_inp", "router.proj", &[n_expert, n_embd]),
    bare("ffn_gate_inp.scale", "router.scale", &[n_embd]),
    row("post_ffw_norm_1", "post_feedforward_layernorm_1", &[n_embd]),
    row("post_ffw_norm_2", "post_feedforward_layernorm_2", &[n_embd]),
    row("pre_ffw_norm_2", "pre_feedforward_layernorm_2", &[n_embd]),
];

const LAYER_EMBEDDING: &[Row] = &[
    row("inp_gate", "per_layer_input_gate", &[n_embd_layer, n_embd]),
    row("proj", "per_layer_projection", &[n_embd, n_embd_layer]),
    row("post_norm", "post_per_layer_input_norm", &[n_embd]),
];

fn write_heads(out: &mut Description<'_>) -> Result<(), HfError> {
    let shape = out.shape;
    let full = head_dim_full(shape);
    out.set_size("attention.key_length", full);
    out.set_size("attention.value_length", full);
    out.set("attention.key_length_swa", shape.head_dim);
    out.set("attention.value_length_swa", shape.head_dim);
    Ok(())
}

/// Writes the sizes that differ between layers with and without a window.
fn write_widths(out: &mut Description<'_>) -> Result<(), HfError> {
    let shape = out.shape;
    let layers = || 0..shape.n_layer;
    let i32s = |numbers: Vec<u64>| {
        let numbers = numbers
            .into_iter()
            .map(|n| i32::try_from(n).unwrap_or(i32::MAX));
        MetaValue::i32s(&numbers.collect::<Vec<_>>())
    };
    if shape.size("use_double_wide_mlp") > 0 {
        let widths = layers().map(|layer| match is_wide(shape, layer) {
            true => wide(shape),
            false => n_ff(shape),
        });
        out.set("feed_forward_length", i32s(widths.collect()));
    }
    if let Some(full) = n_head_kv_full(shape) {
        let heads = layers().map(|layer| match has_window(shape, layer) {
            true => shape.n_head_kv.into(),
            false => full,
        });
        out.set("attention.head_count_kv", i32s(heads.collect()));
    }
    // All columns rotate; a divisor stops the ones that should not.
    out.set_size("rope.dimension_count", head_dim_full(shape));
    out.set("rope.dimension_count_swa", shape.head_dim);
    Ok(())
}
