//! A mixture of experts in f64, written for reading.
//!
//! Sources: Mixtral, OLMoE, Qwen3-MoE and gpt-oss as published. A router gives every expert a
//! logit; the greatest work on the token, and what they give is summed with their probabilities as
//! weights, which all but OLMoE scale to a sum of 1. The experts of gpt-oss have biases, and a gate
//! of their own kind.

use super::Unreadable;
use super::file::File;
use super::source::{Matrix, Source, add, softmax};

/// What the experts of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpertConfig {
    pub(super) n_expert: usize,
    n_used: usize,
    n_ff: usize,
    n_embd: usize,
    is_normalised: bool,
    /// gpt-oss: gate and up are cut off, the sigmoid is steeper, and up has 1 added.
    is_clamped: bool,
}

impl ExpertConfig {
    /// From the metadata under `arch`; no experts where it has no count of them.
    pub(super) fn load(file: &File, arch: &str) -> Result<Self, Unreadable> {
        let key = |key: &str| format!("{arch}.{key}");
        let n_expert = match file.value(&key("expert_count")) {
            Some(_) => file.length(&key("expert_count"))?,
            None => 0,
        };
        let n_ff = match file.value(&key("expert_feed_forward_length")) {
            Some(_) => file.length(&key("expert_feed_forward_length"))?,
            None => file.length(&key("feed_forward_length"))?,
        };
        let n_used = match n_expert {
            0 => 0,
            _ => file.length(&key("expert_used_count"))?,
        };
        Ok(Self {
            n_expert,
            n_used,
            n_ff,
            n_embd: file.length(&key("embedding_length"))?,
            is_normalised: arch != "olmoe",
            is_clamped: arch == "gpt-oss",
        })
    }

    /// What the gate lets through.
    fn gated(&self, gate: f64, up: f64) -> f64 {
        if self.is_clamped {
            let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
            gate / (1.0 + (-1.702 * gate).exp()) * (up + 1.0)
        } else {
            gate / (1.0 + (-gate).exp()) * up
        }
    }
}

/// The experts of one layer.
#[derive(Debug)]
pub(super) struct Experts {
    config: ExpertConfig,
    /// (`n_expert`, `n_embd`)
    router: Matrix,
    /// (`n_expert` * `n_ff`, `n_embd`)
    gate: Matrix,
    /// (`n_expert` * `n_ff`, `n_embd`)
    up: Matrix,
    /// (`n_expert` * `n_embd`, `n_ff`)
    down: Matrix,
}

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
            ..
        } = config;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        Ok(Self {
            config,
            gate: source.stack(&name("ffn_gate_exps"), n_expert, n_ff, n_embd)?,
            up: source.stack(&name("ffn_up_exps"), n_expert, n_ff, n_embd)?,
            down: source.stack(&name("ffn_down_exps"), n_expert, n_embd, n_ff)?,
            router: source.matrix(&name("ffn_gate_inp"), n_expert, n_embd)?,
        })
    }

    /// What the experts of a token's choice make of `x`, which has gone through the norm.
    pub(super) fn of_row(&self, x: &[f64]) -> Vec<f64> {
        let ExpertConfig { n_used, n_ff, .. } = self.config;
        let mut probabilities = self.router.times(x);
        softmax(&mut probabilities);
        let mut order: Vec<usize> = (0..probabilities.len()).collect();
        order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
        let chosen = &order[..n_used];
        let scale = if self.config.is_normalised {
            chosen.iter().map(|&expert| probabilities[expert]).sum()
        } else {
            1.0
        };
        let mut out = vec![0.0; x.len()];
        for &expert in chosen {
            let inner = expert * n_ff..(expert + 1) * n_ff;
            let gated = |row| {
                self.config
                    .gated(self.gate.output(row, x), self.up.output(row, x))
            };
            let inner: Vec<f64> = inner.map(gated).collect();
            let rows = expert * x.len()..(expert + 1) * x.len();
            let weight = probabilities[expert] / scale;
            let y: Vec<f64> = rows
                .map(|row| weight * self.down.output(row, &inner))
                .collect();
            add(&mut out, &y);
        }
        out
    }
}
