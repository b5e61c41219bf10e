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
    let granite = Granite::load(keys, common)?;
    let layers = (0..common.n_layer).map(|layer| granite.layer(source, layer));
    Ok(Body {
        embedding_scale: keys.optional_number("embedding_scale").unwrap_or(1.0),
        logit_divisor: keys.optional_number("logit_scale").unwrap_or(1.0),
        ..Body::new(layers.collect::<Result<_, _>>()?)
    })
}

/// What the keys say of layers.
struct Granite {
    n_embd: usize,
    /// 0 is Mamba.
    n_head_kv: Vec<usize>,
    heads: Heads,
    mamba: MambaHeads,
    /// Width of networks, or of each expert if there are any.
    n_ff: usize,
    experts: Option<ExpertSizes>,
    n_ff_shared: Option<usize>,
    /// Factor on what a layer's parts add.
    scale: f64,
}

impl Granite {
    fn load(keys: &mut Keys<'_>, common: Common) -> Result<Self, Unreadable> {
        let n_embd = common.n_embd;
        let n_ff = keys.length("feed_forward_length")?;
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
        Ok(Self {
            n_embd,
            n_head_kv: keys.lengths("attention.head_count_kv", common.n_block)?,
            heads: heads(keys, common)?,
            mamba: MambaHeads::load(keys, n_embd, common.eps)?,
            n_ff,
            experts,
            n_ff_shared: keys.optional_length("expert_shared_feed_forward_length")?,
            scale: keys.optional_number("residual_scale").unwrap_or(1.0),
        })
    }

    fn layer(&self, source: &mut Source<'_>, layer: usize) -> Result<Layer, Unreadable> {
        let mixer = match self.n_head_kv[layer] {
            0 => Part::Mamba(Mamba::load(source, layer, self.mamba)?),
            n_head_kv => {
                let heads = Heads {
                    n_head_kv,
                    keys_of: layer,
                    ..self.heads.clone()
                };
                Part::Attention(Attention::load(source, layer, heads)?)
            }
        };
        let parts = [
            ("attn_norm", mixer),
            ("ffn_norm", self.network(source, layer)?),
        ];
        let branches = parts.into_iter().map(|(norm, part)| {
            let norm = source.vector(&format!("blk.{layer}.{norm}.weight"), self.n_embd)?;
            Ok(Branch {
                scale: self.scale,
                ..Branch::new(norm, part)
            })
        });
        Ok(Layer::new(branches.collect::<Result<_, _>>()?))
    }

    fn network(&self, source: &mut Source<'_>, layer: usize) -> Result<Part, Unreadable> {
        let mut dense = |suffix, n_ff| {
            let silu = Activation::Silu;
            Dense::load(source, layer, suffix, silu, [n_ff, self.n_embd])
        };
        let Some(sizes) = self.experts else {
            return Ok(Part::Dense(dense("", self.n_ff)?));
        };
        let shared = self.n_ff_shared.map(|n_ff| dense("_shexp", n_ff));
        Ok(Part::Mixture(Mixture {
            shared: shared.transpose()?,
            router: Router::load(source, layer, self.n_embd, sizes)?,
            experts: Experts::load(source, layer, sizes)?,
            latent: None,
            shared_gate: None,
        }))
    }
}

/// The heads of all layers with attention; the number of heads with keys varies by layer.
fn heads(keys: &mut Keys<'_>, common: Common) -> Result<Heads, Unreadable> {
    let len = keys.length("attention.key_length")?;
    keys.skip(&["attention.value_length"]);
    // The key belongs to a scaling that these files do not have; it tells whether positions are used.
    let has_key = keys.has("rope.scaling.finetuned");
    let has_rope = !has_key || keys.is_set("rope.scaling.finetuned");
    let n_rot = keys.length("rope.dimension_count")?;
    let rope = Rope::new(n_rot, keys.number("rope.freq_base")?).of_neighbours();
    let scale = keys.optional_number("attention.scale");
    Ok(Heads {
        n_embd: common.n_embd,
        n_head: common.n_head,
        n_head_kv: 0,
        len,
        scale: scale.unwrap_or_else(|| 1.0 / (len as f64).sqrt()),
        eps: common.eps,
        rope: has_rope.then_some(rope),
        window: None,
        has_norms: false,
        has_gates: false,
        normalises_values: false,
        keys_of: 0,
    })
}
