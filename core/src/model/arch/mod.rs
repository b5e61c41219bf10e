//! Model families: for each, a table of tensor names and how its metadata is read.
//!
//! To add one: a file with `describe` and, where names differ, its table; a variant of
//! [`super::Architecture`]; a line in [`super::ModelConfig::from_gguf`].

pub(super) mod llama;

/// Names of the tensors outside of layers.
pub(super) const TOKEN_EMBD: &str = "token_embd.weight";
pub(super) const OUTPUT: &str = "output.weight";
pub(super) const OUTPUT_NORM: &str = "output_norm.weight";
/// Optional divisors of the rotary frequencies, (n_rot / 2) f32.
pub(super) const ROPE_FREQS: &str = "rope_freqs.weight";
