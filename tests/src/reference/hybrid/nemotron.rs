//! Nemotron-H: in each layer Mamba 2, attention without positions, or a network, by which lengths are 0.

use super::super::Unreadable;
use super::super::source::Source;
use super::attention::{Attention, Heads};
use super::keys::Keys;
use super::layer::{Branch, Layer, Part};
use super::mamba::{Mamba, MambaHeads};
use super::network::{Activation, Dense, ExpertSizes, Experts, Mixture, Router};
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
    keys.skip(&["rope.dimension_count", "rope.freq_base"]);
    let mamba = MambaHeads::load(keys, n_embd, eps)?;
    let n_head_kv = keys.lengths("attention.head_count_kv", common.n_block)?;
    let n_ff = keys.lengths("feed_forward_length", common.n_block)?;
    let len = keys.length("attention.key_length")?;
    keys.skip(&["attention.value_length"]);
    let experts = ExpertKeys::load(keys, n_embd)?;
    let layer = |layer: usize| {
        let norm = source.vector(&format!("blk.{layer}.attn_norm.weight"), n_embd)?;
        let part = match (n_head_kv[layer], n_ff[layer]) {
            (0, 0) => Part::Mamba(Mamba::load(source, layer, mamba)?),
            (n_head_kv, 0) => {
                let heads = Heads {
                    n_embd,
                    n_head,
                    n_head_kv,
                    len,
                    scale: 1.0 / (len as f64).sqrt(),
                    eps,
                    rope: None,
                    window: None,
                    has_norms: false,
                    has_gates: false,
                    normalises_values: false,
                    keys_of: layer,
                };
                Part::Attention(Attention::load(source, layer, heads)?)
            }
            (_, n_ff) => match &experts {
                Some(experts) => Part::Mixture(experts.mixture(source, layer, n_embd)?),
                None => Part::Dense(Dense::load(source, layer, "", RELU, [n_ff, n_embd])?),
            },
        };
        Ok(Layer::new(vec![Branch::new(norm, part)]))
    };
    Ok(Body::new(
        (0..n_layer).map(layer).collect::<Result<_, _>>()?,
    ))
}

const RELU: Activation = Activation::ReluSquared;

struct ExpertKeys {
    sizes: ExpertSizes,
    n_ff_shared: usize,
    has_latent: bool,
    is_normalised: bool,
    scale: f64,
}

impl ExpertKeys {
    fn load(keys: &mut Keys<'_>, n_embd: usize) -> Result<Option<Self>, Unreadable> {
        let Some(n_expert) = keys.optional_length("expert_count")? else {
            return Ok(None);
        };
        keys.skip(&["expert_shared_count"]);
        if keys.optional_length("expert_group_count")?.unwrap_or(1) > 1 {
            return Err(Unreadable::new("groups of experts"));
        }
        let latent = keys.optional_length("moe_latent_size")?;
        let sizes = ExpertSizes {
            n_expert,
            n_used: keys.length("expert_used_count")?,
            n_in: latent.unwrap_or(n_embd),
            n_ff: keys.length("expert_feed_forward_length")?,
            activation: RELU,
        };
        Ok(Some(Self {
            sizes,
            n_ff_shared: keys.length("expert_shared_feed_forward_length")?,
            has_latent: latent.is_some(),
            is_normalised: keys.is_set("expert_weights_norm"),
            scale: keys.number("expert_weights_scale")?,
        }))
    }

    fn mixture(
        &self,
        source: &mut Source<'_>,
        layer: usize,
        n_embd: usize,
    ) -> Result<Mixture, Unreadable> {
        let name = |part: &str| format!("blk.{layer}.ffn_latent_{part}.weight");
        let n_in = self.sizes.n_in;
        let latent = if self.has_latent {
            let down = source.matrix(&name("down"), n_in, n_embd)?;
            Some([down, source.matrix(&name("up"), n_embd, n_in)?])
        } else {
            None
        };
        let shape = [self.n_ff_shared, n_embd];
        Ok(Mixture {
            router: Router {
                is_sigmoid: true,
                is_normalised: self.is_normalised,
                scale: self.scale,
                ..Router::load(source, layer, n_embd, self.sizes)?
            },
            experts: Experts::load(source, layer, self.sizes)?,
            latent,
            shared: Some(Dense::load(source, layer, "_shexp", RELU, shape)?),
            shared_gate: None,
        })
    }
}
