//! Sluice on Linux: the std shell around [`sluice_core`].
//!
//! Core computes and owns nothing; this crate brings what it is handed: model files
//! ([`mod@file`]), memory, threads on cores of their own, a way to wait and to be interrupted, the
//! kernel table for this CPU ([`host`]). [`load`] puts a model from a file into memory with all
//! workers, [`step`] runs the engine on them, [`generate`] makes text with it.
//!
//! Other trades are crates beside it: `sluice-text` (samplers, grammars, chats), `sluice-make` (making
//! model files), `sluice-gate`, and the program `sluice` itself (`sluice-cli`).

#[cfg(not(target_os = "linux"))]
compile_error!("this crate is the Linux shell; on other systems use sluice-core directly");

pub use sluice_core as core;

pub mod embed;
pub mod evaluate;
pub mod file;
pub mod generate;
pub mod host;
pub mod load;
pub mod step;
