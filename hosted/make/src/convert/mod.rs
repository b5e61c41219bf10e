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
//! [`tokenizer_json`] and [`sentencepiece`] read byte slices, which may be hostile.

mod candidates;
mod encode;
mod error;
mod folder;
mod fp8;
mod generation;
mod layout;
mod naming;
mod plan;
mod pre;
mod reranker;
mod rules;
pub mod sentencepiece;
mod special;
mod templates;
pub mod tokenizer_json;
mod types;
mod vocabulary;
mod write;

pub use crate::pieces::Outcome;
pub use encode::{can_encode, encode};
pub use error::ConvertError;
pub use plan::{Conversion, Options};
pub use pre::pre_tokenizer_name;
pub use types::{FloatType, TypeOf, keeps_f32};
