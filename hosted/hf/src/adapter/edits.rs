//! What an adapter changes in a model apart from products: only a merge can apply it.

use super::merge_config::AdapterStart;
use super::whole::WholeTensor;
use sluice::adapter::AdapterFile;

/// An adapter for a merge: its products, and everything else that it changes.
#[derive(Debug)]
pub struct MergeAdapter {
    /// The products.
    pub file: AdapterFile,
    /// Everything else, in the order in which it applies.
    pub edits: Vec<TensorEdit>,
    /// Whether a model whose embedding is also its output matrix keeps them one: products of the embedding then
    /// change both.
    pub is_tying: bool,
}

/// A change of a tensor.
#[derive(Debug)]
pub struct TensorEdit {
    /// GGUF's name.
    pub tensor: String,
    /// The index of the matrix in a stack.
    pub part: Option<u32>,
    /// The change.
    pub edit: Edit,
    /// Whether it is also a change of the output matrix, in a model in which that is the embedding.
    pub is_tied: bool,
}

/// How a tensor changes. Rows are counted as in the GGUF file.
#[derive(Debug)]
pub enum Edit {
    /// All rows are replaced, before products are added.
    Replace(WholeTensor),
    /// These rows are replaced; numbers row by row.
    ReplaceRows {
        /// The rows.
        rows: Vec<u64>,
        /// Their numbers.
        numbers: Vec<f32>,
    },
    /// The part of this rank with which training began is taken out, before products are added.
    TakeOut {
        /// Which part.
        start: AdapterStart,
        /// Its rank.
        rank: usize,
        /// Its factor.
        scale: f32,
    },
    /// A vector is added, multiplied by the adapter's scale.
    Add(Vec<f32>),
    /// Rows get these lengths, after products are added (DoRA).
    Lengths(Vec<f32>),
}
