//! The settings of evaluation, checkpoints, logs and the engine.

use super::amount::Amount;
use super::error::ConfigError;
use super::settings::Settings;
use std::path::{Path, PathBuf};

/// When something happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// Never.
    Never,
    /// Every N steps, or each time this share of all steps is done.
    Steps(Amount),
    /// N times per epoch, the last time at its end.
    PerEpoch(u64),
}

/// Evaluation.
#[derive(Clone, Debug)]
pub struct EvalSettings {
    /// When; [`When::Never`] without rows for it.
    pub when: When,
    /// Before the first step as well.
    pub on_start: bool,
    /// Whether to end with the best adapter.
    pub load_best: bool,
    /// `eval_loss` or `eval_mean_token_accuracy`.
    pub metric: String,
    /// Stop after N evaluations without an improvement.
    pub patience: Option<u64>,
    /// What counts as an improvement.
    pub threshold: f64,
    /// Number of rows to generate answers for.
    pub table_size: usize,
    /// Maximum number of tokens of such an answer.
    pub max_new_tokens: usize,
}

/// Checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointSettings {
    /// When they are written.
    pub when: When,
    /// How many are kept, in addition to the best.
    pub total_limit: usize,
    /// Where to continue from: `auto`, or a path.
    pub resume: Option<String>,
    /// Whether a folder with an earlier run may be used.
    pub overwrite: bool,
}

/// Logs.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// How often.
    pub steps: Amount,
    /// Whether the first step is logged as well.
    pub first_step: bool,
    /// The folder of TensorBoard's files, if they are written.
    pub tensorboard: Option<PathBuf>,
    /// The name of the run.
    pub run_name: Option<String>,
}

/// Arithmetic and threads.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// `None` for one per core.
    pub threads: Option<usize>,
    /// `auto`, or a kernel table's name.
    pub isa: String,
    /// Whether the forward pass is in f32 instead of int8.
    pub forward_f32: bool,
    /// Whether gradients go through the base weights in f32 instead of bf16.
    pub grad_f32: bool,
    /// The type of keys and values.
    pub kv_type: String,
    /// `None` for a choice by memory.
    pub gradient_checkpointing: Option<bool>,
}

impl EvalSettings {
    pub(super) fn of(settings: &Settings) -> Result<Self, ConfigError> {
        let steps = Amount::of(settings, "eval_steps");
        let per_epoch = settings.maybe_count("evals_per_epoch");
        if steps.is_some() && per_epoch.is_some() {
            let both = "eval_steps and evals_per_epoch are both set: use one of them";
            return Err(ConfigError::Conflict(both.to_owned()));
        }
        let by_steps = steps.or_else(|| Amount::of(settings, "logging_steps"));
        let when = match (&*settings.text("eval_strategy"), per_epoch, steps) {
            ("no", ..) => When::Never,
            ("steps", ..) => When::Steps(by_steps.unwrap_or(Amount::Count(1))),
            ("epoch", per_epoch, _) => When::PerEpoch(per_epoch.unwrap_or(1)),
            (_, Some(n), _) => When::PerEpoch(n),
            (_, None, Some(amount)) => When::Steps(amount),
            (_, None, None) => When::PerEpoch(1),
        };
        Ok(Self {
            when: when.checked(settings, "eval_steps")?,
            on_start: settings.bool("eval_on_start"),
            load_best: settings.bool("load_best_model_at_end"),
            metric: settings.text("metric_for_best_model"),
            patience: settings.maybe_count("early_stopping_patience"),
            threshold: settings.number("early_stopping_threshold"),
            table_size: settings.size("eval_table_size"),
            max_new_tokens: settings.size("eval_max_new_tokens"),
        })
    }
}

impl When {
    /// Every 0 steps is never a wish.
    fn checked(self, settings: &Settings, key: &'static str) -> Result<Self, ConfigError> {
        match self {
            Self::Steps(amount) if amount.is_zero() => {
                Err(settings.wrong(key, "a number of steps above 0"))
            }
            when => Ok(when),
        }
    }
}

impl CheckpointSettings {
    pub(super) fn of(settings: &Settings) -> Result<Self, ConfigError> {
        let per_epoch = settings.maybe_count("saves_per_epoch");
        if per_epoch.is_some() && settings.is_set("save_steps") {
            let both = "save_steps and saves_per_epoch are both set: use one of them";
            return Err(ConfigError::Conflict(both.to_owned()));
        }
        let steps = Amount::of(settings, "save_steps").unwrap_or(Amount::Count(500));
        let when = match (&*settings.text("save_strategy"), per_epoch) {
            ("no", _) => When::Never,
            (_, Some(n)) => When::PerEpoch(n),
            ("epoch", None) => When::PerEpoch(1),
            (_, None) => When::Steps(steps),
        };
        Ok(Self {
            when: when.checked(settings, "save_steps")?,
            total_limit: settings.size("save_total_limit"),
            resume: settings.maybe_text("resume_from_checkpoint"),
            overwrite: settings.bool("overwrite_output_dir"),
        })
    }
}

impl LogSettings {
    pub(super) fn of(settings: &Settings, output_dir: &Path) -> Self {
        let writes = settings
            .texts("report_to")
            .contains(&"tensorboard".to_owned());
        let folder = settings.maybe_text("logging_dir").map(PathBuf::from);
        let folder = folder.unwrap_or_else(|| output_dir.join("runs"));
        Self {
            steps: Amount::of(settings, "logging_steps").unwrap_or(Amount::Count(10)),
            first_step: settings.bool("logging_first_step"),
            tensorboard: writes.then_some(folder),
            run_name: settings.maybe_text("run_name"),
        }
    }
}

impl EngineSettings {
    pub(super) fn of(settings: &Settings) -> Self {
        Self {
            threads: Some(settings.size("threads")).filter(|threads| *threads > 0),
            isa: settings.text("isa"),
            forward_f32: settings.text("forward") == "f32",
            grad_f32: settings.text("grad_dtype") == "f32",
            kv_type: settings.text("kv_type"),
            gradient_checkpointing: settings.auto("gradient_checkpointing"),
        }
    }
}
