//! The settings of steps, optimizer and schedule.

use super::amount::Amount;
use super::error::ConfigError;
use super::schedule::{self, Schedule};
use super::settings::Settings;

/// Steps, optimizer and schedule.
#[derive(Clone, Debug)]
pub struct OptimizerSettings {
    /// Rows per micro-batch.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub accumulation_steps: usize,
    /// Passes over the rows.
    pub epochs: f64,
    /// The number of steps, whatever `epochs` is.
    pub max_steps: Option<u64>,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Its schedule.
    pub schedule: Schedule,
    /// Steps of warm-up; `None` if `warmup_ratio` sets them.
    pub warmup_steps: Option<u64>,
    /// Share of all steps.
    pub warmup_ratio: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Decays of the moments.
    pub betas: [f64; 2],
    /// Added outside of the root.
    pub epsilon: f64,
    /// Maximum norm of the gradient; `None` for no clipping.
    pub max_grad_norm: Option<f64>,
    /// The seed of initial weights and dropout.
    pub seed: u64,
}

impl OptimizerSettings {
    pub(super) fn of(settings: &Settings) -> Result<Self, ConfigError> {
        let learning_rate = settings.number("learning_rate");
        let warmup_steps = settings.maybe_count("warmup_steps");
        // The optimizer has one value, which the table checks.
        let _adamw = settings.text("optim");
        Ok(Self {
            batch_size: settings.size("per_device_train_batch_size"),
            accumulation_steps: settings.size("gradient_accumulation_steps"),
            epochs: settings.number("num_train_epochs"),
            max_steps: settings.maybe_count("max_steps"),
            learning_rate,
            schedule: schedule::of(settings, learning_rate)?,
            warmup_steps: warmup_steps
                .filter(|_| settings.is_set("warmup_steps") || !settings.is_set("warmup_ratio")),
            warmup_ratio: settings.number("warmup_ratio"),
            weight_decay: settings.number("weight_decay"),
            betas: [settings.number("adam_beta1"), settings.number("adam_beta2")],
            epsilon: settings.number("adam_epsilon"),
            max_grad_norm: settings
                .maybe_number("max_grad_norm")
                .filter(|norm| *norm > 0.0),
            seed: settings.count("seed"),
        })
    }

    /// Rows per step.
    #[must_use]
    pub const fn rows_per_step(&self) -> usize {
        self.batch_size.saturating_mul(self.accumulation_steps)
    }

    /// Steps per epoch of `n_rows` rows; the last one may have fewer rows. It does not depend on how a step's rows are
    /// divided into micro-batches.
    #[must_use]
    pub const fn steps_per_epoch(&self, n_rows: usize) -> u64 {
        n_rows.div_ceil(self.rows_per_step()) as u64
    }

    /// Steps of the whole run.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "epochs are not negative; more steps than 2^53 are not taken"
    )]
    pub fn total_steps(&self, n_rows: usize) -> u64 {
        let per_epoch = self.steps_per_epoch(n_rows);
        self.max_steps
            .unwrap_or_else(|| libm::ceil(self.epochs * per_epoch as f64) as u64)
    }

    /// Steps of warm-up of a run of `total` steps.
    #[must_use]
    pub fn warmup(&self, total: u64) -> u64 {
        let of_ratio = || Amount::Share(self.warmup_ratio).of_all(total);
        self.warmup_steps.unwrap_or_else(of_ratio)
    }
}
