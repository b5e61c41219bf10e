//! The configuration of a run: YAML and JSON files, flags over them, and the typed settings that the rest uses.
//!
//! Names are TRL's and PEFT's; axolotl's, LLaMA-Factory's and avxLLM's are other names of the same keys
//! ([`CONFIG_KEYS`]). A name that is not known is an error, and so is a known one that is not supported.

mod adapter;
mod amount;
mod error;
mod files;
mod input;
mod keys;
mod output;
mod refused;
mod schedule;
mod settings;
mod sft;
mod source;
mod steps;
mod table;
#[cfg(test)]
mod tests;
mod turned;
mod yaml;

pub use adapter::{AdapterSettings, InitialWeights, TargetModules};
pub use amount::Amount;
pub use error::{ConfigError, ConfigPlace};
pub use files::DataFile;
pub use input::{DataSettings, ModelSettings};
pub use keys::{CONFIG_KEYS, ConfigKey, Kind};
pub use output::{CheckpointSettings, EngineSettings, EvalSettings, LogSettings, When};
pub use schedule::{DecayShape, Schedule};
pub use sft::SftConfig;
pub use steps::OptimizerSettings;
pub use table::{keys_table, other_names_table};

/// The names that are not keys and not other names of keys: they stand for values, are refused, or have no effect.
pub fn other_names() -> impl Iterator<Item = &'static str> {
    let turned = turned::TURNED.iter().map(|turn| turn.name);
    let rest = refused::REFUSED.iter().chain(refused::WITHOUT_EFFECT);
    turned.chain(rest.map(|(name, _)| *name))
}

/// The forms of rows, by name; `auto` recognises them.
pub const TYPES: &[&str] = &[
    "auto",
    "text",
    "prompt_completion",
    "messages",
    "preference",
    "sharegpt",
    "alpaca",
    "tokens",
];

/// A form of rows by the name that is used here; axolotl's and LLaMA-Factory's differ.
fn type_name(name: &str) -> &str {
    match name {
        "completion" | "language_modeling" | "pretrain" => "text",
        "prompt-completion" | "input_output" => "prompt_completion",
        "chat_template" | "chat" | "openai" | "conversational" => "messages",
        "tokenized" | "input_ids" => "tokens",
        other => other,
    }
}
