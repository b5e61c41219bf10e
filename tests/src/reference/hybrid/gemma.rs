//! Gemma 4: windows with heads of their own, shared keys, vectors of a token for each layer, experts.

use super::super::Unreadable;
use super::super::source::{Matrix, Source, rms_norm};
use super::attention::{Attention, Heads};
use super::keys::Keys;
use super::layer::{Both, Branch, Layer, LayerEmbedding, Part};
use super::network::{Activation, Dense, ExpertSizes, Experts, Router};
use super::rope::Rope;
use super::{Body, Common};

pub(super) fn load(
    keys: &mut Keys<'_>,
    source: &mut Source<'_>,
    common: Common,
) -> Result<Body, Unreadable> {
    let Common {
        n_embd, n_layer, ..
    } = common;
    let n_ff = keys.lengths("feed_forward_length", common.n_block)?;
    let attention = Attentions::load(keys, source, common)?;
    let experts = match keys.optional_length("expert_count")? {
        None => None,
        Some(n_expert) => Some(ExpertSizes {
            n_expert,
            n_used: keys.length("expert_used_count")?,
            n_in: n_embd,
            n_ff: keys.length("expert_feed_forward_length")?,
            activation: Activation::Gelu,
        }),
    };
    let n_in = keys.length("embedding_length_per_layer_input")?;
    let layer = |layer: usize| {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        let attention = Attention::load(source, layer, attention.of_layer(layer))?;
        let shape = [n_ff[layer], n_embd];
        let dense = Dense::load(source, layer, "", Activation::Gelu, shape)?;
        let network = match experts {
            None => Part::Dense(dense),
            Some(sizes) => {
                let router_scale = format!("blk.{layer}.ffn_gate_inp.scale");
                Part::Both(Box::new(Both {
                    norm: source.vector(&name("ffn_norm"), n_embd)?,
                    dense,
                    post_norm_1: source.vector(&name("post_ffw_norm_1"), n_embd)?,
                    router_scale: source.vector(&router_scale, n_embd)?,
                    router: Router::load(source, layer, n_embd, sizes)?,
                    pre_norm_2: source.vector(&name("pre_ffw_norm_2"), n_embd)?,
                    experts: Experts::load(source, layer, sizes)?,
                    post_norm_2: source.vector(&name("post_ffw_norm_2"), n_embd)?,
                }))
            }
        };
        let mut norm = |tensor: &str| source.vector(&name(tensor), n_embd).map(Some);
        let mut branches = vec![
            Branch {
                norm: norm("attn_norm")?,
                part: Part::Attention(attention),
                post_norm: norm("post_attention_norm")?,
                scale: 1.0,
            },
            Branch {
                norm: match network {
                    Part::Dense(_) => norm("ffn_norm")?,
                    _ => None,
                },
                part: network,
                post_norm: norm("post_ffw_norm")?,
                scale: 1.0,
            },
        ];
        if n_in > 0 {
            branches.push(Branch {
                norm: None,
                post_norm: norm("post_norm")?,
                part: Part::LayerEmbedding(LayerEmbedding {
                    layer,
                    gate: source.matrix(&name("inp_gate"), n_in, n_embd)?,
                    proj: source.matrix(&name("proj"), n_embd, n_in)?,
                }),
                scale: 1.0,
            });
        }
        let scale = source.optional_vector(&name("layer_output_scale"), 1)?;
        Ok(Layer {
            branches,
            scale: scale.map_or(1.0, |scale| scale[0]),
        })
    };
    let layers = (0..n_layer).map(layer).collect::<Result<_, _>>()?;
    let layer_inputs = match n_in {
        0 => None,
        _ => Some(LayerInputs::load(source, common, n_in)?),
    };
    Ok(Body {
        embedding_scale: (n_embd as f64).sqrt(),
        logit_cap: keys
            .optional_number("final_logit_softcapping")
            .unwrap_or(30.0),
        layer_inputs,
        ..Body::new(layers)
    })
}

/// Of layers with and without windows.
struct Attentions {
    common: Common,
    n_head_kv: Vec<usize>,
    is_local: Vec<bool>,
    window: usize,
    len: usize,
    local_len: usize,
    rope: Rope,
    local_rope: Rope,
    /// Layers behind these use the keys of others.
    n_with_keys: usize,
}

impl Attentions {
    fn load(
        keys: &mut Keys<'_>,
        source: &mut Source<'_>,
        common: Common,
    ) -> Result<Self, Unreadable> {
        let n_layer = common.n_layer;
        let n_shared = keys
            .optional_length("attention.shared_kv_layers")?
            .unwrap_or(0);
        let is_local = keys.flags("attention.sliding_window_pattern", common.n_block)?;
        keys.skip(&["attention.value_length", "attention.value_length_swa"]);
        let n_rot = keys.length("rope.dimension_count")?;
        let divisors = source.vector("rope_freqs.weight", n_rot / 2)?;
        let rope = Rope::new(n_rot, keys.number("rope.freq_base")?).divided(&divisors);
        let local_rot = keys.length("rope.dimension_count_swa")?;
        Ok(Self {
            common,
            n_head_kv: keys.lengths("attention.head_count_kv", common.n_block)?,
            is_local: is_local.ok_or_else(|| Unreadable::new("no list of windows"))?,
            window: keys.length("attention.sliding_window")?,
            len: keys.length("attention.key_length")?,
            local_len: keys.length("attention.key_length_swa")?,
            rope,
            local_rope: Rope::new(local_rot, keys.number("rope.freq_base_swa")?),
            n_with_keys: n_layer - n_shared,
        })
    }

    fn of_layer(&self, layer: usize) -> Heads {
        let is_local = self.is_local[layer];
        // Of the last layers with keys one has a window and the other has none.
        let shared = self.n_with_keys.wrapping_sub(if is_local { 2 } else { 1 });
        let rope = if is_local {
            &self.local_rope
        } else {
            &self.rope
        };
        Heads {
            n_embd: self.common.n_embd,
            n_head: self.common.n_head,
            n_head_kv: self.n_head_kv[layer],
            len: if is_local { self.local_len } else { self.len },
            scale: 1.0,
            eps: self.common.eps,
            rope: Some(rope.clone()),
            window: is_local.then_some(self.window),
            has_norms: true,
            has_gates: false,
            normalises_values: true,
            keys_of: if layer < self.n_with_keys {
                layer
            } else {
                shared
            },
        }
    }
}

/// What each layer gets of a token: a vector by the token, and a share of its embedding.
#[derive(Debug)]
pub(super) struct LayerInputs {
    /// Elements of a layer's vector.
    len: usize,
    eps: f64,
    /// (`n_vocab`, `n_layer` * `len`)
    embd: Matrix,
    /// (`n_layer` * `len`, `n_embd`)
    proj: Matrix,
    norm: Vec<f64>,
}

impl LayerInputs {
    fn load(source: &mut Source<'_>, common: Common, len: usize) -> Result<Self, Unreadable> {
        let (all, n_embd) = (common.n_layer * len, common.n_embd);
        Ok(Self {
            len,
            eps: common.eps,
            embd: source.matrix_of_columns("per_layer_token_embd.weight", all)?,
            proj: source.matrix("per_layer_model_proj.weight", all, n_embd)?,
            norm: source.vector("per_layer_proj_norm.weight", len)?,
        })
    }

    /// Of a token with the scaled embedding `x`: the layers' vectors, one after the other.
    pub(super) fn of(&self, id: u32, x: &[f64]) -> Vec<f64> {
        let projected = self.proj.times(x).into_iter();
        let root = (x.len() as f64).sqrt();
        let projected: Vec<f64> = projected.map(|p| p / root).collect();
        let layers = projected.chunks_exact(self.len);
        let normed = layers.flat_map(|p| rms_norm(p, &self.norm, self.eps));
        let embd = self.embd.row(id as usize).iter();
        let scale = (self.len as f64).sqrt();
        let sums = embd.zip(normed).map(|(e, p)| (e * scale + p) / 2f64.sqrt());
        sums.collect()
    }
}
