//! LFM2: short convolutions in most layers, attention in the others.

use super::super::ConvertError;
use super::super::config::Config;
use super::parameters::{epsilon, narrow};
use super::traits::{Convolutions, Model, Parts, Traits};
use super::wanted::{Wanted, one};
use sluice::file::{GgufHeader, MetaValue};

pub(super) const TRAITS: Traits = Traits {
    layer: layer_tensors,
    write,
    last_norm: ["token_embd_norm.weight", "model.embedding_norm.weight"],
    n_ff,
    convolutions,
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
    if shape.is_conv[layer as usize] {
        let n_taps = u64::from(shape.n_taps);
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

/// Which layers convolve, and the taps of a convolution.
fn convolutions(config: &Config, n_layer: u32) -> Result<Convolutions, ConvertError> {
    let is_conv: Vec<bool> = match config.texts("layer_types")? {
        Some(types) => {
            let kinds = types.iter().map(|&ty| match ty {
                "conv" => Ok(true),
                "full_attention" => Ok(false),
                other => {
                    let what = format!("has {other:?}, which is not known");
                    Err(config.error(&["layer_types"], &what))
                }
            });
            kinds.collect::<Result<_, _>>()?
        }
        None => {
            let attends = config.numbers("full_attn_idxs")?;
            let what = "is missing, as is full_attn_idxs";
            let attends = attends.ok_or_else(|| config.error(&["layer_types"], what))?;
            let layers = (0..n_layer).map(|layer| !attends.contains(&narrow(f64::from(layer))));
            layers.collect()
        }
    };
    // Older files say the same twice.
    let _same = config.find(&["full_attn_idxs"]);
    if is_conv.len() != n_layer as usize {
        let what = format!("has {} entries for {n_layer} layers", is_conv.len());
        return Err(config.error(&["layer_types"], &what));
    }
    let taps = config.count(&["conv_L_cache"])?;
    Ok((is_conv, taps))
}

/// The width of feed-forward networks, which is cut and rounded where the configuration says so.
fn n_ff(config: &Config) -> Result<u32, ConvertError> {
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

fn write(
    header: &mut GgufHeader,
    parts: &Parts<'_>,
    _warnings: &mut Vec<String>,
) -> Result<(), ConvertError> {
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
    let layers = shape.is_conv.iter();
    let n_head_kv: Vec<i32> = layers
        .map(|&is_conv| match is_conv {
            true => 0,
            false => i32::try_from(shape.n_head_kv).unwrap_or(i32::MAX),
        })
        .collect();
    header.set("lfm2.attention.head_count_kv", MetaValue::i32s(&n_head_kv));
    rope.write(header, "lfm2");
    let epsilon = epsilon(config, &["norm_eps", "block_norm_eps"], 1e-5)?;
    header.set("lfm2.attention.layer_norm_rms_epsilon", epsilon);
    header.set("lfm2.vocab_size", shape.n_vocab);
    header.set("lfm2.shortconv.l_cache", shape.n_taps);
    Ok(())
}
