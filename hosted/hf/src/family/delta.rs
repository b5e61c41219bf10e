//! Qwen3-Next and Qwen3.5: gated delta nets in most layers, gated attention in the others.

use super::Shape;
use super::attention::HEAD_NORMS;
use super::description::Description;
use super::keys::{Key, write_nextn, write_sections};
use super::mixers::{self, Mixer};
use super::rope::RopeTraits;
use super::rows::{
    EXPERTS, ROUTER, Row, SWIGLU, always, bare, block, block_when, is_nextn, n_embd, n_kv, n_q,
    one_row, row, sparse,
};
use super::shape::{ExpertSizes, HeadDim, Nextn};
use super::sparse::{NEXTN, QWEN_EXPERT_KEYS, QWEN_GATE, QWEN_SHARED};
use super::traits::{self, Traits, means};
use super::wanted::{Change, Map, Slice};
use crate::HfError;
use crate::config::Config;
use crate::unread::Neutral;
use sluice::file::MetaValue;

// Sizes of the nets: heads of keys and of values, and their columns.

fn n_head_k(shape: &Shape) -> u64 {
    shape.size("linear_num_key_heads").max(1)
}

fn n_head_v(shape: &Shape) -> u64 {
    shape.size("linear_num_value_heads")
}

/// Heads of values to a head of keys.
fn n_group(shape: &Shape) -> u64 {
    (n_head_v(shape) / n_head_k(shape)).max(1)
}

fn dim_k(shape: &Shape) -> u64 {
    shape.size("linear_key_head_dim")
}

fn dim_v(shape: &Shape) -> u64 {
    shape.size("linear_value_head_dim")
}

fn keys_dim(shape: &Shape) -> u64 {
    n_head_k(shape) * dim_k(shape)
}

fn values_dim(shape: &Shape) -> u64 {
    n_head_v(shape) * dim_v(shape)
}

/// Columns of all queries, keys and values.
fn qkv_dim(shape: &Shape) -> u64 {
    2 * keys_dim(shape) + values_dim(shape)
}

fn qkvz_dim(shape: &Shape) -> u64 {
    qkv_dim(shape) + values_dim(shape)
}

fn n_taps(shape: &Shape) -> u64 {
    shape.size("linear_conv_kernel_dim")
}

const SIZES: &[(&str, Option<u32>)] = &[
    ("linear_num_key_heads", Some(16)),
    ("linear_num_value_heads", Some(32)),
    ("linear_key_head_dim", Some(128)),
    ("linear_value_head_dim", Some(128)),
    ("linear_conv_kernel_dim", Some(4)),
    ("shared_expert_intermediate_size", Some(512)),
];

/// The folder orders value heads by key head, the GGUF file by their index within one: the value heads of one key head
/// are then as many heads apart as there are key heads. The first `keep` rows stay in place.
fn regrouped(shape: &Shape, keep: u64, of_a_head: u64) -> Vec<Slice> {
    let (n_head, n_group) = (n_head_k(shape), n_group(shape));
    let len = of_a_head.max(1);
    let mut slices = Vec::new();
    if keep > 0 {
        slices.push(Slice::run(0, keep));
    }
    slices.extend((0..n_group).map(|group| Slice {
        start: keep + group * len,
        len,
        of: n_group * len,
        n: n_head * len,
    }));
    slices
}

/// Splits Qwen3-Next's single projection, which holds the queries, keys, values and gates of each key head together.
fn untangled(shape: &Shape, parts: &[usize]) -> Change {
    let (n_head, n_group) = (n_head_k(shape), n_group(shape));
    let widths = [
        dim_k(shape),
        dim_k(shape),
        n_group * dim_v(shape),
        n_group * dim_v(shape),
    ];
    let of = widths.iter().sum::<u64>().max(1);
    let slices = parts.iter().map(|&part| Slice {
        start: widths[..part].iter().sum(),
        len: widths[part].max(1),
        of,
        n: n_head * widths[part],
    });
    Change::Rows(slices.collect())
}

fn is_net(shape: &Shape, layer: u32) -> bool {
    shape.mixer(layer) == Mixer::Recurrent
}

fn attends(shape: &Shape, layer: u32) -> bool {
    !is_net(shape, layer)
}

const NORMS: &[Row] = &[
    row("attn_norm", "input_layernorm", &[n_embd]),
    row("post_attention_norm", "post_attention_layernorm", &[n_embd]),
];

/// Queries with a gate for each.
const ATTENTION: &[Row] = &[
    row(
        "attn_q",
        "self_attn.q_proj",
        &[|shape| 2 * n_q(shape), n_embd],
    ),
    row("attn_k", "self_attn.k_proj", &[n_kv, n_embd]),
    row("attn_v", "self_attn.v_proj", &[n_kv, n_embd]),
    row("attn_output", "self_attn.o_proj", &[n_embd, n_q]),
];

const NEXT_NET: &[Row] = &[
    row("attn_qkv", "linear_attn.in_proj_qkvz", &[qkv_dim, n_embd])
        .of(&[qkvz_dim, n_embd], |shape| untangled(shape, &[0, 1, 2])),
    row(
        "attn_gate",
        "linear_attn.in_proj_qkvz",
        &[values_dim, n_embd],
    )
    .of(&[qkvz_dim, n_embd], |shape| untangled(shape, &[3])),
    row(
        "ssm_ba",
        "linear_attn.in_proj_ba",
        &[|shape| 2 * n_head_v(shape), n_embd],
    ),
    row("ssm_conv1d", "linear_attn.conv1d", &[qkv_dim, n_taps])
        .of(&[qkv_dim, one_row, n_taps], |_| Change::None),
    bare("ssm_dt.bias", "linear_attn.dt_bias", &[n_head_v]),
    bare("ssm_a", "linear_attn.A_log", &[n_head_v]).mapped(Map::NegExp),
    row("ssm_norm", "linear_attn.norm", &[dim_v]),
    row("ssm_out", "linear_attn.out_proj", &[n_embd, values_dim]),
];

const NET: &[Row] = &[
    row("attn_qkv", "linear_attn.in_proj_qkv", &[qkv_dim, n_embd])
        .changed(|shape| Change::Rows(regrouped(shape, 2 * keys_dim(shape), dim_v(shape)))),
    row("attn_gate", "linear_attn.in_proj_z", &[values_dim, n_embd])
        .changed(|shape| Change::Rows(regrouped(shape, 0, dim_v(shape)))),
    row("ssm_beta", "linear_attn.in_proj_b", &[n_head_v, n_embd]).changed(by_head),
    row("ssm_alpha", "linear_attn.in_proj_a", &[n_head_v, n_embd]).changed(by_head),
    row("ssm_conv1d", "linear_attn.conv1d", &[qkv_dim, n_taps])
        .of(&[qkv_dim, one_row, n_taps], |shape| {
            Change::Rows(regrouped(shape, 2 * keys_dim(shape), dim_v(shape)))
        }),
    bare("ssm_dt.bias", "linear_attn.dt_bias", &[n_head_v]).changed(by_head),
    bare("ssm_a", "linear_attn.A_log", &[n_head_v])
        .changed(by_head)
        .mapped(Map::NegExp),
    row("ssm_norm", "linear_attn.norm", &[dim_v]),
    row("ssm_out", "linear_attn.out_proj", &[n_embd, values_dim])
        .changed(|shape| Change::Columns(regrouped(shape, 0, dim_v(shape)))),
];

fn by_head(shape: &Shape) -> Change {
    Change::Rows(regrouped(shape, 0, 1))
}

const QWEN_NEXT_KEYS: [Key; 3] = [Key::By(write_nextn), Key::By(write_net), Key::Rotates(0.25)];

pub(super) const QWEN3_NEXT: Traits = Traits {
    blocks: &[
        block(NORMS),
        block_when(is_net, NEXT_NET),
        block_when(attends, ATTENTION),
        block_when(attends, HEAD_NORMS),
        sparse(always, ROUTER, EXPERTS),
        block(QWEN_GATE),
        block(QWEN_SHARED),
        block_when(is_nextn, NEXTN),
    ],
    keys: &{
        let ([a, b], [c, d, e]) = (QWEN_EXPERT_KEYS, QWEN_NEXT_KEYS);
        [a, b, c, d, e]
    },
    experts: ExpertSizes::Always("moe_intermediate_size"),
    means: &[means("norm_topk_prob", Neutral::On)],
    ..QWEN
};

const QWEN: Traits = Traits {
    mixers: by_interval,
    sizes: SIZES,
    norms_add_one: true,
    head_dim: HeadDim::Of(256),
    nextn: Nextn::Mtp,
    activations: traits::SILU,
    ..Traits::TABLES
};

pub(super) const QWEN35: Traits = Traits {
    blocks: &[
        block(NORMS),
        block_when(is_net, NET),
        block_when(attends, ATTENTION),
        block_when(attends, HEAD_NORMS),
        block(SWIGLU),
        block_when(is_nextn, NEXTN),
    ],
    keys: &{
        let [a, b, c] = QWEN_NEXT_KEYS;
        [a, b, c, Key::By(|out| write_sections(out, [11, 11, 10, 0]))]
    },
    means: &[means("attn_output_gate", Neutral::On)],
    is_wrapped: true,
    rope: RopeTraits {
        has_sections: true,
        ..RopeTraits::PLAIN
    },
    ..QWEN
};

pub(super) const QWEN35_MOE: Traits = Traits {
    blocks: &[
        block(NORMS),
        block_when(is_net, NET),
        block_when(attends, ATTENTION),
        block_when(attends, HEAD_NORMS),
        sparse(always, ROUTER, EXPERTS),
        block(QWEN_GATE),
        block(QWEN_SHARED),
        block_when(is_nextn, NEXTN),
    ],
    keys: &{
        let ([a, b], [c, d, e]) = (QWEN_EXPERT_KEYS, QWEN_NEXT_KEYS);
        [
            a,
            b,
            c,
            d,
            e,
            Key::By(|out| write_sections(out, [11, 11, 10, 0])),
        ]
    },
    experts: ExpertSizes::Always("moe_intermediate_size"),
    n_ff: |config| Ok(config.maybe_count(&["intermediate_size"])?.unwrap_or(0)),
    means: &[
        means("attn_output_gate", Neutral::On),
        means("norm_topk_prob", Neutral::On),
    ],
    ..QWEN35
};

/// The mixers that the configuration lists, or full attention in every `full_attention_interval`th layer.
fn by_interval(config: &Config, n_layer: u32) -> Result<Vec<Mixer>, HfError> {
    check_heads(config)?;
    let interval = config
        .maybe_count(&["full_attention_interval"])?
        .unwrap_or(4);
    let listed = mixers::with_states(config, n_layer)?;
    if !listed.is_empty() {
        return Ok(listed);
    }
    let layers = (1..=n_layer).map(|layer| match layer % interval {
        0 => Mixer::Full,
        _ => Mixer::Recurrent,
    });
    Ok(layers.collect())
}

/// Checks that the value heads divide evenly among the key heads.
fn check_heads(config: &Config) -> Result<(), HfError> {
    let key = "linear_num_value_heads";
    let n_head_k = config.maybe_count(&["linear_num_key_heads"])?.unwrap_or(16);
    let n_head_v = config.maybe_count(&[key])?.unwrap_or(32);
    // Far above any real model; limits what a hostile file can request.
    if n_head_v.is_multiple_of(n_head_k) && n_head_v / n_head_k <= 1024 {
        return Ok(());
    }
    let what = format!("is {n_head_v}, which does not match the {n_head_k} heads of keys");
    Err(config.error(&[key], &what))
}

fn write_net(out: &mut Description<'_>) -> Result<(), HfError> {
    let shape = out.shape;
    out.set_size("ssm.conv_kernel", n_taps(shape));
    out.set_size("ssm.state_size", dim_k(shape));
    out.set_size("ssm.group_count", n_head_k(shape));
    out.set_size("ssm.time_step_rank", n_head_v(shape));
    out.set_size("ssm.inner_size", values_dim(shape));
    let layers = 0..shape.n_layer + shape.n_nextn;
    let is_net: Vec<_> = layers.map(|layer| is_net(shape, layer)).collect();
    out.set("attention.recurrent_layers", MetaValue::bools(&is_net));
    let interval = out.config.maybe_count(&["full_attention_interval"])?;
    out.set("full_attention_interval", interval.unwrap_or(4));
    Ok(())
}
