//! The settings of a run of supervised fine-tuning, typed and checked.

use super::adapter::AdapterSettings;
use super::error::ConfigError;
use super::input::{DataSettings, ModelSettings};
use super::output::{CheckpointSettings, EngineSettings, EvalSettings, LogSettings};
use super::settings::Settings;
use super::source;
use super::steps::OptimizerSettings;
use serde_json::Value;
use std::path::Path;

/// All settings of `sluice train sft`.
#[derive(Clone, Debug)]
pub struct SftConfig {
    /// The base model and what is written.
    pub model: ModelSettings,
    /// The rows.
    pub data: DataSettings,
    /// The adapter.
    pub lora: AdapterSettings,
    /// Steps, optimizer and schedule.
    pub optimizer: OptimizerSettings,
    /// Evaluation.
    pub eval: EvalSettings,
    /// Checkpoints.
    pub checkpoints: CheckpointSettings,
    /// Logs.
    pub logs: LogSettings,
    /// Arithmetic and threads.
    pub engine: EngineSettings,
    /// The keys whose values differ from their defaults, in the order of [`CONFIG_KEYS`](super::CONFIG_KEYS).
    pub changed: Vec<(&'static str, Value)>,
    /// All keys and their values, in the same order.
    pub all: Vec<(&'static str, Value)>,
    /// Names that were accepted without effect, and why.
    pub without_effect: Vec<(&'static str, &'static str)>,
}

impl SftConfig {
    /// Reads a configuration: the file's values, which flags (`--key value`) override.
    ///
    /// # Errors
    /// [`ConfigError`], which names the key, and the file's line or the flag.
    pub fn load(file: Option<&Path>, flags: &[String]) -> Result<Self, ConfigError> {
        let mut settings = Settings::default();
        if let Some(path) = file {
            settings.add(source::of_file(path)?)?;
        }
        settings.add(source::of_flags(flags)?)?;
        Self::of(&settings)
    }

    fn of(settings: &Settings) -> Result<Self, ConfigError> {
        let model = ModelSettings::of(settings)?;
        Ok(Self {
            data: DataSettings::of(settings)?,
            lora: AdapterSettings::of(settings)?,
            optimizer: OptimizerSettings::of(settings)?,
            eval: EvalSettings::of(settings)?,
            checkpoints: CheckpointSettings::of(settings)?,
            logs: LogSettings::of(settings, &model.output_dir),
            engine: EngineSettings::of(settings),
            changed: settings.changed(),
            all: settings.all(),
            without_effect: settings.without_effect.clone(),
            model,
        })
    }
}
