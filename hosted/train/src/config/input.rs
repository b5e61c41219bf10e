//! The settings of the model and the rows.

use super::amount::Amount;
use super::error::ConfigError;
use super::files::{self, DataFile};
use super::settings::Settings;
use serde_json::Value;
use std::path::PathBuf;

/// The base model and what is written.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// The GGUF or `.slc` file.
    pub path: PathBuf,
    /// The folder of the adapter: `output_dir`, with `adapter_name` if that is set.
    pub output_dir: PathBuf,
    /// The adapter to start from.
    pub start_from: Option<PathBuf>,
    /// Formats in addition to PEFT's: `gguf`, `infq`.
    pub export: Vec<String>,
    /// A built-in template's name, or Jinja text.
    pub chat_template: Option<String>,
    /// A file with a template, or a folder with `chat_template.jinja`.
    pub chat_template_path: Option<PathBuf>,
    /// Variables of the template.
    pub chat_template_kwargs: serde_json::Map<String, Value>,
}

/// The rows, and what is learned from them.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting")]
pub struct DataSettings {
    /// Files to train on.
    pub files: Vec<DataFile>,
    /// Files to evaluate on.
    pub eval_files: Vec<DataFile>,
    /// Texts to train on if there are no files.
    pub prompts: Vec<String>,
    /// Rows to split off for evaluation.
    pub val_size: Amount,
    /// Whether rows with the tokens of an earlier one are dropped.
    pub deduplicate: bool,
    /// Whether each epoch has another order.
    pub shuffle: bool,
    /// Maximum number of tokens of a row.
    pub max_length: usize,
    /// Whether micro-batches are filled up to `max_length` tokens.
    pub packing: bool,
    /// Whether the prompts of rows with a completion are not learned.
    pub completion_only: bool,
    /// Whether only the assistant's turns of conversations are learned.
    pub assistant_only: bool,
    /// The seed of the order of rows.
    pub seed: u64,
}

impl ModelSettings {
    pub(super) fn of(settings: &Settings) -> Result<Self, ConfigError> {
        let path = |key| settings.maybe_text(key).map(PathBuf::from);
        let output_dir = PathBuf::from(settings.text("output_dir"));
        let output_dir = match settings.maybe_text("adapter_name") {
            Some(name) if name.contains('/') || name.starts_with('.') => {
                return Err(settings.wrong("adapter_name", "the name of a folder, without slashes"));
            }
            Some(name) => output_dir.join(name),
            None => output_dir,
        };
        if settings.is_set("chat_template") && settings.is_set("chat_template_path") {
            let both = "chat_template and chat_template_path are both set: use one of them";
            return Err(ConfigError::Conflict(both.to_owned()));
        }
        let kwargs = settings.value("chat_template_kwargs");
        Ok(Self {
            path: path("model").ok_or(ConfigError::Missing {
                key: "model",
                what: "the base model, a GGUF or .slc file",
            })?,
            output_dir,
            start_from: path("adapter_name_or_path"),
            export: settings.texts("export"),
            chat_template: settings.maybe_text("chat_template"),
            chat_template_path: path("chat_template_path"),
            chat_template_kwargs: kwargs.as_object().cloned().unwrap_or_default(),
        })
    }
}

impl DataSettings {
    pub(super) fn of(settings: &Settings) -> Result<Self, ConfigError> {
        let on_inputs = settings.bool("train_on_inputs");
        let only = |key| match settings.auto(key) {
            Some(true) if on_inputs => Err(ConfigError::Conflict(format!(
                "{key} and train_on_inputs are both true: one learns what the other leaves out"
            ))),
            Some(only) => Ok(only),
            None => Ok(!on_inputs),
        };
        let val_size = Amount::of(settings, "val_size").unwrap_or(Amount::Count(0));
        if settings.is_set("eval_dataset") && !val_size.is_zero() {
            let both = "val_size and eval_dataset are both set: use one of them";
            return Err(ConfigError::Conflict(both.to_owned()));
        }
        Ok(Self {
            files: files::of(settings, "dataset")?,
            eval_files: files::of(settings, "eval_dataset")?,
            prompts: settings.texts("prompts"),
            val_size,
            deduplicate: settings.bool("dataset_exact_deduplication"),
            shuffle: settings.bool("shuffle_dataset"),
            max_length: settings.size("max_length"),
            packing: settings.bool("packing"),
            completion_only: only("completion_only_loss")?,
            assistant_only: only("assistant_only_loss")?,
            seed: settings
                .maybe_count("data_seed")
                .unwrap_or_else(|| settings.count("seed")),
        })
    }
}
