//! LFM2: short convolutions in most layers, attention in the others.

use super::Shape;
use super::context::{epsilon, narrow};
use super::description::Description;
use super::keys::{EXPERT_WIDTH, Key, N_VOCAB, Or, Said};
use super::mixers::{self, Mixer};
use super::rope::RopeTraits;
use super::rows::{
    Experts, Need, Row, bare, block, block_when, head_dim, is_tied, n_embd, n_expert, n_ff, n_kv,
    n_q, n_vocab, one_row, row, sparse,
};
use super::shape::ExpertSizes;
use super::traits::{Traits, means};
use super::wanted::Change;
use crate::HfError;
use crate::config::Config;
use crate::unread::Neutral;
use sluice::file::MetaValue;

pub(super) const LFM2: Traits = Traits {
    globals: GLOBALS,
    blocks: &[
        block(NORMS),
        block_when(convolves, CONVOLUTION),
        block_when(attends, ATTENTION),
        block(SWIGLU),
    ],
    keys: &[
        Key::By(write_heads),
        Key::By(write_epsilon),
        N_VOCAB,
        Key::Count("conv_L_cache", "shortconv.l_cache", Or::Missing),
    ],
    n_ff: adjusted_width,
    mixers,
    sizes: &[("conv_L_cache", None)],
    means: &[means("is_causal", Neutral::On)],
    is_tied: true,
    rope: RopeTraits::of_base(1e6),
    ..Traits::TABLES
};

const GLOBALS: &[Row] = &[
    row("token_embd", "model.embed_tokens", &[n_vocab, n_embd]),
    row("token_embd_norm", "model.embedding_norm", &[n_embd]),
    row("output", "lm_head", &[n_vocab, n_embd]).need(Need::Unless(is_tied)),
];

const NORMS: &[Row] = &[
    row("attn_norm", "operator_norm", &[n_embd]),
    row("ffn_norm", "ffn_norm", &[n_embd]),
];

const CONVOLUTION: &[Row] = &[
    row(
        "shortconv.in_proj",
        "conv.in_proj",
        &[|shape| 3 * n_embd(shape), n_embd],
    ),
    row("shortconv.out_proj", "conv.out_proj", &[n_embd, n_embd]),
    row("shortconv.conv", "conv.conv", &[n_embd, n_taps])
        .of(&[n_embd, one_row, n_taps], |_| Change::None),
];

const ATTENTION: &[Row] = &[
    row("attn_q", "self_attn.q_proj", &[n_q, n_embd]),
    row("attn_k", "self_attn.k_proj", &[n_kv, n_embd]),
    row("attn_v", "self_attn.v_proj", &[n_kv, n_embd]),
    row("attn_output", "self_attn.out_proj", &[n_embd, n_q]),
    row("attn_q_norm", "self_attn.q_layernorm", &[head_dim]),
    row("attn_k_norm", "self_attn.k_layernorm", &[head_dim]),
];

const SWIGLU: &[Row] = &[
    row("ffn_gate", "feed_forward.w1", &[n_ff, n_embd]),
    row("ffn_down", "feed_forward.w2", &[n_embd, n_ff]),
    row("ffn_up", "feed_forward.w3", &[n_ff, n_embd]),
];

/// Which layers convolve.
pub(super) fn mixers(config: &Config, n_layer: u32) -> Result<Vec<Mixer>, HfError> {
    // Read even if layer_types is present: older files have both keys.
    let attends = config.numbers("full_attn_idxs")?;
    let listed = mixers::with_states(config, n_layer)?;
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
fn adjusted_width(config: &Config) -> Result<u32, HfError> {
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

fn write_heads(out: &mut Description<'_>) -> Result<(), HfError> {
    out.set("attention.head_count_kv", heads_by_layer(out.shape));
    Ok(())
}

fn write_epsilon(out: &mut Description<'_>) -> Result<(), HfError> {
    let epsilon = epsilon(out.config, &["norm_eps", "block_norm_eps"], 1e-5)?;
    out.set("attention.layer_norm_rms_epsilon", epsilon);
    Ok(())
}

pub(super) const LFM2_MOE: Traits = Traits {
    globals: GLOBALS,
    blocks: &[
        block(NORMS),
        block_when(convolves, CONVOLUTION),
        block_when(attends, ATTENTION),
        block_when(|shape, layer| !has_experts(shape, layer), SWIGLU),
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
                may_be_turned: false,
            },
        ),
    ],
    keys: &[
        Key::By(write_heads),
        EXPERT_WIDTH,
        Key::Count("num_dense_layers", "leading_dense_block_count", Or::Missing),
        Key::Always("expert_gating_func", Said::Number(2)),
        N_VOCAB,
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
    rope: RopeTraits::of_base(1e6),
    ..Traits::TABLES
};

fn convolves(shape: &Shape, layer: u32) -> bool {
    shape.mixer(layer) == Mixer::Recurrent
}

fn attends(shape: &Shape, layer: u32) -> bool {
    !convolves(shape, layer)
}

fn has_experts(shape: &Shape, layer: u32) -> bool {
    u64::from(layer) >= shape.size("num_dense_layers")
}

fn n_taps(shape: &Shape) -> u64 {
    shape.size("conv_L_cache")
}
