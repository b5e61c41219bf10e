//! A layer: parts one after the other, each of which adds to the residual stream.

use super::super::source::{Matrix, add, rms_norm};
use super::attention::{Attention, Kept};
use super::delta_net::DeltaNet;
use super::latent::LatentAttention;
use super::mamba::Mamba;
use super::network::{Dense, Experts, Mixture, Router};
use super::{gelu, weightless_norm};

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) branches: Vec<Branch>,
    /// Factor on what leaves the layer.
    pub(super) scale: f64,
}

/// x += scale · `post_norm`(part(norm(x)))
#[derive(Debug)]
pub(super) struct Branch {
    /// Parts without one have norms of their own, or none.
    pub(super) norm: Option<Vec<f64>>,
    pub(super) part: Part,
    pub(super) post_norm: Option<Vec<f64>>,
    pub(super) scale: f64,
}

#[derive(Debug)]
pub(super) enum Part {
    Attention(Attention),
    Latent(LatentAttention),
    DeltaNet(DeltaNet),
    Mamba(Mamba),
    Dense(Dense),
    Mixture(Mixture),
    Both(Box<Both>),
    LayerEmbedding(LayerEmbedding),
}

/// What layers take from each other and from outside.
#[derive(Debug, Default)]
pub(super) struct Around {
    pub(super) kept: Kept,
    /// For each token the vectors of all layers, if the model has any.
    pub(super) layer_inputs: Vec<Vec<f64>>,
}

impl Layer {
    pub(super) fn new(branches: Vec<Branch>) -> Self {
        Self {
            branches,
            scale: 1.0,
        }
    }

    /// What becomes of the tokens `x`.
    pub(super) fn run(&self, eps: f64, around: &mut Around, x: &mut [Vec<f64>]) {
        for branch in &self.branches {
            branch.run(eps, around, x);
        }
        for x in x.iter_mut().flatten() {
            *x *= self.scale;
        }
    }
}

impl Branch {
    pub(super) fn new(norm: Vec<f64>, part: Part) -> Self {
        Self {
            norm: Some(norm),
            part,
            post_norm: None,
            scale: 1.0,
        }
    }

    fn run(&self, eps: f64, around: &mut Around, x: &mut [Vec<f64>]) {
        let norm = |x: &Vec<f64>| match &self.norm {
            Some(norm) => rms_norm(x, norm, eps),
            None => x.clone(),
        };
        let normed: Vec<Vec<f64>> = x.iter().map(norm).collect();
        for (x, mut y) in x.iter_mut().zip(self.part.of(&normed, eps, around)) {
            if let Some(norm) = &self.post_norm {
                y = rms_norm(&y, norm, eps);
            }
            y.iter_mut().for_each(|y| *y *= self.scale);
            add(x, &y);
        }
    }
}

impl Part {
    fn of(&self, x: &[Vec<f64>], eps: f64, around: &mut Around) -> Vec<Vec<f64>> {
        match self {
            Self::Attention(attention) => attention.of(x, &mut around.kept),
            Self::Latent(attention) => attention.of(x),
            Self::DeltaNet(net) => net.of(x),
            Self::Mamba(mamba) => mamba.of(x),
            Self::Dense(dense) => x.iter().map(|x| dense.of(x)).collect(),
            Self::Mixture(mixture) => x.iter().map(|x| mixture.of(x)).collect(),
            Self::Both(both) => x.iter().map(|x| both.of(x, eps)).collect(),
            Self::LayerEmbedding(part) => {
                let tokens = x.iter().zip(&around.layer_inputs);
                tokens.map(|(x, inputs)| part.of(x, inputs)).collect()
            }
        }
    }
}

/// Gemma 4's dense network and experts, side by side, each between norms of its own.
#[derive(Debug)]
pub(super) struct Both {
    pub(super) norm: Vec<f64>,
    pub(super) dense: Dense,
    pub(super) post_norm_1: Vec<f64>,
    /// Factors on what the router reads, which has neither norm's weights.
    pub(super) router_scale: Vec<f64>,
    pub(super) router: Router,
    pub(super) pre_norm_2: Vec<f64>,
    pub(super) experts: Experts,
    pub(super) post_norm_2: Vec<f64>,
}

impl Both {
    fn of(&self, x: &[f64], eps: f64) -> Vec<f64> {
        let dense = self.dense.of(&rms_norm(x, &self.norm, eps));
        let mut sum = rms_norm(&dense, &self.post_norm_1, eps);
        let root = (x.len() as f64).sqrt();
        let normed = weightless_norm(x, eps).into_iter();
        let routed = normed.zip(&self.router_scale).map(|(x, s)| x / root * s);
        let chosen = self.router.choose(&routed.collect::<Vec<_>>());
        let experts = self
            .experts
            .of(&rms_norm(x, &self.pre_norm_2, eps), &chosen);
        add(&mut sum, &rms_norm(&experts, &self.post_norm_2, eps));
        sum
    }
}

/// Gemma 4's vectors of a token for each layer: proj · (gelu(gate · x) ⊙ the layer's vector).
#[derive(Debug)]
pub(super) struct LayerEmbedding {
    pub(super) layer: usize,
    /// (elements of such a vector, `n_embd`), and the other way.
    pub(super) gate: Matrix,
    pub(super) proj: Matrix,
}

impl LayerEmbedding {
    fn of(&self, x: &[f64], inputs: &[f64]) -> Vec<f64> {
        let gate = self.gate.times(x);
        let inputs = &inputs[self.layer * gate.len()..];
        let gated = gate.iter().zip(inputs).map(|(gate, x)| gelu(*gate) * x);
        self.proj.times(&gated.collect::<Vec<_>>())
    }
}
