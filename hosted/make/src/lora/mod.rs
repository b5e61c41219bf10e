//! LoRA adapter files: writing, merging into models, combining. [`sluice_hf::adapter`] reads them.
//!
//! | format | written by |
//! |---|---|
//! | a PEFT folder: `adapter_config.json`, `adapter_model.safetensors` | [`write_peft`] |
//! | llama.cpp's GGUF | [`write_gguf`] |
//! | a directory of INFQ v1 | [`write_infq`] |

mod added;
mod blend;
mod dominant;
mod error;
mod gguf_write;
mod infq_write;
mod matrices;
mod merge;
mod peft_write;
mod start;

pub use blend::{interpolate, stack};
pub use error::LoraError;
pub use gguf_write::{GgufOptions, write_gguf};
pub use infq_write::{InfqOptions, OUTLIER_THRESHOLD, write_infq};
pub use matrices::Matrices;
pub use merge::MergePlan;
pub use peft_write::{PeftOptions, write_peft};
