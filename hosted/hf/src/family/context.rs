//! The context and other numbers shared by several families.

use super::mixers::{self, Mixer};
use super::{Family, Shape};
use crate::HfError;
use crate::config::Config;

pub(super) const CONTEXT: &[&str] = &["max_position_embeddings", "n_positions"];

/// The context to write for a family whose files do not describe windows: up to the window's length, a layer with one
/// computes the same as a layer without.
pub(super) fn context(
    family: &Family,
    config: &Config,
    shape: &Shape,
    warnings: &mut Vec<String>,
) -> Result<u32, HfError> {
    let n_ctx = config.count(CONTEXT)?;
    let listed = mixers::with_states(config, shape.n_layer)?;
    let uses = config.bool("use_sliding_window");
    let window = match config
        .find(&["sliding_window"])
        .and_then(serde_json::Value::as_u64)
    {
        Some(0) => None,
        _ => config.maybe_count(&["sliding_window"])?,
    };
    let has_windows = match listed.is_empty() {
        true => uses == Some(true),
        false => listed.contains(&Mixer::Window),
    };
    match window.filter(|&window| has_windows && window < n_ctx) {
        Some(window) => {
            warnings.push(format!(
                "{} is {window}, but {} in GGUF has no windows; the context length is set to {window} tokens instead \
                 of {n_ctx}, up to which both are the same",
                config.named("sliding_window"),
                family.architecture
            ));
            Ok(window)
        }
        None => Ok(n_ctx),
    }
}

/// The epsilon of norms; `default` is transformers'.
pub(super) fn epsilon(config: &Config, keys: &[&str], default: f64) -> Result<f32, HfError> {
    Ok(narrow(config.maybe_number(keys)?.unwrap_or(default)))
}

/// A number of a configuration as GGUF stores it.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "GGUF's floats are f32")]
pub const fn narrow(x: f64) -> f32 {
    x as f32
}
