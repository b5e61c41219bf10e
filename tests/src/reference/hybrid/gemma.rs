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
    let gemma = Gemma {
        attention: Attentions::load(keys, source, common)?,
        network: Networks::load(keys, common)?,
        n_in: keys.length("embedding_length_per_layer_input")?,
    };
    let layers = (0..n_layer).map(|layer| gemma.layer(source, layer, n_embd));
    let layers = layers.collect::<Result<_, _>>()?;
    let layer_inputs = match gemma.n_in {
        0 => None,
        n_in => Some(LayerInputs::load(source, common, n_in)?),
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

/// What the keys say of layers.
struct Gemma {
    attention: Attentions,
    network: Networks,
    /// Elements of a token's vector for each layer; 0 for models without such vectors.
    n_in: usize,
}

impl Gemma {
    fn layer(
        &self,
        source: &mut Source<'_>,
        layer: usize,
        n_embd: usize,
    ) -> Result<Layer, Unreadable> {
        let name = |tensor: &str| format!("blk.{layer}.{tensor}.weight");
        let attention = Attention::load(source, layer, self.attention.of_layer(layer))?;
        let network = self.network.part(source, layer, n_embd)?;
        let has_experts = matches!(network, Part::Both(_));
        let embedding = match self.n_in {
            0 => None,
            n_in => Some(LayerEmbedding {
                layer,
                gate: source.matrix(&name("inp_gate"), n_in, n_embd)?,
                proj: source.matrix(&name("proj"), n_embd, n_in)?,
            }),
        };
        let scale = source.optional_vector(&name("layer_output_scale"), 1)?;
        let mut branch = |norm: Option<&str>, part, post_norm: &str| {
            let norm = norm.map(|norm| source.vector(&name(norm), n_embd));
            Ok(Branch {
                norm: norm.transpose()?,
                part,
                post_norm: Some(source.vector(&name(post_norm), n_embd)?),
                scale: 1.0,
            })
        };
        let mut branches = vec![
            branch(
                Some("attn_norm"),
                Part::Attention(attention),
                "post_attention_norm",
            )?,
            branch(
                (!has_experts).then_some("ffn_norm"),
                network,
                "post_ffw_norm",
            )?,
        ];
        if let Some(embedding) = embedding {
            branches.push(branch(None, Part::LayerEmbedding(embedding), "post_norm")?);
        }
        Ok(Layer {
            branches,
            scale: scale.map_or(1.0, |scale| scale[0]),
        })
    }
}

/// The sizes of a layer's network: dense, optionally with experts in addition.
struct Networks {
    n_ff: Vec<usize>,
    experts: Option<ExpertSizes>,
}

impl Networks {
    fn load(keys: &mut Keys<'_>, common: Common) -> Result<Self, Unreadable> {
        let experts = match keys.optional_length("expert_count")? {
            None => None,
            Some(n_expert) => Some(ExpertSizes {
                n_expert,
                n_used: keys.length("expert_used_count")?,
                n_in: common.n_embd,
                n_ff: keys.length("expert_feed_forward_length")?,
                activation: Activation::Gelu,
            }),
        };
        Ok(Self {
            n_ff: keys.lengths("feed_forward_length", common.n_block)?,
            experts,
        })
    }

    fn part(
        &self,
        source: &mut Source<'_>,
        layer: usize,
        n_embd: usize,
    ) -> Result<Part, Unreadable> {
        let shape = [self.n_ff[layer], n_embd];
        let dense = Dense::load(source, layer, "", Activation::Gelu, shape)?;
        let Some(sizes) = self.experts else {
            return Ok(Part::Dense(dense));
        };
        let mut vector = |tensor: &str| source.vector(&format!("blk.{layer}.{tensor}"), n_embd);
        Ok(Part::Both(Box::new(Both {
            norm: vector("ffn_norm.weight")?,
            dense,
            post_norm_1: vector("post_ffw_norm_1.weight")?,
            router_scale: vector("ffn_gate_inp.scale")?,
            pre_norm_2: vector("pre_ffw_norm_2.weight")?,
            post_norm_2: vector("post_ffw_norm_2.weight")?,
            router: Router::load(source, layer, n_embd, sizes)?,
            experts: Experts::load(source, layer, sizes)?,
        })))
    }
}

/// Attention of layers with and without windows.
struct Attentions {
    common: Common,
    n_head_kv: Vec<usize>,
    is_local: Vec<bool>,
    window: usize,
    len: usize,
    local_len: usize,
    rope: Rope,
    local_rope: Rope,
    /// The number of layers that compute keys of their own; later ones use theirs.
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

    /// The vectors of all layers, one after the other, for a token with the scaled embedding `x`.
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
