//! GGUF files of decoders and encoders evaluated in f64: the standard our logits are measured by.
//!
//! Slow, plain and independent: it shares no code with `sluice-core` and `sluice-kernels`, not
//! even the file reader or the common block formats (the rest are taken from the kernels). Weights
//! are dequantised as ggml does it (in f32, checked bit for bit against ggml's own output);
//! everything after that is f64, and no activation is ever quantised. What remains of the distance between an engine and this
//! evaluation is therefore the engine's own rounding.
//!
//! Refuses what it would evaluate wrongly: another architecture, a tensor it has no use for, an
//! unknown RoPE scaling, a key of the architecture that it does not read.

mod decoder;
pub mod dequant;
mod encoder;
mod experts;
pub mod file;
mod hybrid;
mod network;
mod source;

use core::fmt;

pub use decoder::Model;
pub use encoder::Encoder;
pub use hybrid::Hybrid;

/// Why a file cannot be evaluated, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(String);

impl Unreadable {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for Unreadable {}
