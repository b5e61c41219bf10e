//! DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash: latent attention, and experts after the first layers.

use super::super::Unreadable;
use super::super::source::Source;
use super::keys::Keys;
use super::latent::{LatentAttention, LatentHeads};
use super::layer::{Branch, Layer, Part};
use super::network::{Activation, Dense, ExpertSizes, Experts, Mixture, Router};
use super::rope::{Rope, Yarn};
use super::{Body, Common};

pub(super) fn load(
    keys: &mut Keys<'_>,
    source: &mut Source<'_>,
    common: Common,
) -> Result<Body, Unreadable> {
    let Common {
        n_embd, n_layer, ..
    } = common;
    let heads = heads(keys, common)?;
    let n_dense = keys
        .optional_length("leading_dense_block_count")?
        .unwrap_or(0);
    let n_ff = keys.length("feed_forward_length")?;
    let sizes = ExpertSizes {
        n_expert: keys.length("expert_count")?,
        n_used: keys.length("expert_used_count")?,
        n_in: n_embd,
        n_ff: keys.length("expert_feed_forward_length")?,
        activation: Activation::Silu,
    };
    let n_ff_shared = sizes.n_ff * keys.length("expert_shared_count")?;
    let is_sigmoid = match keys.optional_length("expert_gating_func")? {
        None | Some(1) => false,
        Some(2) => true,
        Some(other) => return Err(Unreadable::new(format!("scores of kind {other}"))),
    };
    let n_group = keys.optional_length("expert_group_count")?.unwrap_or(1);
    let n_group_used = keys.optional_length("expert_group_used_count")?;
    let is_normalised = keys.is_set("expert_weights_norm");
    let scale = keys.optional_number("expert_weights_scale").unwrap_or(1.0);
    let layer = |layer: usize| {
        let mut norm =
            |tensor: &str| source.vector(&format!("blk.{layer}.{tensor}.weight"), n_embd);
        let attn_norm = norm("attn_norm")?;
        let ffn_norm = norm("ffn_norm")?;
        let attention = LatentAttention::load(source, layer, heads.clone())?;
        let mut dense = |suffix, n_ff| {
            let silu = Activation::Silu;
            Dense::load(source, layer, suffix, silu, [n_ff, n_embd])
        };
        let network = if layer < n_dense {
            Part::Dense(dense("", n_ff)?)
        } else {
            Part::Mixture(Mixture {
                shared: Some(dense("_shexp", n_ff_shared)?),
                router: Router {
                    is_sigmoid,
                    n_group,
                    n_group_used: n_group_used.unwrap_or(n_group),
                    is_normalised,
                    scale,
                    ..Router::load(source, layer, n_embd, sizes)?
                },
                experts: Experts::load(source, layer, sizes)?,
                latent: None,
                shared_gate: None,
            })
        };
        Ok(Layer::new(vec![
            Branch::new(attn_norm, Part::Latent(attention)),
            Branch::new(ffn_norm, network),
        ]))
    };
    Ok(Body::new(
        (0..n_layer).map(layer).collect::<Result<_, _>>()?,
    ))
}

fn heads(keys: &mut Keys<'_>, common: Common) -> Result<LatentHeads, Unreadable> {
    let n_rot = keys.length("rope.dimension_count")?;
    // Files for keys and values in one tensor have the lengths under the usual names; in others those
    // are the lengths of what is kept of a token.
    let key_len = keys.length("attention.key_length")?;
    let value_len = keys.length("attention.value_length")?;
    let key_len = keys
        .optional_length("attention.key_length_mla")?
        .unwrap_or(key_len);
    let value_len = keys
        .optional_length("attention.value_length_mla")?
        .unwrap_or(value_len);
    keys.skip(&["attention.head_count_kv"]);
    let (rope, sharpness) = rope(keys, n_rot)?;
    Ok(LatentHeads {
        n_embd: common.n_embd,
        n_head: common.n_head,
        q_rank: keys.optional_length("attention.q_lora_rank")?.unwrap_or(0),
        rank: keys.length("attention.kv_lora_rank")?,
        n_nope: key_len - n_rot,
        n_rot,
        value_len,
        scale: sharpness.powi(2) / (key_len as f64).sqrt(),
        eps: common.eps,
        rope,
    })
}

/// Neighbours' rotation, and what the scale of attention has the square of.
///
/// Source: DeepSeek's YaRN, with equal `mscale` and `mscale_all_dim`, as all files have them; the key
/// holds a tenth of it. Without the key rotated elements are magnified instead, as others do.
fn rope(keys: &mut Keys<'_>, n_rot: usize) -> Result<(Rope, f64), Unreadable> {
    let base = keys.number("rope.freq_base")?;
    let rope = Rope::new(n_rot, base).of_neighbours();
    match keys.text("rope.scaling.type") {
        None => return Ok((rope, 1.0)),
        Some("yarn") => {}
        Some(other) => return Err(Unreadable::new(format!("scaling {other}"))),
    }
    let factor = keys.number("rope.scaling.factor")?;
    let (magnitude, sharpness) = match keys.optional_number("rope.scaling.yarn_log_multiplier") {
        Some(tenth) => (1.0, 1.0 + tenth * factor.ln()),
        None => (1.0 + 0.1 * factor.ln(), 1.0 + 0.1 * factor.ln()),
    };
    let yarn = Yarn {
        factor,
        n_ctx_orig: keys.length("rope.scaling.original_context_length")? as f64,
        magnitude,
    };
    Ok((rope.stretched(base, yarn), sharpness))
}
