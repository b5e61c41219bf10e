//! LFM2: short convolutions in most layers, attention in the others.

use super::Shape;
use super::context::{epsilon, narrow};
use super::keys::{Key, Or, Said};
use super::mixers::{self, Mixer};
use super::parts::{Model, Parts};
use super::rows::{
    Experts, bare, block, block_when, head_dim, n_embd, n_expert, n_ff as n_ff_of, n_kv, n_q,
    n_vocab, one_row, row, sparse,
};
use super::shape::ExpertSizes;
use super::traits::{Traits, means};
use super::wanted::Change;
use super::wanted::{Wanted, one};
use crate::HfError;
use crate::config::Config;
use crate::unread::Neutral;
use sluice::file::{GgufHeader, MetaValue};

pub(super) const TRAITS: Traits = Traits {
    layer: layer_tensors,
    write,
    last_norm: ["token_embd_norm.weight", "model.embedding_norm.weight"],
    n_ff,
    mixers,
    sizes: &[("conv_L_cache", None)],
    head_dim: |_, _| None,
    is_tied: true,
    rope_base: 1e6,
    ..Traits::LLAMA
};

fn layer_tensors(model: &Model<'_>, layer: u32, all: &mut Vec<Wanted>) {
    let shape = model.shape;
    let (to, from) = (format!("blk.{layer}."), format!("model.layers.{layer}."));
    let (n_embd, n_ff) = (u64::from(shape.n_embd), u64::from(shape.n_ff));
    let head_dim = u64::from(shape.head_dim);
    let n_kv = u64::from(shape.n_head_kv) * head_dim;
    let mut add = |name: &str, source: &str, dims: &[u64]| {
        let (name, source) = (
            format!("{to}{name}.weight"),
            format!("{from}{source}.weight"),
        );
        all.push(one(&name, &source, dims));
    };
    add("attn_norm", "operator_norm", &[n_embd]);
    add("ffn_norm", "ffn_norm", &[n_embd]);
    add("ffn_gate", "feed_forward.w1", &[n_ff, n_embd]);
    add("ffn_down", "feed_forward.w2", &[n_embd, n_ff]);
    add("ffn_up", "feed_forward.w3", &[n_ff, n_embd]);
    if shape.mixer(layer) == Mixer::Recurrent {
        let n_taps = shape.size("conv_L_cache");
        add("shortconv.in_proj", "conv.in_proj", &[3 * n_embd, n_embd]);
        add("shortconv.out_proj", "conv.out_proj", &[n_embd, n_embd]);
        add("shortconv.conv", "conv.conv", &[n_embd, n_taps]);
        if let Some(taps) = all.last_mut() {
            taps.source = vec![n_embd, 1, n_taps];
        }
    } else {
        let n_q = u64::from(shape.n_head) * head_dim;
        add("attn_q", "self_attn.q_proj", &[n_q, n_embd]);
        add("attn_k", "self_attn.k_proj", &[n_kv, n_embd]);
        add("attn_v", "self_attn.v_proj", &[n_kv, n_embd]);
        add("attn_output", "self_attn.out_proj", &[n_embd, n_q]);
        add("attn_q_norm", "self_attn.q_layernorm", &[head_dim]);
        add("attn_k_norm", "self_attn.k_layernorm", &[head_dim]);
    }
}

/// Which layers convolve.
pub(super) fn mixers(config: &Config, n_layer: u32) -> Result<Vec<Mixer>, HfError> {
    // Read even if layer_types is present: older files have both keys.
    let attends = config.numbers("full_attn_idxs")?;
    let listed = mixers::listed(config, n_layer)?;
    if !listed.is_empty() {
        return Ok(listed);
    }
    let what = "is missing, as is full_attn_idxs";
    let attends = attends.ok_or_else(|| config.error(&["layer_types"], what))?;
    let layers = (0..n_layer).map(|layer| match attends.contains(&narrow(f64::from(layer))) {
        true => Mixer::Full,
        false => Mixer::Recurrent,
    });
    Ok(layers.collect())
}

/// The feed-forward width, reduced and rounded if the configuration asks for it.
fn n_ff(config: &Config) -> Result<u32, HfError> {
    let given = config.count(&["block_ff_dim", "intermediate_size"])?;
    let adjusts = config.bool("block_auto_adjust_ff_dim").unwrap_or(true);
    let factor = config.maybe_number(&["block_ffn_dim_multiplier"])?;
    let multiple = config.maybe_count(&["block_multiple_of"])?.unwrap_or(256);
    if !adjusts {
        return Ok(given);
    }
    let cut = 2 * given / 3;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the fraction is dropped, as upstream does; negative and large become 0 and MAX"
    )]
    let scaled = factor.map_or(cut, |factor| (factor * f64::from(cut)) as u32);
    Ok(scaled.div_ceil(multiple).saturating_mul(multiple))
}

/// Key heads of each layer; 0 for layers without attention.
pub(super) fn heads_by_layer(shape: &Shape) -> MetaValue {
    let layers = 0..shape.n_layer + shape.n_nextn;
    let heads = layers.map(|layer| match shape.mixer(layer) {
        Mixer::Full | Mixer::Window => i32::try_from(shape.n_head_kv).unwrap_or(i32::MAX),
        Mixer::Recurrent | Mixer::Feed => 0,
    });
    MetaValue::i32s(&heads.collect::<Vec<_>>())
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
    let n_ctx = config.count(&["max_position_embeddings"])?;
    header.set("lfm2.block_count", shape.n_layer);
    header.set("lfm2.context_length", n_ctx);
    header.set("lfm2.embedding_length", shape.n_embd);
    header.set("lfm2.feed_forward_length", shape.n_ff);
    header.set("lfm2.attention.head_count", shape.n_head);
    header.set("lfm2.attention.head_count_kv", heads_by_layer(shape));
    rope.write(header, "lfm2");
    let epsilon = epsilon(config, &["norm_eps", "block_norm_eps"], 1e-5)?;
    header.set("lfm2.attention.layer_norm_rms_epsilon", epsilon);
    header.set("general.file_type", parts.file_type);
    header.set("lfm2.vocab_size", shape.n_vocab);
    let n_taps = config.count(&["conv_L_cache"])?;
    header.set("lfm2.shortconv.l_cache", n_taps);
    Ok(())
}

pub(super) const LFM2_MOE: Traits = Traits {
    globals: &[
        row("token_embd", "model.embed_tokens", &[n_vocab, n_embd]),
        row("token_embd_norm", "model.embedding_norm", &[n_embd]),
    ],
    blocks: &[
        block(&[
            row("attn_norm", "operator_norm", &[n_embd]),
            row("ffn_norm", "ffn_norm", &[n_embd]),
        ]),
        block_when(
            convolves,
            &[
                row(
                    "shortconv.in_proj",
                    "conv.in_proj",
                    &[|shape| 3 * n_embd(shape), n_embd],
                ),
                row("shortconv.out_proj", "conv.out_proj", &[n_embd, n_embd]),
                row("shortconv.conv", "conv.conv", &[n_embd, n_taps])
                    .of(&[n_embd, one_row, n_taps], |_| Change::None),
            ],
        ),
        block_when(
            |shape, layer| !convolves(shape, layer),
            &[
                row("attn_q", "self_attn.q_proj", &[n_q, n_embd]),
                row("attn_k", "self_attn.k_proj", &[n_kv, n_embd]),
                row("attn_v", "self_attn.v_proj", &[n_kv, n_embd]),
                row("attn_output", "self_attn.out_proj", &[n_embd, n_q]),
                row("attn_q_norm", "self_attn.q_layernorm", &[head_dim]),
                row("attn_k_norm", "self_attn.k_layernorm", &[head_dim]),
            ],
        ),
        block_when(
            |shape, layer| !has_experts(shape, layer),
            &[
                row("ffn_gate", "feed_forward.w1", &[n_ff_of, n_embd]),
                row("ffn_down", "feed_forward.w2", &[n_embd, n_ff_of]),
                row("ffn_up", "feed_forward.w3", &[n_ff_of, n_embd]),
            ],
        ),
        sparse(
            has_experts,
            &[
                row("ffn_gate_inp", "feed_forward.gate", &[n_expert, n_embd]),
                bare("exp_probs_b.bias", "feed_forward.expert_bias", &[n_expert]),
            ],
            Experts {
                from: "feed_forward.experts",
                parts: &[("gate", "w1"), ("down", "w2"), ("up", "w3")],
                width: n_embd,
            },
        ),
    ],
    keys: &[
        Key::By(|header, parts, _| {
            header.set(
                "lfm2moe.attention.head_count_kv",
                heads_by_layer(parts.shape),
            );
            Ok(())
        }),
        Key::Count(
            "moe_intermediate_size",
            "expert_feed_forward_length",
            Or::Missing,
        ),
        Key::Count("num_dense_layers", "leading_dense_block_count", Or::Missing),
        Key::Always("expert_gating_func", Said::Number(2)),
        Key::Count("vocab_size", "vocab_size", Or::Missing),
        Key::Count("conv_L_cache", "shortconv.l_cache", Or::Missing),
    ],
    mixers,
    sizes: &[("conv_L_cache", None), ("num_dense_layers", Some(0))],
    experts: ExpertSizes::Always("moe_intermediate_size"),
    means: &[
        means("use_expert_bias", Neutral::On),
        means("norm_topk_prob", Neutral::On),
    ],
    is_tied: true,
    rope_base: 1e6,
    ..Traits::TABLES
};

fn convolves(shape: &Shape, layer: u32) -> bool {
    shape.mixer(layer) == Mixer::Recurrent
}

fn has_experts(shape: &Shape, layer: u32) -> bool {
    u64::from(layer) >= shape.size("num_dense_layers")
}

fn n_taps(shape: &Shape) -> u64 {
    shape.size("conv_L_cache")
}
