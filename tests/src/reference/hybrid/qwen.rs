//! Qwen3-Next and its successors: gated delta nets, and attention in some layers.

use super::super::Unreadable;
use super::super::source::Source;
use super::attention::{Attention, Heads};
use super::delta_net::{DeltaNet, NetHeads};
use super::keys::Keys;
use super::layer::{Branch, Layer, Part};
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
    // Of text all positions are equal, and sections of them make no difference.
    keys.skip(&["rope.dimension_sections"]);
    let len = keys.length("attention.key_length")?;
    keys.skip(&["attention.value_length"]);
    let n_value = keys.length("ssm.time_step_rank")?;
    let net = NetHeads {
        n_embd,
        n_key: keys.length("ssm.group_count")?,
        n_value,
        len: keys.length("ssm.state_size")?,
        n_tap: keys.length("ssm.conv_kernel")?,
        eps,
        is_grouped: keys.arch == "qwen3next",
    };
    if keys.length("ssm.inner_size")? != n_value * net.len {
        return Err(Unreadable::new("heads of values unlike those of keys"));
    }
    let heads = |keys_of, n_head_kv, rope: &Rope| Heads {
        n_embd,
        n_head,
        n_head_kv,
        len,
        scale: 1.0 / (len as f64).sqrt(),
        eps,
        rope: Some(rope.clone()),
        window: None,
        has_norms: true,
        has_gates: true,
        normalises_values: false,
        keys_of,
    };
    let rope = Rope::new(
        keys.length("rope.dimension_count")?,
        keys.number("rope.freq_base")?,
    );
    let n_head_kv = keys.length("attention.head_count_kv")?;
    let is_recurrent = recurrent_layers(keys, n_layer, common.n_block)?;
    let network = Network::load(keys, n_embd)?;
    let layer = |layer: usize| {
        let mut norm =
            |tensor: &str| source.vector(&format!("blk.{layer}.{tensor}.weight"), n_embd);
        let attn_norm = norm("attn_norm")?;
        let ffn_norm = norm("post_attention_norm")?;
        let mixer = if is_recurrent[layer] {
            Part::DeltaNet(DeltaNet::load(source, layer, net.clone())?)
        } else {
            let heads = heads(layer, n_head_kv, &rope);
            Part::Attention(Attention::load(source, layer, heads)?)
        };
        let network = network.part(source, layer, n_embd)?;
        Ok(Layer::new(vec![
            Branch::new(attn_norm, mixer),
            Branch::new(ffn_norm, network),
        ]))
    };
    Ok(Body::new(
        (0..n_layer).map(layer).collect::<Result<_, _>>()?,
    ))
}

/// Which layers have a delta net: listed, or all but the last of each period.
fn recurrent_layers(
    keys: &mut Keys<'_>,
    n_layer: usize,
    n_block: usize,
) -> Result<Vec<bool>, Unreadable> {
    let period = keys
        .optional_length("full_attention_interval")?
        .unwrap_or(4);
    match keys.flags("attention.recurrent_layers", n_block)? {
        Some(listed) => Ok(listed),
        None => Ok((1..=n_layer).map(|i| !i.is_multiple_of(period)).collect()),
    }
}

/// The network, of the same shape in all layers.
enum Network {
    Dense(usize),
    Experts(ExpertSizes, usize),
}

impl Network {
    fn load(keys: &mut Keys<'_>, n_embd: usize) -> Result<Self, Unreadable> {
        let Some(n_expert) = keys.optional_length("expert_count")? else {
            return Ok(Self::Dense(keys.length("feed_forward_length")?));
        };
        keys.skip(&["feed_forward_length"]);
        let sizes = ExpertSizes {
            n_expert,
            n_used: keys.length("expert_used_count")?,
            n_in: n_embd,
            n_ff: keys.length("expert_feed_forward_length")?,
            activation: Activation::Silu,
        };
        let shared = keys.length("expert_shared_feed_forward_length")?;
        Ok(Self::Experts(sizes, shared))
    }

    fn part(
        &self,
        source: &mut Source<'_>,
        layer: usize,
        n_embd: usize,
    ) -> Result<Part, Unreadable> {
        let silu = Activation::Silu;
        let (sizes, n_ff_shared) = match *self {
            Self::Dense(n_ff) => {
                let dense = Dense::load(source, layer, "", silu, [n_ff, n_embd])?;
                return Ok(Part::Dense(dense));
            }
            Self::Experts(sizes, shared) => (sizes, shared),
        };
        let gate = format!("blk.{layer}.ffn_gate_inp_shexp.weight");
        let shared = Dense::load(source, layer, "_shexp", silu, [n_ff_shared, n_embd])?;
        Ok(Part::Mixture(Mixture {
            router: Router::load(source, layer, n_embd, sizes)?,
            experts: Experts::load(source, layer, sizes)?,
            latent: None,
            shared: Some(shared),
            shared_gate: Some(source.vector(&gate, n_embd)?),
        }))
    }
}
