//! The learning rate of each step, as transformers' `optimization.py` computes it.
//!
//! The factor of step `s` (from 0), with `w` steps of warm-up and `n` in all:
//!
//! | schedule | warm-up | after it |
//! |---|---|---|
//! | constant | - | 1 |
//! | constant with warm-up | `s / w` | 1 |
//! | linear | `s / w` | `(n - s) / (n - w)` |
//! | cosine, c cycles, floor f | `s / w` | `½ (1 + cos(2π·c·(s - w) / (n - w))) · (1 - f) + f` |
//! | warm-up, stable, decay | a line, a cosine or `1 - √(1 - s / w)`, from the floor | 1; then a line, a cosine or `1 - √p` to the floor |
//!
//! So the first update after the start of a warm-up has the rate 0.

use crate::config::{DecayShape, OptimizerSettings, Schedule};
use core::f64::consts::PI;

/// The learning rates of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRates {
    /// Which formula.
    pub schedule: Schedule,
    /// The highest rate.
    pub highest: f64,
    /// Steps of warm-up.
    pub n_warmup: u64,
    /// Steps of the run.
    pub n_total: u64,
}

impl LearningRates {
    /// The rates that the settings give a run of `n_total` steps.
    #[must_use]
    pub fn of(settings: &OptimizerSettings, n_total: u64) -> Self {
        Self {
            schedule: settings.schedule,
            highest: settings.learning_rate,
            n_warmup: settings.warmup(n_total),
            n_total,
        }
    }

    /// The rate of the update after `step` others.
    #[must_use]
    pub fn at(&self, step: u64) -> f64 {
        self.highest * self.factor(step)
    }

    fn factor(&self, step: u64) -> f64 {
        let [step, warmup, total] = [step, self.n_warmup, self.n_total].map(exact);
        let share = (step < warmup).then(|| step / warmup.max(1.0));
        let rest = (total - warmup).max(1.0);
        match self.schedule {
            Schedule::Constant => 1.0,
            Schedule::ConstantWithWarmup => share.unwrap_or(1.0),
            Schedule::Linear => share.unwrap_or_else(|| ((total - step) / rest).max(0.0)),
            Schedule::Cosine {
                num_cycles,
                min_lr_rate,
            } => share.unwrap_or_else(|| {
                let down = wave(num_cycles, (step - warmup) / rest);
                floored(down, min_lr_rate)
            }),
            Schedule::WarmupStableDecay {
                num_stable_steps,
                num_decay_steps,
                warmup: up,
                decay,
                min_lr_ratio,
                num_cycles,
            } => {
                if let Some(share) = share {
                    return floored(risen(up, share), min_lr_ratio);
                }
                // Without a number, the steps that the others leave: below 0, the decay has begun already.
                let decay_steps = exact(num_decay_steps);
                let stable = num_stable_steps.map_or(total - warmup - decay_steps, exact);
                let past = step - warmup - stable;
                if past < 0.0 {
                    1.0
                } else if past < decay_steps {
                    let share = past / decay_steps.max(1.0);
                    floored(fallen(decay, num_cycles, share), min_lr_ratio)
                } else {
                    min_lr_ratio
                }
            }
        }
    }
}

/// From 1 at 0 along a cosine, which is at 0 after half a cycle.
fn wave(num_cycles: f64, share: f64) -> f64 {
    0.5 * (1.0 + libm::cos(PI * num_cycles * 2.0 * share))
}

/// The part of the way up after a share of its steps.
fn risen(shape: DecayShape, share: f64) -> f64 {
    match shape {
        DecayShape::Linear => share,
        DecayShape::Cosine => 0.5 * (1.0 - libm::cos(PI * share)),
        DecayShape::InverseSquareRoot => 1.0 - (1.0 - share).sqrt(),
    }
}

/// What is left of the way down after a share of its steps.
fn fallen(shape: DecayShape, num_cycles: f64, share: f64) -> f64 {
    match shape {
        DecayShape::Linear => 1.0 - share,
        DecayShape::Cosine => wave(num_cycles, share),
        DecayShape::InverseSquareRoot => 1.0 - share.sqrt(),
    }
}

fn floored(factor: f64, floor: f64) -> f64 {
    (factor * (1.0 - floor) + floor).max(0.0)
}

#[expect(clippy::cast_precision_loss, reason = "exact below 2^53 steps")]
const fn exact(steps: u64) -> f64 {
    steps as f64
}

#[cfg(test)]
mod tests;
