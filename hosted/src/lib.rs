//! Sluice on Linux: the std shell around [`sluice_core`].
//!
//! Core computes and owns nothing; this crate brings what it is handed: model files
//! ([`mod@file`]), memory ([`memory`]), threads on cores of their own ([`workers`], [`topology`]), a
//! way to wait ([`futex`]) and to be interrupted ([`interrupt`]), the kernel table for this CPU
//! ([`isa`]), samplers that own what they need ([`mod@sampling`]). [`load`] puts a model from a file into memory with all workers, [`step`] runs
//! the engine on them, [`generate`] makes text with it. [`mod@quantize`] makes smaller files of larger ones (feature `quantize`),
//! `convert` makes GGUF files of Hugging Face folders (feature `convert`), `chat_template` prompts of
//! messages (feature `chat`); `grammar` keeps texts to a grammar or a JSON schema (feature `grammar`). The program
//! `sluice` is built on these parts (feature `cli`), and other programs can be.

#[cfg(not(target_os = "linux"))]
compile_error!("this crate is the Linux shell; on other systems use sluice-core directly");

pub use sluice_core as core;

#[cfg(feature = "chat")]
pub mod chat;
#[cfg(feature = "chat")]
pub mod chat_template;
#[cfg(feature = "convert")]
pub mod convert;
pub mod doctor;
#[cfg(feature = "quantize")]
pub mod embed;
#[cfg(feature = "quantize")]
pub mod evaluate;
pub mod file;
pub mod futex;
pub mod gate;
pub mod generate;
#[cfg(feature = "grammar")]
pub mod grammar;
#[cfg(feature = "import")]
pub mod import;
pub mod interrupt;
pub mod isa;
pub mod load;
pub mod measures;
pub mod memory;
mod pace;
pub mod perplexity;
pub mod placement;
pub mod process;
pub mod profile;
#[cfg(feature = "quantize")]
pub mod quantize;
pub mod roofline;
pub mod sampling;
#[cfg(feature = "pack")]
pub mod slc;
pub mod step;
pub mod terminal;
pub mod topology;
pub mod workers;
