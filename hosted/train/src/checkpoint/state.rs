//! `trainer_state.json`, with the keys of transformers' `TrainerState`.
//!
//! What transformers does not know is in `stateful_callbacks.sluice`, where its `TrainerState.load_from_json` accepts it.
//! Numbers on which later decisions depend are there as bits: a decimal number may be read as its neighbour.

use super::files::HASHED;
use super::identity::RunIdentity;
use crate::logs::LogWindow;
use serde_json::{Map, Value, json};
use sluice_core::state::Identity;

/// The place in a run, after a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainerState {
    /// Steps taken.
    pub global_step: u64,
    /// Steps of the whole run.
    pub max_steps: u64,
    /// Passes over the rows, with the part of the current one.
    pub epoch: f64,
    /// The next row.
    pub cursor: Cursor,
    /// Tokens of all rows so far.
    pub n_tokens: u64,
    /// The best evaluation so far.
    pub best: Option<BestResult>,
    /// Evaluations since the best one, for early stopping.
    pub n_worse: u64,
    /// Sums since the last line of the log.
    pub window: LogWindow,
    /// Lines of the log.
    pub log_history: Vec<Value>,
}

/// A place in the order of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The visit in it, from 0.
    pub index: u64,
}

/// The best evaluation of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct BestResult {
    /// The metric.
    pub metric: f64,
    /// Steps taken before it.
    pub step: u64,
    /// The name of its checkpoint's folder, if it has one.
    pub checkpoint: Option<String>,
}

/// What is in the file.
pub(super) struct StateFile {
    pub(super) state: TrainerState,
    pub(super) identity: RunIdentity,
    /// Of [`HASHED`].
    pub(super) hashes: [Identity; 3],
}

impl StateFile {
    pub(super) fn text(&self) -> String {
        let Self {
            state,
            identity,
            hashes,
        } = self;
        let best = state.best.as_ref();
        let hashes = HASHED.iter().zip(hashes);
        let mut sha256: Map<_, _> = hashes.map(|(name, hash)| entry(name, *hash)).collect();
        sha256.extend([
            entry("model", identity.model),
            entry("data", identity.data),
            entry("configuration", identity.configuration()),
        ]);
        let own = json!({
            "version": VERSION,
            "cursor": {"epoch": state.cursor.epoch, "index": state.cursor.index},
            "seed": identity.settings.get("seed"),
            "sha256": sha256,
            "settings": identity.settings,
            "best_metric_bits": best.map(|best| bits(best.metric)),
            "epoch_bits": bits(state.epoch),
            "evaluations_since_best": state.n_worse,
            "log_window": {
                "steps": state.window.n_steps,
                "loss_bits": bits(state.window.loss),
                "labels": state.window.n_labels,
                "correct": state.window.n_correct,
            },
        });
        let all = json!({
            "best_global_step": best.map(|best| best.step),
            "best_metric": best.map(|best| best.metric),
            "best_model_checkpoint": best.and_then(|best| best.checkpoint.clone()),
            "epoch": state.epoch,
            "global_step": state.global_step,
            "is_hyper_param_search": false,
            "is_local_process_zero": true,
            "is_world_process_zero": true,
            "log_history": state.log_history,
            "max_steps": state.max_steps,
            "num_input_tokens_seen": state.n_tokens,
            "stateful_callbacks": {"sluice": own},
        });
        format!("{all:#}\n")
    }

    /// Reads a state; an error is the key that is missing or wrong.
    pub(super) fn of(text: &str) -> Result<Self, String> {
        let all: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let own = &all["stateful_callbacks"]["sluice"];
        let wrong = |key: &str| format!("{key} is missing or wrong");
        let whole = |value: &Value, key: &str| value[key].as_u64().ok_or_else(|| wrong(key));
        if whole(own, "version")? != VERSION {
            let version = &own["version"];
            return Err(format!(
                "version {version}, and this program reads {VERSION}"
            ));
        }
        let real = |value: &Value, key: &str| of_bits(&value[key]).ok_or_else(|| wrong(key));
        let hash = |name: &str| of_hex(&own["sha256"][name]).ok_or_else(|| wrong(name));
        let best = match all["best_metric"].is_null() {
            true => None,
            false => Some(BestResult {
                metric: real(own, "best_metric_bits")?,
                step: whole(&all, "best_global_step")?,
                checkpoint: all["best_model_checkpoint"].as_str().map(str::to_owned),
            }),
        };
        let window = &own["log_window"];
        let history = all["log_history"].as_array();
        let settings = own["settings"].as_object();
        let [config, adapter, optimizer] = HASHED.map(hash);
        Ok(Self {
            state: TrainerState {
                global_step: whole(&all, "global_step")?,
                max_steps: whole(&all, "max_steps")?,
                epoch: real(own, "epoch_bits")?,
                cursor: Cursor {
                    epoch: whole(&own["cursor"], "epoch")?,
                    index: whole(&own["cursor"], "index")?,
                },
                n_tokens: whole(&all, "num_input_tokens_seen")?,
                best,
                n_worse: whole(own, "evaluations_since_best")?,
                window: LogWindow {
                    n_steps: whole(window, "steps")?,
                    loss: real(window, "loss_bits")?,
                    n_labels: whole(window, "labels")?,
                    n_correct: whole(window, "correct")?,
                },
                log_history: history.ok_or_else(|| wrong("log_history"))?.clone(),
            },
            identity: RunIdentity {
                model: hash("model")?,
                data: hash("data")?,
                settings: settings.ok_or_else(|| wrong("settings"))?.clone(),
            },
            hashes: [config?, adapter?, optimizer?],
        })
    }
}

fn entry(name: &str, hash: Identity) -> (String, Value) {
    (name.to_owned(), json!(hash.to_string()))
}

fn bits(number: f64) -> String {
    format!("{:016x}", number.to_bits())
}

fn of_bits(value: &Value) -> Option<f64> {
    let bits = u64::from_str_radix(value.as_str()?, 16).ok()?;
    Some(f64::from_bits(bits))
}

fn of_hex(value: &Value) -> Option<Identity> {
    let text = value
        .as_str()
        .filter(|text| text.len() == 64 && text.is_ascii())?;
    let mut hash = [0; 32];
    for (byte, i) in hash.iter_mut().zip(0..) {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(Identity(hash))
}

/// Of the part that is ours.
const VERSION: u64 = 1;
