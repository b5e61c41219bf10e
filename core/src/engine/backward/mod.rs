//! The backward pass of training: gradients of adapters over frozen weights.
//!
//! ```text
//! Backward::begin(texts)              tokens of whole texts, one after the other
//! Backward::embed                     stream 0
//! for each layer  Engine::step_layers(stream l) with Backward::observer(l) ─▶ stream l + 1
//! Backward::head                      cross-entropy of labelled rows, and the gradient of the last stream
//! for each layer, last first          Backward::layer: gradients of its adapters, and of its input
//! ```
//!
//! The forward pass is the engine's own; its rounding is passed straight through. The layer's products are kept by an
//! [`Observer`](super::Observer) ([`Backward::observer`]): of all layers, or of one, which is then computed once more before
//! its backward pass ([`BackwardLimits::n_kept`]).
//!
//! Outputs own their sums: a worker owns columns or rows of a gradient and walks texts and tokens in their order, in groups of
//! 256 tokens of one text. So gradients depend neither on the number of workers nor on which texts share a pass.
//!
//! Formulas: Hu et al. 2021 (LoRA), Chen et al. 2016 (checkpointing), Dao et al. 2022 (attention backward).

mod activation;
mod attention;
mod error;
mod head;
mod keep;
mod layer;
mod linear;
mod matrix;
mod room;
mod rows;
mod run;
mod step;
mod texts;

pub use error::BackwardError;
pub use keep::Keeper;
pub use room::{BackwardLimits, BackwardPlan, GradientType};
pub use step::{Backward, BackwardOptions, BackwardStep, BackwardWorker, Loss};
pub use texts::NO_LABEL;

use crate::model::Site;

/// The matrices of an adapter for one matrix of the model, and where their gradients are added.
#[derive(Clone, Copy, Debug)]
pub struct TrainedPair<'a> {
    /// The layer.
    pub layer: usize,
    /// The matrix in it.
    pub site: Site,
    /// Rows of A, columns of B.
    pub rank: usize,
    /// A, (rank, columns of the model's matrix).
    pub a: &'a [f32],
    /// A once more, (columns of the model's matrix, rank).
    pub a_columns: &'a [f32],
    /// B, (rows of the model's matrix, rank).
    pub b: &'a [f32],
    /// α / r.
    pub scale: f32,
    /// Where the gradient of A begins in the gradients, (rank, columns).
    pub gradient_a: usize,
    /// Where the gradient of B begins in the gradients, (rows, rank).
    pub gradient_b: usize,
}
