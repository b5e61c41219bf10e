//! Adapters (LoRA): read from files, packed for a model, and applied to texts.
//!
//! Files are read by `sluice-make`, which hands their pairs of matrices to a [`Packing`] one after the other, or puts them
//! into an [`AdapterFile`]: [`Adapter::load`] packs that. Either way they are checked against a model.
//! A [`Blend`] is the adapters of a text: one, or several with a factor each. Both are handles: a text
//! that has begun keeps its own, whatever happens to the others, and memory is freed with the last.

mod blend;
mod error;
mod factors;
mod loaded;
mod packing;
mod places;

pub use blend::Blend;
pub use error::AdapterError;
pub use factors::{AdapterFile, Factors};
pub use loaded::{Adapter, Precision};
pub use packing::Packing;
pub use places::{RowsInFile, rows_in_file};
