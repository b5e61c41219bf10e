//! Folders of Hugging Face models to GGUF.
//!
//! [`Conversion::plan`] reads configuration, tokenizer and the headers of the weights, checks that they form one model
//! of a known family with every tensor in its place, and lays out the GGUF file. [`Conversion::write`] streams the
//! weights into it, in pieces of a few MiB on several threads, so no tensor is ever in memory as a whole. Tensors, keys
//! and values match llama.cpp's converter (`convert_hf_to_gguf.py`) byte for byte, except for a few keys that
//! docs/convert.md lists.
//!
//! Anything in a file that changes the computation or the tokens is written, or refused by name; unknown keys cause a
//! warning ([`Conversion::warnings`]).
//!
//! [`safetensors`], [`tokenizer_json`] and [`sentencepiece`] read byte slices, which may be hostile.
#![forbid(unsafe_code)]

mod base;
mod config;
mod encode;
mod error;
mod family;
mod folder;
mod fp8;
mod generation;
mod gguf_config;
mod layout;
mod naming;
mod plan;
mod pre;
mod python_json;
mod rules;
pub mod safetensors;
pub mod sentencepiece;
mod special;
pub mod tokenizer_json;
mod types;
mod unread;
mod vocabulary;
mod write;

pub use crate::pieces::Outcome;
pub(crate) use base::Base;
pub(crate) use config::Config;
pub(crate) use encode::decode;
pub use encode::{can_encode, encode};
pub use error::ConvertError;
pub(crate) use family::{Change, Map, Slice, Wanted};
pub(crate) use folder::{read_header, read_json};
pub use plan::{Conversion, Options};
pub use pre::pre_tokenizer_name;
pub use types::{FloatType, TypeOf, keeps_f32};
pub(crate) use unread::{Neutral, short};
