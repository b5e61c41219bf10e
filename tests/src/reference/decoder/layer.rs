//! A decoder layer: what mixes tokens, then a network for each token by itself.

use super::super::Unreadable;
use super::super::experts::Experts;
use super::super::network::{Network, Part};
use super::super::source::{Source, add};
use super::attention::Attention;
use super::config::Config;
use super::families::Norms;
use super::norm::Norm;
use super::short_conv::ShortConv;

#[derive(Debug)]
pub(super) struct Layer {
    attn_norm: Option<Norm>,
    mixer: Mixer,
    attn_post_norm: Option<Norm>,
    ffn_norm: Option<Norm>,
    channel: Channel,
    ffn_post_norm: Option<Norm>,
}

#[derive(Debug)]
enum Mixer {
    Attention(Attention),
    ShortConv(ShortConv),
}

#[derive(Debug)]
enum Channel {
    Dense(Box<Network>),
    Experts(Box<Experts>),
}

impl Layer {
    pub(super) fn load(
        source: &mut Source<'_>,
        config: &Config,
        index: usize,
    ) -> Result<Self, Unreadable> {
        let Config {
            family,
            n_embd,
            n_ff,
            ..
        } = *config;
        let mixer = match config.n_head_kv[index] {
            0 => Mixer::ShortConv(ShortConv::load(source, config, index)?),
            _ => Mixer::Attention(Attention::load(source, config, index)?),
        };
        let channel = match config.experts(index) {
            Some(experts) => Channel::Experts(Box::new(Experts::load(source, experts, index)?)),
            None => {
                let (shape, activation) = ([n_embd, n_ff], config.activation);
                let network = Network::load(source, index, Part::Dense, shape, activation)?;
                Channel::Dense(Box::new(network))
            }
        };
        let mut norm_if = |there: bool, tensor: &str| {
            let name = format!("blk.{index}.{tensor}.weight");
            there
                .then(|| Norm::load(source, config, &name, n_embd))
                .transpose()
        };
        let is_before = family.norms != Norms::Behind;
        let is_behind = matches!(family.norms, Norms::Around | Norms::Behind);
        Ok(Self {
            attn_norm: norm_if(is_before, "attn_norm")?,
            mixer,
            attn_post_norm: norm_if(is_behind, "post_attention_norm")?,
            ffn_norm: norm_if(is_before && family.norms != Norms::Shared, family.ffn_norm)?,
            channel,
            ffn_post_norm: norm_if(is_behind, "post_ffw_norm")?,
        })
    }

    /// x += mixer(x), for every token over itself and the tokens before it, then x += channel(x) for each by itself; or
    /// both of the same x. Both have optional norms before and after.
    pub(super) fn apply(
        &self,
        config: &Config,
        index: usize,
        rope_factors: &[f64],
        x: &mut [Vec<f64>],
    ) {
        let normed: Vec<Vec<f64>> = x.iter().map(|x| norm(self.attn_norm.as_ref(), x)).collect();
        let mixed = match &self.mixer {
            Mixer::Attention(attention) => attention.of(config, index, rope_factors, &normed),
            Mixer::ShortConv(conv) => conv.of(config, &normed),
        };
        let add_scaled = |x: &mut [f64], mut y: Vec<f64>| {
            y.iter_mut().for_each(|y| *y *= config.factors.residual);
            add(x, &y);
        };
        for (x, (mixed, normed)) in x.iter_mut().zip(mixed.iter().zip(normed)) {
            let before = config.family.routes_input.then(|| x.clone());
            add_scaled(x, norm(self.attn_post_norm.as_ref(), mixed));
            let input = match config.family.norms {
                Norms::Shared => normed,
                _ => norm(self.ffn_norm.as_ref(), x),
            };
            let added = match &self.channel {
                Channel::Dense(network) => network.of(0, &input),
                Channel::Experts(experts) => experts.of_row(&input, before.as_deref()),
            };
            add_scaled(x, norm(self.ffn_post_norm.as_ref(), &added));
        }
    }
}

fn norm(norm: Option<&Norm>, x: &[f64]) -> Vec<f64> {
    norm.map_or_else(|| x.to_vec(), |norm| norm.of(x))
}
