//! Making model files: GGUF files from Hugging Face folders ([`mod@convert`]) and from other systems' expert blobs
//! ([`mod@import`], [`uth`]), quantised files ([`mod@quantize`]), files whose weights are used in place ([`slc`]),
//! thresholds of neurons ([`mod@sparsify`]), split files ([`mod@split`]), 2-bit copies of models as their drafts ([`mod@draft_copy`]), and adapter files in several
//! formats ([`lora`]).
#![forbid(unsafe_code)]

pub mod convert;
pub mod draft_copy;
pub mod import;
pub mod lora;
mod pieces;
#[cfg(feature = "predictors")]
pub mod predictor;
pub mod quantize;
pub mod slc;
pub mod sparsify;
pub mod split;
pub mod uth;
