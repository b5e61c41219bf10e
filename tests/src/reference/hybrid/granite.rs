//! Granite 4.0's hybrids: Mamba 2 or attention, then a network, with four scalars.

use super::super::Unreadable;
use super::super::source::Source;
use super::attention::{Attention, Heads};
use super::keys::Keys;
use super::layer::{Branch, Layer, Part};
use super::mamba::{Mamba, MambaHeads};
use super::network::{Activation, Dense, ExpertSizes, Experts, Mixture, Router};
use super::rope::Rope;
use super::{Body, Common};

pub(super) fn load(
    keys: &mut Keys<'_>,
    source: &mut Source<'_>,
    common: Common,
) -> Result<Body, Unreadable> {
    let Common {
        n_embd,
        n_layer,
        n_head,
        eps,
        ..
    } = common;
    let mamba = MambaHeads::load(keys, n_embd, eps)?;
    let n_head_kv = keys.lengths("attention.head_count_kv", common.n_block)?;
    let len = keys.length("attention.key_length")?;
    keys.skip(&["attention.value_length"]);
    // The key of a scaling that is none says whether there are positions.
    let has_key = keys.has("rope.scaling.finetuned");
    let has_rope = !has_key || keys.is_set("rope.scaling.finetuned");
    let rope = Rope::new(
        keys.length("rope.dimension_count")?,
        keys.number("rope.freq_base")?,
    );
    let rope = has_rope.then(|| rope.of_neighbours());
    let attention_scale = keys.optional_number("attention.scale");
    let heads = Heads {
        n_embd,
        n_head,
        n_head_kv: 0,
        len,
        scale: attention_scale.unwrap_or_else(|| 1.0 / (len as f64).sqrt()),
        eps,
        rope,
        window: None,
        has_norms: false,
        has_gates: false,
        normalises_values: false,
        keys_of: 0,
    };
    let scale = keys.optional_number("residual_scale").unwrap_or(1.0);
    let n_ff = keys.length("feed_forward_length")?;
    // A network's width is that of the experts, where there are some.
    let experts = match keys.optional_length("expert_count")? {
        None => None,
        Some(n_expert) => Some(ExpertSizes {
            n_expert,
            n_used: keys.length("expert_used_count")?,
            n_in: n_embd,
            n_ff,
            activation: Activation::Silu,
        }),
    };
    let n_ff_shared = keys.optional_length("expert_shared_feed_forward_length")?;
    let layer = |layer: usize| {
        let mut norm =
            |tensor: &str| source.vector(&format!("blk.{layer}.{tensor}.weight"), n_embd);
        let attn_norm = norm("attn_norm")?;
        let ffn_norm = norm("ffn_norm")?;
        let mixer = match n_head_kv[layer] {
            0 => Part::Mamba(Mamba::load(source, layer, mamba)?),
            n_head_kv => {
                let heads = Heads {
                    n_head_kv,
                    keys_of: layer,
                    ..heads.clone()
                };
                Part::Attention(Attention::load(source, layer, heads)?)
            }
        };
        let mut dense = |suffix, n_ff| {
            let silu = Activation::Silu;
            Dense::load(source, layer, suffix, silu, [n_ff, n_embd])
        };
        let network = match experts {
            None => Part::Dense(dense("", n_ff)?),
            Some(sizes) => {
                let shared = n_ff_shared.map(|n_ff| dense("_shexp", n_ff));
                Part::Mixture(Mixture {
                    shared: shared.transpose()?,
                    router: Router::load(source, layer, n_embd, sizes)?,
                    experts: Experts::load(source, layer, sizes)?,
                    latent: None,
                    shared_gate: None,
                })
            }
        };
        let scaled = |norm, part| Branch {
            scale,
            ..Branch::new(norm, part)
        };
        Ok(Layer::new(vec![
            scaled(attn_norm, mixer),
            scaled(ffn_norm, network),
        ]))
    };
    let layers = (0..n_layer).map(layer).collect::<Result<_, _>>()?;
    Ok(Body {
        embedding_scale: keys.optional_number("embedding_scale").unwrap_or(1.0),
        logit_divisor: keys.optional_number("logit_scale").unwrap_or(1.0),
        ..Body::new(layers)
    })
}
