//! A decoder layer: what mixes tokens, then a network for each token by itself.

use super::super::Unreadable;
use super::super::experts::Experts;
use super::super::source::{Matrix, Source, add, rms_norm};
use super::attention::Attention;
use super::config::Config;
use super::short_conv::ShortConv;

#[derive(Debug)]
pub(super) struct Layer {
    attn_norm: Vec<f64>,
    mixer: Mixer,
    attn_post_norm: Option<Vec<f64>>,
    ffn_norm: Vec<f64>,
    ffn: Ffn,
    ffn_post_norm: Option<Vec<f64>>,
}

#[derive(Debug)]
enum Mixer {
    Attention(Attention),
    ShortConv(ShortConv),
}

/// Gate and up, each (`n_ff`, `n_embd`), or one matrix of both; down (`n_embd`, `n_ff`).
#[derive(Debug)]
enum Ffn {
    Separate {
        gate: Matrix,
        up: Matrix,
        down: Matrix,
    },
    Fused {
        both: Matrix,
        down: Matrix,
    },
    Experts(Experts),
}

impl Layer {
    pub(super) fn load(
        source: &mut Source<'_>,
        config: &Config,
        index: usize,
    ) -> Result<Self, Unreadable> {
        let Config { n_embd, n_ff, .. } = *config;
        let name = |tensor: &str| format!("blk.{index}.{tensor}.weight");
        let mixer = match config.n_head_kv[index] {
            0 => Mixer::ShortConv(ShortConv::load(source, config, index)?),
            _ => Mixer::Attention(Attention::load(source, config, index)?),
        };
        let ffn = if config.experts.n_expert > 0 {
            Ffn::Experts(Experts::load(source, config.experts, index)?)
        } else if config.is_fused {
            Ffn::Fused {
                both: source.matrix(&name("ffn_up"), 2 * n_ff, n_embd)?,
                down: source.matrix(&name("ffn_down"), n_embd, n_ff)?,
            }
        } else {
            Ffn::Separate {
                gate: source.matrix(&name("ffn_gate"), n_ff, n_embd)?,
                up: source.matrix(&name("ffn_up"), n_ff, n_embd)?,
                down: source.matrix(&name("ffn_down"), n_embd, n_ff)?,
            }
        };
        let mut norm_if = |there: bool, tensor: &str| {
            let name = name(tensor);
            there.then(|| source.vector(&name, n_embd)).transpose()
        };
        Ok(Self {
            attn_post_norm: norm_if(config.has_post_norms, "post_attention_norm")?,
            ffn_post_norm: norm_if(config.has_post_norms, "post_ffw_norm")?,
            attn_norm: source.vector(&name("attn_norm"), n_embd)?,
            mixer,
            ffn_norm: source.vector(&name(config.ffn_norm), n_embd)?,
            ffn,
        })
    }

    /// x += post(mixer(norm(x))), for every token over itself and those before it.
    pub(super) fn mix(
        &self,
        config: &Config,
        index: usize,
        rope_factors: &[f64],
        x: &mut [Vec<f64>],
    ) {
        let norm = |x: &Vec<f64>| rms_norm(x, &self.attn_norm, config.rms_eps);
        let normed: Vec<Vec<f64>> = x.iter().map(norm).collect();
        let mixed = match &self.mixer {
            Mixer::Attention(attention) => attention.of(config, index, rope_factors, &normed),
            Mixer::ShortConv(conv) => conv.of(config, &normed),
        };
        for (x, mixed) in x.iter_mut().zip(mixed) {
            add(x, &post_norm(config, mixed, self.attn_post_norm.as_deref()));
        }
    }

    /// x += post(down · (act(gate · norm(x)) ⊙ (up · norm(x)))), for every token by itself.
    pub(super) fn feed_forward(&self, config: &Config, x: &mut [Vec<f64>]) {
        for x in x {
            let normed = rms_norm(x, &self.ffn_norm, config.rms_eps);
            let added = match &self.ffn {
                Ffn::Experts(experts) => experts.of_row(&normed),
                Ffn::Separate { gate, up, down } => {
                    down.times(&activated(config, gate.times(&normed), &up.times(&normed)))
                }
                Ffn::Fused { both, down } => {
                    let mut gate = both.times(&normed);
                    let up = gate.split_off(gate.len() / 2);
                    down.times(&activated(config, gate, &up))
                }
            };
            add(x, &post_norm(config, added, self.ffn_post_norm.as_deref()));
        }
    }
}

fn post_norm(config: &Config, x: Vec<f64>, weight: Option<&[f64]>) -> Vec<f64> {
    weight.map_or(x.clone(), |weight| rms_norm(&x, weight, config.rms_eps))
}

/// act(gate) ⊙ up
fn activated(config: &Config, mut gate: Vec<f64>, up: &[f64]) -> Vec<f64> {
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let activated = if config.is_gelu {
            let u = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + u.tanh())
        } else {
            x / (1.0 + (-x).exp())
        };
        *gate = activated * up;
    }
    gate
}
