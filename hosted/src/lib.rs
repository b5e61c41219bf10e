//! Sluice on Linux: the std shell around [`sluice_core`].
//!
//! ```
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tale-5.8m-Q4_K_M.gguf");
//! # fn tell(path: &str) -> Result<(), Box<dyn std::error::Error>> {
//! use sluice::{Limits, Model, Settings};
//!
//! let model = Model::open(path)?;
//! let mut session = model.session(Limits::default())?;
//! for piece in session.generate("Once upon a time", Settings::default()) { print!("{}", piece?); }
//! # Ok(()) }
//! # tell(path).unwrap();
//! ```
//!
//! Core computes and owns nothing; this crate owns what it is handed. A [`Model`] is a file with its
//! tokenizer and weights, a [`Team`] is threads, a [`Session`] a model at work on several texts
//! ([`Sequence`]) at once, a [`Generator`] a session with one text that keeps its context.
//! [`Session::embed`] computes embeddings of texts, [`Session::rank`] scores documents, [`Session::read`] returns the
//! model's predictions for a text. [`host`] covers the machine and its kernel, [`mod@file`] reads and writes model
//! files.
//!
//! Related crates: `sluice-text` (samplers, grammars, chats), `sluice-hf` (Hugging Face's models and
//! adapters), `sluice-make` (making model files), `sluice-gate`, and the program `sluice` itself (`sluice-cli`).

#[cfg(not(target_os = "linux"))]
compile_error!("this crate is the Linux shell; on other systems use sluice-core directly");

pub use sluice_core as core;

pub use generate::Generator;
pub use model::{Model, check_header};
pub use sequence::{Sequence, Settings};
pub use session::{Limits, Session};
pub use team::Team;

pub mod adapter;
pub mod draft;
pub mod embed;
pub mod encode;
pub mod evaluate;
pub mod experts;
pub mod file;
pub mod generate;
mod head;
pub mod host;
pub mod identity;
mod idle_hash;
mod load;
pub mod model;
pub mod neurons;
mod next_token;
mod owned;
pub mod rank;
pub mod sequence;
pub mod session;
pub mod sparse;
mod sparse_modes;
pub mod speculate;
pub mod team;
pub mod training;
pub mod vocabulary;
