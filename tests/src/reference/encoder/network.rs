//! Feed-forward networks, and experts without gates.

use super::super::Unreadable;
use super::super::source::{Matrix, Source, softmax};
use super::config::Config;

/// Shapes are (rows, columns); every row is one output.
#[derive(Debug)]
pub(super) enum Network {
    Dense {
        gate: Option<Matrix>,
        /// If it has twice the number of rows, the first half is a gate.
        up: Matrix,
        down: Matrix,
    },
    Experts {
        router: Matrix,
        /// All experts, one below the other.
        up: Matrix,
        down: Matrix,
    },
}

impl Network {
    pub(super) fn load(
        source: &mut Source<'_>,
        config: &Config,
        index: usize,
    ) -> Result<Self, Unreadable> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let (n_embd, n_ff) = (config.n_embd, config.n_ff);
        if let Some(experts) = config.experts
            && config.has_experts(index)
        {
            let count = experts.count;
            return Ok(Self::Experts {
                router: source.matrix(&name("ffn_gate_inp"), count, n_embd)?,
                up: source.stack(&name("ffn_up_exps"), count, n_ff, n_embd)?,
                down: source.stack(&name("ffn_down_exps"), count, n_embd, n_ff)?,
            });
        }
        let gate = source.has(&name("ffn_gate"));
        let gate = gate.then(|| source.matrix(&name("ffn_gate"), n_ff, n_embd));
        Ok(Self::Dense {
            gate: gate.transpose()?,
            up: source.matrix_of_columns(&name("ffn_up"), n_embd)?,
            down: source.matrix(&name("ffn_down"), n_embd, n_ff)?,
        })
    }

    pub(super) fn of(&self, config: &Config, x: &[f64]) -> Vec<f64> {
        let act = config.activation;
        match self {
            Self::Dense { gate, up, down } => {
                let mut inner = up.times(x);
                let gated = match gate {
                    Some(gate) => Some((gate.times(x), inner.clone())),
                    None if inner.len() == 2 * config.n_ff => {
                        let up = inner.split_off(config.n_ff);
                        Some((inner.clone(), up))
                    }
                    None => None,
                };
                let inner: Vec<f64> = match gated {
                    Some((gate, up)) => gate.iter().zip(up).map(|(g, u)| act(*g) * u).collect(),
                    None => inner.iter().map(|x| act(*x)).collect(),
                };
                down.times(&inner)
            }
            Self::Experts { router, up, down } => {
                let n_used = config.experts.map_or(0, |experts| experts.n_used);
                let mut weights = router.times(x);
                softmax(&mut weights);
                let mut order: Vec<usize> = (0..weights.len()).collect();
                order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
                let mut sum = vec![0.0; x.len()];
                for expert in &order[..n_used] {
                    let rows = expert * config.n_ff..(expert + 1) * config.n_ff;
                    let inner: Vec<f64> = rows.map(|row| act(up.output(row, x))).collect();
                    for (i, sum) in sum.iter_mut().enumerate() {
                        let row = expert * x.len() + i;
                        *sum += weights[*expert] * down.output(row, &inner);
                    }
                }
                sum
            }
        }
    }
}
