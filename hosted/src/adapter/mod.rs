//! Adapters (LoRA): read from files, packed for a model, and applied to texts.
//!
//! Reading an adapter passes its pairs of matrices to a [`PairSink`], one after the other. A [`Packing`] checks them
//! against a model and packs them; [`LoadedAdapter::load`] packs an [`AdapterFile`]. GGUF files and INFQ directories are
//! read here ([`LoadedAdapter::open`], [`read_pairs`]); the crate `sluice-hf` reads PEFT folders too, which takes the
//! model's `config.json` or its sizes.
//!
//! An [`AdapterBlend`] is the adapters of a text: one, or several with a factor each. Both are handles: a text that has
//! begun keeps its own, whatever happens to the others, and memory is freed with the last.

mod blend;
mod error;
mod factors;
mod files;
mod gguf;
pub mod infq;
mod loaded;
mod numbers;
mod ordered;
mod packing;
mod places;
mod sink;

pub use blend::AdapterBlend;
pub use error::AdapterLoadError;
pub use factors::{AdapterFile, Factors};
pub use files::{AdapterFormat, adapters_at, read_pairs};
pub use loaded::{LoadedAdapter, Precision};
pub use numbers::{check_copies, check_finite, transposed};
pub use packing::Packing;
pub use places::{RowsInFile, rows_in_file};
pub use sink::{AdapterOrigin, PairOrder, PairSink};
