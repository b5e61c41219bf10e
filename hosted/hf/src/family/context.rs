//! The context and other numbers shared by several families.

use crate::HfError;
use crate::config::Config;

pub(super) const CONTEXT: &[&str] = &["max_position_embeddings", "n_positions"];

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
