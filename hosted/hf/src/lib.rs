//! Models as Hugging Face stores them, in GGUF's terms: `config.json` and its families ([`Family`]), the names and
//! shapes of their tensors ([`Wanted`]), [`safetensors`] files, and LoRA adapters ([`adapter`]).
//!
//! Names, values and row order match llama.cpp's converter (`convert_hf_to_gguf.py`). Anything in a file that changes
//! the computation is honoured, or refused by name.

#![forbid(unsafe_code)]

pub mod adapter;
mod base;
mod config;
mod decode;
mod error;
mod family;
mod files;
mod gguf_config;
mod python_json;
pub mod safetensors;
mod unread;

pub use base::Base;
pub use config::{Config, whole};
pub use decode::decode;
pub use error::HfError;
pub use family::*;
pub use files::*;
pub use unread::{check_config, short, warn_of_rest};
