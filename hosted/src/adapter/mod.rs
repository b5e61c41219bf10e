//! Adapters (LoRA): what their files say, packed for a model, and handed to texts.
//!
//! Files are read by `sluice-make`, which hands their pairs of matrices to a [`Packing`] one after the other, or puts them
//! into an [`AdapterFile`]: [`Adapter::load`] packs that. Either way they are checked against a model.
//! A [`Blend`] is what a text is computed with: one adapter, or several with a factor each. Both are handles: a text
//! that has begun keeps its own, whatever becomes of the others, and memory goes with the last.

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
