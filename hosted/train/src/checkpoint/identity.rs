//! What a run and its continuation must have in common.

use super::error::CheckpointError;
use crate::config::SftConfig;
use crate::data::Dataset;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use sluice_core::state::Identity;
use std::path::Path;

/// What decides the bits of a run: its model, its rows and its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct RunIdentity {
    /// The SHA-256 of the model's file.
    pub model: Identity,
    /// The SHA-256 of the rows, as tokens and labels.
    pub data: Identity,
    /// The settings that are compared.
    pub(super) settings: Map<String, Value>,
}

impl RunIdentity {
    /// The identity of a run over a model with this SHA-256.
    #[must_use]
    pub fn new(config: &SftConfig, dataset: &Dataset, model: Identity) -> Self {
        Self::of(&config.all, model, Identity(dataset.sha256))
    }

    pub(super) fn of(all: &[(&'static str, Value)], model: Identity, data: Identity) -> Self {
        let mut settings = Map::new();
        let mut rows = 1;
        for (key, value) in all {
            // Only the product decides: micro-batches change no bit.
            if PER_STEP.contains(key) {
                rows *= value.as_u64().unwrap_or(1);
            } else if !FREE.contains(key) {
                settings.insert((*key).to_owned(), value.clone());
            }
        }
        settings.insert(PER_STEP.join(" x "), json!(rows));
        Self {
            model,
            data,
            settings: read_back(settings),
        }
    }

    /// The SHA-256 of the settings.
    #[must_use]
    pub fn configuration(&self) -> Identity {
        let text = Value::Object(self.settings.clone()).to_string();
        Identity(Sha256::digest(text).into())
    }

    /// Refuses to continue a checkpoint of another run, and names what differs.
    pub(super) fn check(&self, saved: &Self, checkpoint: &Path) -> Result<(), CheckpointError> {
        let different = |what: &str, [saved, now]: [String; 2]| {
            Err(CheckpointError::Different {
                path: checkpoint.to_path_buf(),
                what: what.to_owned(),
                saved,
                now,
            })
        };
        let hashes = [
            ("a model of SHA-256", saved.model, self.model),
            ("rows of SHA-256", saved.data, self.data),
        ];
        let keys = self.settings.keys().chain(saved.settings.keys());
        for key in keys {
            let values = [saved, self].map(|run| run.settings.get(key));
            if values[0] != values[1] {
                return different(key, values.map(shown));
            }
        }
        for (what, saved, now) in hashes {
            if saved != now {
                return different(what, [saved, now].map(|hash| hash.to_string()));
            }
        }
        Ok(())
    }
}

/// The settings as they are read from a file, where a number may be its neighbour.
fn read_back(settings: Map<String, Value>) -> Map<String, Value> {
    let text = Value::Object(settings.clone()).to_string();
    match serde_json::from_str(&text) {
        Ok(Value::Object(read)) => read,
        _ => settings,
    }
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None => "no value".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

pub(super) const PER_STEP: [&str; 2] =
    ["per_device_train_batch_size", "gradient_accumulation_steps"];

/// Settings that may differ: paths, whose contents are compared by hash; the machine; packing, which changes no bit; logs;
/// when to evaluate and to save.
pub(super) const FREE: [&str; 30] = [
    "model",
    "output_dir",
    "adapter_name",
    "adapter_name_or_path",
    "export",
    "chat_template_path",
    "dataset",
    "eval_dataset",
    "threads",
    "isa",
    "gradient_checkpointing",
    "packing",
    "packing_strategy",
    "eval_strategy",
    "eval_steps",
    "evals_per_epoch",
    "eval_on_start",
    "eval_table_size",
    "eval_max_new_tokens",
    "save_strategy",
    "save_steps",
    "saves_per_epoch",
    "save_total_limit",
    "resume_from_checkpoint",
    "overwrite_output_dir",
    "logging_steps",
    "logging_first_step",
    "logging_dir",
    "report_to",
    "run_name",
];
