//! A mixture of experts in f64, written for reading.
//!
//! Sources: Mixtral, OLMoE, Qwen-MoE, gpt-oss, Granite, GLM-4.5, Ernie 4.5, MiniMax M2, Hunyuan, LFM2-MoE and
//! SmallThinker as published; auxiliary-loss-free balancing, arXiv 2408.15664. A router gives every expert a logit, and a score by
//! softmax or from that logit alone; the experts with the highest scores, to which a bias may be added for this choice
//! alone, work on the token. Their outputs are summed with the scores as weights, which most models scale to a sum of
//! 1. A shared expert may work on every token.

use super::Unreadable;
use super::network::{Activation, Network, Part, sigmoid};
use super::source::{Matrix, Source, add, dot, softmax};

/// What the experts of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertConfig {
    pub(super) n_expert: usize,
    pub(super) n_used: usize,
    pub(super) n_ff: usize,
    pub(super) n_embd: usize,
    pub(super) score: Score,
    /// Whether the weights of a token are scaled to a sum of 1.
    pub(super) is_normalised: bool,
    /// On all weights, after that.
    pub(super) scale: f64,
    /// Whether layers may have a bias on the choice.
    pub(super) has_selection: bool,
    pub(super) activation: Activation,
    /// Width of the shared expert; 0 for models without one.
    pub(super) n_ff_shared: usize,
    /// Whether the shared expert has a gate of its own.
    pub(super) is_shared_gated: bool,
}

/// How logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Score {
    /// Over all experts. Where weights are normalised, it is that over the chosen as well (gpt-oss).
    Softmax,
    Sigmoid,
}

/// The experts of one layer.
#[derive(Debug)]
pub(super) struct Experts {
    config: ExpertConfig,
    /// (`n_expert`, `n_embd`)
    router: Matrix,
    /// (`n_expert`)
    selection: Option<Vec<f64>>,
    experts: Network,
    shared: Option<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// (`n_embd`): its product with the token, through a sigmoid, weighs what the expert gives.
    gate: Option<Vec<f64>>,
    expert: Network,
}

/// Sums of weights that are smaller count as this, llama.cpp's least number of f16.
const SUM_MIN: f64 = 6.103_515_625e-5;

impl Experts {
    pub(super) fn load(
        source: &mut Source<'_>,
        config: ExpertConfig,
        layer: usize,
    ) -> Result<Self, Unreadable> {
        let ExpertConfig {
            n_expert,
            n_ff,
            n_embd,
            n_ff_shared,
            activation,
            ..
        } = config;
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let selection = match config.has_selection {
            true => source.optional_vector(&name("exp_probs_b.bias"), n_expert)?,
            false => None,
        };
        let mut network =
            |part, n_ff| Network::load(source, layer, part, [n_embd, n_ff], activation);
        let experts = network(Part::Experts(n_expert), n_ff)?;
        let shared = match n_ff_shared {
            0 => None,
            _ => Some(network(Part::Shared, n_ff_shared)?),
        };
        let shared = match shared {
            Some(expert) => {
                let gate = match config.is_shared_gated {
                    true => Some(source.vector(&name("ffn_gate_inp_shexp.weight"), n_embd)?),
                    false => None,
                };
                Some(Shared { gate, expert })
            }
            None => None,
        };
        Ok(Self {
            config,
            router: source.matrix(&name("ffn_gate_inp.weight"), n_expert, n_embd)?,
            selection,
            experts,
            shared,
        })
    }

    /// The output of the experts that a token chooses, and of the shared one, for the normed `x`. The router reads it,
    /// or a row of its own.
    pub(super) fn of_row(&self, x: &[f64], routed: Option<&[f64]>) -> Vec<f64> {
        let mut scores = self.router.times(routed.unwrap_or(x));
        match self.config.score {
            Score::Softmax => softmax(&mut scores),
            Score::Sigmoid => scores.iter_mut().for_each(|x| *x = sigmoid(*x)),
        }
        let chosen = self.chosen(&scores);
        let sum = match self.config.is_normalised {
            true => chosen.iter().map(|&expert| scores[expert]).sum(),
            false => 1.0f64,
        };
        let mut out = vec![0.0; x.len()];
        for expert in chosen {
            let weight = scores[expert] / sum.max(SUM_MIN) * self.config.scale;
            add_weighted(&mut out, weight, self.experts.of(expert, x));
        }
        if let Some(Shared { gate, expert }) = &self.shared {
            let weight = gate.as_ref().map_or(1.0, |gate| sigmoid(dot(gate, x)));
            add_weighted(&mut out, weight, expert.of(0, x));
        }
        out
    }

    /// The experts of the greatest scores, biases added.
    fn chosen(&self, scores: &[f64]) -> Vec<usize> {
        let mut scores = scores.to_vec();
        if let Some(selection) = &self.selection {
            add(&mut scores, selection);
        }
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(self.config.n_used);
        order
    }
}

fn add_weighted(out: &mut [f64], weight: f64, mut y: Vec<f64>) {
    y.iter_mut().for_each(|y| *y *= weight);
    add(out, &y);
}
