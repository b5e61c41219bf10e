//! A gated network in f64: down · (act(gate · x) ⊙ (up · x)).
//!
//! Sources: SwiGLU and ReGLU (arXiv 2002.05202), Gemma's GeGLU, gpt-oss's clamped gate, FATReLU (2402.13516), dReLU (2406.05955). Files have gate and up
//! as two matrices, or as one with the rows of gate first.

use super::Unreadable;
use super::source::{Matrix, Source};

/// What the gate lets through.
#[derive(Clone, Copy, Debug)]
pub(super) enum Activation {
    Silu,
    /// GELU by tanh.
    Gelu,
    /// gpt-oss: gate and up are cut off, the sigmoid is steeper, and up has 1 added.
    Clamped,
    /// The gate above a threshold, else 0.
    Relu(f64),
    /// ReLU of gate and up.
    Drelu,
}

impl Activation {
    fn of(self, gate: f64, up: f64) -> f64 {
        match self {
            Self::Silu => gate * sigmoid(gate) * up,
            Self::Gelu => {
                let u = (2.0 / core::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate.powi(3));
                0.5 * gate * (1.0 + u.tanh()) * up
            }
            Self::Clamped => {
                let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
                gate * sigmoid(1.702 * gate) * (up + 1.0)
            }
            Self::Relu(threshold) if gate > threshold => gate * up,
            Self::Relu(_) => 0.0,
            Self::Drelu => gate.max(0.0) * up.max(0.0),
        }
    }
}

/// Which tensors of a layer a network is made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// `ffn_gate`, `ffn_up`, `ffn_down`
    Dense,
    /// `ffn_gate_shexp`, …
    Shared,
    /// `ffn_gate_exps`, …: N experts, one below the other.
    Experts(usize),
}

#[derive(Debug)]
pub(super) struct Network {
    n_ff: usize,
    activation: Activation,
    gate_up: GateUp,
    down: Matrix,
}

#[derive(Debug)]
enum GateUp {
    Separate([Matrix; 2]),
    Fused(Matrix),
}

impl Network {
    pub(super) fn load(
        source: &mut Source<'_>,
        layer: usize,
        part: Part,
        [n_embd, n_ff]: [usize; 2],
        activation: Activation,
    ) -> Result<Self, Unreadable> {
        let (end, fused) = match part {
            Part::Dense => ("", "ffn_up"),
            Part::Shared => ("_shexp", "ffn_up"),
            Part::Experts(_) => ("_exps", "ffn_gate_up"),
        };
        let name = |stem: &str| format!("blk.{layer}.{stem}{end}.weight");
        let has_gate = source.has(&name("ffn_gate"));
        let mut load = |stem: &str, rows, columns| match part {
            Part::Experts(count) => source.stack(&name(stem), count, rows, columns),
            Part::Dense | Part::Shared => source.matrix(&name(stem), rows, columns),
        };
        let gate_up = if has_gate {
            GateUp::Separate([
                load("ffn_gate", n_ff, n_embd)?,
                load("ffn_up", n_ff, n_embd)?,
            ])
        } else {
            GateUp::Fused(load(fused, 2 * n_ff, n_embd)?)
        };
        Ok(Self {
            n_ff,
            activation,
            gate_up,
            down: load("ffn_down", n_embd, n_ff)?,
        })
    }

    /// What network `index` makes of `x`; a dense one is the first.
    pub(super) fn of(&self, index: usize, x: &[f64]) -> Vec<f64> {
        let inner = |i: usize| {
            let (gate, up) = match &self.gate_up {
                GateUp::Separate([gate, up]) => {
                    let row = index * self.n_ff + i;
                    (gate.output(row, x), up.output(row, x))
                }
                GateUp::Fused(both) => {
                    let row = 2 * index * self.n_ff + i;
                    (both.output(row, x), both.output(row + self.n_ff, x))
                }
            };
            self.activation.of(gate, up)
        };
        let inner: Vec<f64> = (0..self.n_ff).map(inner).collect();
        let rows = index * x.len()..(index + 1) * x.len();
        rows.map(|row| self.down.output(row, &inner)).collect()
    }
}

/// 1 / (1 + e⁻ˣ)
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
