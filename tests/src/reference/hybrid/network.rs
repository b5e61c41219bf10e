//! Networks for each token by itself: dense ones, and mixtures of experts.

use super::super::Unreadable;
use super::super::source::{Matrix, Source, add, dot, softmax};
use super::{gelu, sigmoid, silu};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Silu,
    Gelu,
    /// The square of what is above 0, of networks without a gate.
    ReluSquared,
}

impl Activation {
    fn of(self, x: f64) -> f64 {
        match self {
            Self::Silu => silu(x),
            Self::Gelu => gelu(x),
            Self::ReluSquared => x.max(0.0).powi(2),
        }
    }

    fn has_gate(self) -> bool {
        self != Self::ReluSquared
    }
}

/// Down · (act(gate · x) ⊙ (up · x)), or down · act(up · x). Gate and up are (`n_ff`, `n_embd`).
#[derive(Debug)]
pub(super) struct Dense {
    activation: Activation,
    gate: Option<Matrix>,
    up: Matrix,
    down: Matrix,
}

impl Dense {
    /// The tensors end with `suffix`.
    pub(super) fn load(
        source: &mut Source<'_>,
        layer: usize,
        suffix: &str,
        activation: Activation,
        [n_ff, n_embd]: [usize; 2],
    ) -> Result<Self, Unreadable> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}{suffix}.weight");
        let has_gate = activation.has_gate();
        let gate = has_gate.then(|| source.matrix(&name("gate"), n_ff, n_embd));
        Ok(Self {
            activation,
            gate: gate.transpose()?,
            up: source.matrix(&name("up"), n_ff, n_embd)?,
            down: source.matrix(&name("down"), n_embd, n_ff)?,
        })
    }

    pub(super) fn of(&self, x: &[f64]) -> Vec<f64> {
        let gate = self.gate.as_ref().map(|gate| gate.times(x));
        self.down
            .times(&activated(self.activation, gate, self.up.times(x)))
    }
}

fn activated(activation: Activation, gate: Option<Vec<f64>>, up: Vec<f64>) -> Vec<f64> {
    match gate {
        None => up.into_iter().map(|x| activation.of(x)).collect(),
        Some(gate) => {
            let pairs = gate.into_iter().zip(up);
            pairs.map(|(gate, up)| activation.of(gate) * up).collect()
        }
    }
}

/// The number and sizes of experts, and how their weights are computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertSizes {
    pub(super) n_expert: usize,
    pub(super) n_used: usize,
    /// Elements of what experts read and write.
    pub(super) n_in: usize,
    pub(super) n_ff: usize,
    pub(super) activation: Activation,
}

/// All experts' matrices, one below the other.
#[derive(Debug)]
pub(super) struct Experts {
    sizes: ExpertSizes,
    inner: Inner,
    down: Matrix,
    /// Factors on what experts give.
    scales: Option<Vec<f64>>,
}

#[derive(Debug)]
enum Inner {
    Up(Matrix),
    Apart {
        gate: Matrix,
        up: Matrix,
    },
    /// For each expert its gate, then up.
    Fused(Matrix),
}

impl Experts {
    pub(super) fn load(
        source: &mut Source<'_>,
        layer: usize,
        sizes: ExpertSizes,
    ) -> Result<Self, Unreadable> {
        let ExpertSizes {
            n_expert,
            n_in,
            n_ff,
            ..
        } = sizes;
        let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps.weight");
        let inner = if !sizes.activation.has_gate() {
            Inner::Up(source.stack(&name("up"), n_expert, n_ff, n_in)?)
        } else if source.has(&name("gate_up")) {
            Inner::Fused(source.stack(&name("gate_up"), n_expert, 2 * n_ff, n_in)?)
        } else {
            Inner::Apart {
                gate: source.stack(&name("gate"), n_expert, n_ff, n_in)?,
                up: source.stack(&name("up"), n_expert, n_ff, n_in)?,
            }
        };
        let scales = format!("blk.{layer}.ffn_down_exps.scale");
        Ok(Self {
            sizes,
            inner,
            down: source.stack(&name("down"), n_expert, n_in, n_ff)?,
            scales: source.optional_vector(&scales, n_expert)?,
        })
    }

    /// The sum of what the chosen experts make of `x`, with their weights.
    pub(super) fn of(&self, x: &[f64], chosen: &[(usize, f64)]) -> Vec<f64> {
        let ExpertSizes { n_ff, n_in, .. } = self.sizes;
        let mut sum = vec![0.0; n_in];
        for &(expert, weight) in chosen {
            let rows = |matrix: &Matrix| times_part(matrix, expert, n_ff, x);
            let (gate, up) = match &self.inner {
                Inner::Up(up) => (None, rows(up)),
                Inner::Apart { gate, up } => (Some(rows(gate)), rows(up)),
                Inner::Fused(both) => {
                    let mut gate = times_part(both, expert, 2 * n_ff, x);
                    let up = gate.split_off(n_ff);
                    (Some(gate), up)
                }
            };
            let inner = activated(self.sizes.activation, gate, up);
            let scale = self.scales.as_ref().map_or(1.0, |scales| scales[expert]);
            let y = times_part(&self.down, expert, n_in, &inner).into_iter();
            add(&mut sum, &y.map(|y| y * scale * weight).collect::<Vec<_>>());
        }
        sum
    }
}

/// Part `index` of a matrix of such parts, each of `rows`, times `x`.
fn times_part(matrix: &Matrix, index: usize, rows: usize, x: &[f64]) -> Vec<f64> {
    let rows = index * rows..(index + 1) * rows;
    rows.map(|row| matrix.output(row, x)).collect()
}

/// Chooses experts and their weights.
#[derive(Debug)]
pub(super) struct Router {
    /// (`n_expert`, `n_embd`)
    pub(super) logits: Matrix,
    /// Added to scores for the choice only.
    pub(super) bias: Option<Vec<f64>>,
    /// Sigmoids as scores, otherwise all experts' softmax.
    pub(super) is_sigmoid: bool,
    pub(super) n_used: usize,
    /// Number of groups of experts; `n_group_used` of them take part.
    pub(super) n_group: usize,
    pub(super) n_group_used: usize,
    /// Whether the weights of the chosen are scaled to a sum of 1.
    pub(super) is_normalised: bool,
    pub(super) scale: f64,
}

impl Router {
    /// The usual one: a softmax, and a sum of 1.
    pub(super) fn load(
        source: &mut Source<'_>,
        layer: usize,
        n_embd: usize,
        sizes: ExpertSizes,
    ) -> Result<Self, Unreadable> {
        let name = format!("blk.{layer}.ffn_gate_inp.weight");
        let bias = format!("blk.{layer}.exp_probs_b.bias");
        Ok(Self {
            logits: source.matrix(&name, sizes.n_expert, n_embd)?,
            bias: source.optional_vector(&bias, sizes.n_expert)?,
            is_sigmoid: false,
            n_used: sizes.n_used,
            n_group: 1,
            n_group_used: 1,
            is_normalised: true,
            scale: 1.0,
        })
    }

    pub(super) fn choose(&self, x: &[f64]) -> Vec<(usize, f64)> {
        let mut scores = self.logits.times(x);
        if self.is_sigmoid {
            scores.iter_mut().for_each(|x| *x = sigmoid(*x));
        } else {
            softmax(&mut scores);
        }
        let mut wishes = scores.clone();
        if let Some(bias) = &self.bias {
            add(&mut wishes, bias);
        }
        let group_len = wishes.len() / self.n_group;
        let best = |group: &[f64]| group.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let value = if self.is_sigmoid { two_greatest } else { best };
        let groups: Vec<f64> = wishes.chunks_exact(group_len).map(value).collect();
        let groups = greatest(&groups, self.n_group_used);
        for (expert, wish) in wishes.iter_mut().enumerate() {
            if !groups.contains(&(expert / group_len)) {
                *wish = f64::NEG_INFINITY;
            }
        }
        let chosen = greatest(&wishes, self.n_used);
        let sum: f64 = chosen.iter().map(|&expert| scores[expert]).sum();
        // llama.cpp's least sum: the smallest normal number in f16.
        let least = 2f64.powi(-14);
        let divisor = if self.is_normalised {
            sum.max(least)
        } else {
            1.0
        };
        let weight = |expert: usize| (expert, scores[expert] / divisor * self.scale);
        chosen.into_iter().map(weight).collect()
    }
}

/// The sum of the two greatest, or the only one.
fn two_greatest(x: &[f64]) -> f64 {
    greatest(x, 2).into_iter().map(|i| x[i]).sum()
}

/// Where the `n` greatest are, the first of equals first.
fn greatest(x: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]));
    order.truncate(n);
    order
}

/// A router with its experts, and the shared expert that works on every token.
#[derive(Debug)]
pub(super) struct Mixture {
    pub(super) router: Router,
    pub(super) experts: Experts,
    /// Matrices around the experts, into a space of their own and back.
    pub(super) latent: Option<[Matrix; 2]>,
    pub(super) shared: Option<Dense>,
    /// (`n_embd`): its product's sigmoid is a factor of what the shared expert gives.
    pub(super) shared_gate: Option<Vec<f64>>,
}

impl Mixture {
    pub(super) fn of(&self, x: &[f64]) -> Vec<f64> {
        let chosen = self.router.choose(x);
        let mut sum = match &self.latent {
            None => self.experts.of(x, &chosen),
            Some([down, up]) => up.times(&self.experts.of(&down.times(x), &chosen)),
        };
        if let Some(shared) = &self.shared {
            let gate = self.shared_gate.as_ref();
            let gate = gate.map_or(1.0, |gate| sigmoid(dot(gate, x)));
            let y = shared.of(x).into_iter().map(|y| y * gate);
            add(&mut sum, &y.collect::<Vec<_>>());
        }
        sum
    }
}
