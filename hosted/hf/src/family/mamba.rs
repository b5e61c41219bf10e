//! Granite 4 and Nemotron-H: Mamba-2 states in most layers, attention in a few.

use super::attention::{ATTENTION_BIAS, PAIRED_ATTENTION};
use super::description::Description;
use super::granite::{
    GRANITE_DENSE, GRANITE_EXPERTS, GRANITE_SCALES, GRANITE_SHARED, GRANITE_SHARED_KEY,
    n_ff_granite,
};
use super::keys::{EXPERT_WIDTH, Key, Or, write_nextn};
use super::lfm2::heads_by_layer;
use super::mixers::{Mixer, check_len, with_states};
use super::rope::RopeTraits;
use super::rows::{
    Experts, MLP_BIAS, NORMS, Need, Row, bare, block, block_when, is_nextn, is_tied, n_embd,
    n_expert, n_ff, n_kv, n_q, n_vocab, one_row, row, sparse,
};
use super::shape::{ExpertSizes, HeadDim, Nextn};
use super::sparse::NEXTN;
use super::traits::{self, Means, NotSpelled, Traits, means};
use super::wanted::{Change, Map};
use super::{Object, Shape};
use crate::HfError;
use crate::config::Config;
use crate::unread::{Neutral, is_one_of};
use serde_json::Value;
use sluice::file::MetaValue;

// Sizes of a state, under the names that Granite and Nemotron use.

fn size(shape: &Shape, granite: &str, nemotron: &str) -> u64 {
    match shape.size(granite) {
        0 => shape.size(nemotron),
        size => size,
    }
}

fn n_head(shape: &Shape) -> u64 {
    size(shape, "mamba_n_heads", "mamba_num_heads")
}

fn n_group(shape: &Shape) -> u64 {
    size(shape, "mamba_n_groups", "n_groups").max(1)
}

fn n_taps(shape: &Shape) -> u64 {
    size(shape, "mamba_d_conv", "conv_kernel")
}

fn n_state(shape: &Shape) -> u64 {
    size(shape, "mamba_d_state", "ssm_state_size")
}

fn n_inner(shape: &Shape) -> u64 {
    n_head(shape) * size(shape, "mamba_d_head", "mamba_head_dim")
}

fn of_a_group(shape: &Shape) -> u64 {
    n_inner(shape) / n_group(shape)
}

/// Columns of the convolution: the input, and the projections into and out of the state (B and C).
fn convolved(shape: &Shape) -> u64 {
    n_inner(shape) + 2 * n_group(shape) * n_state(shape)
}

fn projected(shape: &Shape) -> u64 {
    n_inner(shape) + convolved(shape) + n_head(shape)
}

macro_rules! state_rows {
    ($module:literal) => {
        &[
            row("ssm_in", concat!($module, ".in_proj"), &[projected, n_embd]),
            row(
                "ssm_conv1d",
                concat!($module, ".conv1d"),
                &[convolved, n_taps],
            )
            .of(&[convolved, one_row, n_taps], |_| Change::None)
            .bias(Need::Always),
            bare("ssm_dt.bias", concat!($module, ".dt_bias"), &[n_head]),
            bare("ssm_a", concat!($module, ".A_log"), &[n_head, one_row])
                .of(&[n_head], |_| Change::None)
                .mapped(Map::NegExp),
            bare("ssm_d", concat!($module, ".D"), &[n_head, one_row])
                .of(&[n_head], |_| Change::None),
            row(
                "ssm_norm",
                concat!($module, ".norm"),
                &[n_group, of_a_group],
            )
            .of(&[n_inner], |_| Change::None),
            row("ssm_out", concat!($module, ".out_proj"), &[n_embd, n_inner]),
        ]
    };
}

fn has_state(shape: &Shape, layer: u32) -> bool {
    shape.mixer(layer) == Mixer::Recurrent
}

fn attends(shape: &Shape, layer: u32) -> bool {
    shape.mixer(layer) == Mixer::Full
}

fn has_experts(shape: &Shape, _: u32) -> bool {
    shape.n_expert.is_some()
}

/// Granite 4 models with states.
pub(super) const GRANITE_HYBRID: Traits = Traits {
    blocks: &[
        block(NORMS),
        block_when(has_state, state_rows!("mamba")),
        block_when(attends, PAIRED_ATTENTION),
        block_when(has_experts, GRANITE_EXPERTS),
        block_when(
            |shape, _| shape.n_expert.is_some() && n_ff_granite(shape) > 0,
            GRANITE_SHARED,
        ),
        block_when(|shape, _| shape.n_expert.is_none(), GRANITE_DENSE),
    ],
    keys: &{
        let [a, b, c, d] = GRANITE_SCALES;
        [
            a,
            b,
            c,
            d,
            GRANITE_SHARED_KEY,
            Key::By(write_states),
            Key::By(write_rotation),
        ]
    },
    sizes: &[
        ("shared_intermediate_size", Some(0)),
        ("mamba_n_heads", Some(128)),
        ("mamba_n_groups", Some(1)),
        ("mamba_d_conv", Some(4)),
        ("mamba_d_state", Some(256)),
        ("mamba_d_head", Some(64)),
    ],
    experts: ExpertSizes::Maybe(""),
    // Without experts, the shared one is the feed-forward network.
    n_ff: |config| {
        let n_ff = config.count(&["intermediate_size"])?;
        match config.maybe_whole(&["num_local_experts"])? {
            None | Some(0) => config.count(&["shared_intermediate_size"]),
            Some(_) => Ok(n_ff),
        }
    },
    head_dim: HeadDim::Hidden,
    mixers: with_states,
    means: &[
        means("mamba_conv_bias", Neutral::On),
        means("mamba_proj_bias", Neutral::Off),
        means("normalization_function", Neutral::Text(&["rmsnorm"])),
    ],
    activations: traits::SILU,
    ..Traits::LLAMA_TABLES
};

/// Whether a Granite 4 model has no states; it is then converted as Granite 3.
pub(super) fn all_attend(config: &Config) -> bool {
    let types = config.find(&["layer_types"]).and_then(Value::as_array);
    types.is_some_and(|types| types.iter().all(|ty| ty == "attention"))
}

/// Whether such a model has experts.
pub(super) fn uses_experts(config: &Config) -> bool {
    let n_used = config
        .find(&["num_experts_per_tok"])
        .and_then(Value::as_u64);
    n_used.is_some_and(|n| n > 0)
}

fn write_states(out: &mut Description<'_>) -> Result<(), HfError> {
    let shape = out.shape;
    out.set_size("ssm.conv_kernel", n_taps(shape));
    out.set_size("ssm.state_size", n_state(shape));
    out.set_size("ssm.group_count", n_group(shape));
    out.set_size("ssm.inner_size", n_inner(shape));
    out.set_size("ssm.time_step_rank", n_head(shape));
    out.set("attention.head_count_kv", heads_by_layer(shape));
    Ok(())
}

/// Models with states have no rotation; only the state limits their context.
fn write_rotation(out: &mut Description<'_>) -> Result<(), HfError> {
    check_time_steps(out.config)?;
    let has_states = out.shape.mixers.contains(&Mixer::Recurrent);
    let kind = out.config.str("position_embedding_type");
    let is_rope = kind == Some("rope");
    if is_rope == has_states {
        let what = format!(
            "is {kind:?}, but {} in GGUF rotates if no layer has a state",
            out.family.architecture
        );
        return Err(out.config.error(&["position_embedding_type"], &what));
    }
    out.set("rope.scaling.finetuned", !has_states);
    if has_states {
        out.set("context_length", 1_u32 << 20);
    }
    Ok(())
}

pub(super) const NEMOTRON_H: Traits = Traits {
    globals: &[
        row("token_embd", "backbone.embeddings", &[n_vocab, n_embd]),
        row("output_norm", "backbone.norm_f", &[n_embd]),
        row("output", "lm_head", &[n_vocab, n_embd]).need(Need::Unless(is_tied)),
    ],
    layers: "backbone.layers.",
    blocks: &[
        block(&[row("attn_norm", "norm", &[n_embd])]),
        block_when(has_state, state_rows!("mixer")),
        block_when(attends, NEMOTRON_ATTENTION),
        block_when(
            feeds,
            &[
                row("ffn_up", "mixer.up_proj", &[n_ff, n_embd]).bias(MLP_BIAS),
                row("ffn_down", "mixer.down_proj", &[n_embd, n_ff]).bias(MLP_BIAS),
            ],
        ),
    ],
    keys: &[
        Key::By(write_states),
        Key::By(write_no_rotation),
        Key::By(write_widths),
    ],
    mixers: by_pattern,
    respell: respell_nemotron,
    sizes: NEMOTRON_SIZES,
    activations: &["relu2"],
    head_dim: HeadDim::InKeys,
    rope: RopeTraits {
        base: 0.0,
        ..RopeTraits::DIVIDED
    },
    means: NEMOTRON_MEANS,
    ..Traits::LLAMA_TABLES
};

const NEMOTRON_SIZES: &[(&str, Option<u32>)] = &[
    ("mamba_num_heads", None),
    ("n_groups", None),
    ("conv_kernel", Some(4)),
    ("ssm_state_size", None),
    ("mamba_head_dim", None),
    ("moe_shared_expert_intermediate_size", Some(0)),
    ("moe_latent_size", Some(0)),
];

const NEMOTRON_MEANS: &[Means] = &[
    means("use_conv_bias", Neutral::On),
    means("mamba_proj_bias", Neutral::Off),
    means("use_bias", Neutral::Off),
    means("mamba_hidden_act", Neutral::Text(&["silu"])),
    means("mlp_hidden_act", Neutral::Text(&["relu2"])),
    means("group_limited_greedy", Neutral::Off),
];

/// Rows of queries and keys are reordered to pairs although nothing rotates, as in llama.cpp's converter; scores do not
/// change.
const NEMOTRON_ATTENTION: &[Row] = &[
    row("attn_q", "mixer.q_proj", &[n_q, n_embd]).changed(|shape| Change::PairRows(shape.n_head)),
    row("attn_k", "mixer.k_proj", &[n_kv, n_embd])
        .changed(|shape| Change::PairRows(shape.n_head_kv)),
    row("attn_v", "mixer.v_proj", &[n_kv, n_embd]),
    row("attn_output", "mixer.o_proj", &[n_embd, n_q]).bias(ATTENTION_BIAS),
];

fn feeds(shape: &Shape, layer: u32) -> bool {
    shape.mixer(layer) == Mixer::Feed
}

pub(super) const NEMOTRON_H_MOE: Traits = Traits {
    blocks: &[
        block(&[row("attn_norm", "norm", &[n_embd])]),
        block_when(has_state, state_rows!("mixer")),
        block_when(attends, NEMOTRON_ATTENTION),
        sparse(has_nemotron_experts, NEMOTRON_ROUTER, NEMOTRON_EXPERTS),
        block_when(
            |shape, layer| has_nemotron_experts(shape, layer) && n_latent(shape) > 0,
            NEMOTRON_LATENT,
        ),
        block_when(is_nextn, NEXTN),
        block_when(
            is_nextn,
            &[row(
                "post_attention_norm",
                "post_attention_layernorm",
                &[n_embd],
            )],
        ),
    ],
    keys: &[
        Key::By(write_states),
        Key::By(write_no_rotation),
        Key::By(write_widths),
        EXPERT_WIDTH,
        Key::Count(
            "moe_shared_expert_intermediate_size",
            "expert_shared_feed_forward_length",
            Or::Missing,
        ),
        Key::Count("n_shared_experts", "expert_shared_count", Or::Missing),
        Key::Flag("norm_topk_prob", "expert_weights_norm", Or::Missing),
        Key::Number("routed_scaling_factor", "expert_weights_scale", Or::Missing),
        Key::Count("moe_latent_size", "moe_latent_size", Or::Nothing),
        Key::By(write_nextn),
    ],
    experts: ExpertSizes::Always("moe_intermediate_size"),
    nextn: Nextn::Halves,
    ..NEMOTRON_H
};

/// An MTP block after the layers has both attention and experts.
fn has_nemotron_experts(shape: &Shape, layer: u32) -> bool {
    feeds(shape, layer) || is_nextn(shape, layer)
}

fn n_shared(shape: &Shape) -> u64 {
    shape.size("moe_shared_expert_intermediate_size")
}

fn n_latent(shape: &Shape) -> u64 {
    shape.size("moe_latent_size")
}

const NEMOTRON_ROUTER: &[Row] = &[
    row("ffn_gate_inp", "mixer.gate", &[n_expert, n_embd]),
    bare(
        "exp_probs_b.bias",
        "mixer.gate.e_score_correction_bias",
        &[n_expert],
    ),
    row(
        "ffn_up_shexp",
        "mixer.shared_experts.up_proj",
        &[n_shared, n_embd],
    ),
    row(
        "ffn_down_shexp",
        "mixer.shared_experts.down_proj",
        &[n_embd, n_shared],
    ),
];

const NEMOTRON_EXPERTS: Experts = Experts {
    from: "mixer.experts",
    parts: &[("down", "down_proj"), ("up", "up_proj")],
    width: |shape| match n_latent(shape) {
        0 => n_embd(shape),
        n => n,
    },
    may_be_turned: false,
};

const NEMOTRON_LATENT: &[Row] = &[
    row(
        "ffn_latent_down",
        "mixer.fc1_latent_proj",
        &[n_latent, n_embd],
    ),
    row(
        "ffn_latent_up",
        "mixer.fc2_latent_proj",
        &[n_embd, n_latent],
    ),
];

/// Whether a model has experts. transformers 5 writes their settings for every model.
pub(super) fn lists_experts(config: &Config) -> bool {
    names_experts(config.map()).unwrap_or_else(|| uses_experts(config))
}

/// Whether the pattern of layers has experts, if there is a pattern.
fn names_experts(config: &Object) -> Option<bool> {
    match config
        .get("layers_block_type")
        .or_else(|| config.get("hybrid_override_pattern"))?
    {
        Value::String(letters) => Some(letters.contains('E')),
        Value::Array(words) => Some(words.iter().any(|word| word == "moe")),
        _ => None,
    }
}

/// transformers 5 saves no number of layers, and settings of experts that a model without them does not have.
fn respell_nemotron(config: &mut Object) -> Result<(), NotSpelled> {
    if let Some(n_layer) = config
        .get("layers_block_type")
        .and_then(Value::as_array)
        .map(Vec::len)
    {
        config.entry("num_hidden_layers").or_insert(n_layer.into());
    }
    if names_experts(config) == Some(false) {
        config.retain(|key, _| !is_one_of(OF_EXPERTS, key));
    }
    Ok(())
}

const OF_EXPERTS: &str = "\
    moe_intermediate_size moe_latent_size moe_shared_expert_intermediate_size n_group n_routed_experts \
    n_shared_experts norm_topk_prob num_experts_per_tok routed_scaling_factor topk_group";

/// One letter per layer, or a list of words.
fn by_pattern(config: &Config, n_layer: u32) -> Result<Vec<Mixer>, HfError> {
    let keys = ["layers_block_type", "hybrid_override_pattern"];
    let kinds: Vec<String> = match config.find(&keys) {
        Some(Value::String(letters)) => letters.chars().map(String::from).collect(),
        Some(Value::Array(words)) => {
            let words = words.iter().map(|word| word.as_str().unwrap_or_default());
            words.map(str::to_owned).collect()
        }
        _ => return with_states(config, n_layer),
    };
    let mixers = kinds.iter().map(|kind| match kind.as_str() {
        "M" | "mamba" | "linear_attention" => Ok(Mixer::Recurrent),
        "*" | "attention" | "full_attention" => Ok(Mixer::Full),
        "-" | "E" | "mlp" | "moe" => Ok(Mixer::Feed),
        other => Err(config.error(&keys, &format!("has the unknown value {other:?}"))),
    });
    let mixers = mixers.collect::<Result<Vec<_>, _>>()?;
    check_len(config, "hybrid_override_pattern", mixers.len(), n_layer)?;
    Ok(mixers)
}

fn write_no_rotation(out: &mut Description<'_>) -> Result<(), HfError> {
    out.set("rope.scaling.finetuned", false);
    out.set("context_length", 1_u32 << 20);
    out.set("attention.key_length", out.shape.head_dim);
    out.set("attention.value_length", out.shape.head_dim);
    check_time_steps(out.config)
}

/// Refuses limits of the time step, which the engine does not have; infinity is not one.
fn check_time_steps(config: &Config) -> Result<(), HfError> {
    let limit = config.find(&["time_step_limit"]).and_then(Value::as_array);
    let is_none = limit.is_none_or(|limit| {
        let low = limit.first().and_then(Value::as_f64);
        let high = limit.get(1).and_then(Value::as_f64);
        low == Some(0.0) && high.is_none_or(f64::is_infinite)
    });
    if !is_none {
        let what = "is a limit, which GGUF cannot express";
        return Err(config.error(&["time_step_limit"], what));
    }
    Ok(())
}

/// The width of each layer's feed-forward network; 0 for layers without one.
fn write_widths(out: &mut Description<'_>) -> Result<(), HfError> {
    let shape = out.shape;
    let n_ff = shape.n_ff_exp.unwrap_or(shape.n_ff);
    let layers = 0..shape.n_layer + shape.n_nextn;
    let widths = layers.map(|layer| match has_nemotron_experts(shape, layer) {
        true => i32::try_from(n_ff).unwrap_or(i32::MAX),
        false => 0,
    });
    let widths: Vec<_> = widths.collect();
    out.set("feed_forward_length", MetaValue::i32s(&widths));
    Ok(())
}
