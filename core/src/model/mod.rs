//! Models: what a GGUF file describes, how much memory it takes, and its weights in panels.
//!
//! ```text
//! Gguf ──ModelConfig::from_gguf──▶ ModelConfig        what the model is
//!      ──ModelPlan::new──────────▶ ModelPlan          bytes of weight memory
//!      ──Loader::new─────────────▶ Loader             places every tensor in that memory
//!          any number of threads: Loader::work        converts tensors to panels, in parallel
//!      ──Loader::finish──────────▶ Model              immutable, shared by all workers
//! Slc  ──Model::in_place─────────▶ Model              weights stay where they are
//! ```

mod arch;
mod config;
mod error;
mod in_place;
mod loader;
mod rope;
mod weights;

pub use arch::{Architecture, Fused};
pub(crate) use arch::{Matrix, Norm};
pub use config::{
    Activation, LayerActivations, LocalRope, ModelConfig, QkNorm, RopeScaling, RopeScalingKind,
    WindowPattern,
};
pub use error::{ModelError, Name};
pub use loader::{LoadProgress, Loader, ModelPlan};
pub use rope::Rope;
pub(crate) use weights::Layer;
pub(crate) use weights::NormWeights;
pub use weights::{Model, Weight};

#[cfg(test)]
pub(crate) mod tests;
