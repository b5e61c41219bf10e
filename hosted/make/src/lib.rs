//! Making model files: GGUF files of Hugging Face folders ([`mod@convert`]) and of other systems'
//! expert blobs ([`mod@import`], [`uth`]), smaller files of larger ones ([`mod@quantize`]), files whose weights
//! are used where they lie ([`slc`]), files in parts ([`mod@split`]), adapters' files in several formats ([`lora`]).

pub mod convert;
pub mod import;
pub mod lora;
mod pieces;
pub mod quantize;
pub mod slc;
pub mod split;
pub mod uth;
