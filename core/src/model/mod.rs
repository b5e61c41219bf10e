//! Models: what a GGUF file describes, how much memory it takes, and its weights in panels.
//!
//! A model is a list of layers, each of one of a few kinds ([`LayerKind`]): a mixer, which takes from
//! earlier tokens, and a channel, which works on each token by itself. [`Site`] names the matrices.
//!
//! ```text
//! Gguf ──ModelConfig::from_gguf──▶ ModelConfig        what the model is
//!      ──ModelPlan::new──────────▶ ModelPlan          bytes of weight memory
//!      ──Loader::new─────────────▶ Loader             places every tensor in that memory
//!          any number of threads: Loader::work        converts tensors to panels, in parallel
//!      ──Loader::finish──────────▶ ModelWeights       immutable, shared by all workers
//! Slc  ──ModelWeights::in_place──▶ ModelWeights       weights stay where they are
//! ```
//!
//! Some models have a head after their layers that predicts one more token. [`ModelConfig::next_token_head`]
//! describes it as a model of its own, which is planned and loaded likewise, and finished with its trunk:
//! [`Loader::finish_head`], [`ModelWeights::head_in_place`].

mod activation;
mod arch;
mod architecture;
mod check;
mod config;
mod ends;
mod error;
mod frequencies;
pub mod head;
mod in_place;
mod job;
mod kind;
mod load;
mod norm;
mod norms;
mod place;
mod plan;
pub mod pooling;
mod predictor;
mod ranges;
mod refs;
mod replaced;
mod rope;
mod shape;
mod site;
mod weight;
mod weights;

pub use activation::Activation;
pub use arch::PowerInfer;
pub use architecture::Architecture;
pub use config::{
    Fusion, KINDS_MAX, LAYERS_MAX, LayerActivations, ModelConfig, NextToken, ROPES_MAX,
};
pub use error::{ModelError, Name};
pub use kind::{Channel, LayerKind, Mixer};
pub use load::{LoadProgress, Loader};
pub(crate) use norm::Norm;
pub use place::{Residency, Tables};
pub use plan::{ExpertMatrices, ModelPlan};
pub(crate) use predictor::LayerPredictor;
pub use predictor::{
    DENSE as PREDICTOR_DENSE, Predictor, PredictorLimits, PredictorPlan,
    THRESHOLDS as PREDICTOR_THRESHOLDS,
};
pub(crate) use ranges::{HEAD_DIM_NORMED_MAX, SSM_TAPS_MAX};
pub use rope::{LongRope, Rope, RopeConfig, RopeScaling, RopeScalingKind, Yarn};
pub(crate) use shape::SLOPES_MAX;
pub(crate) use shape::conv_state_len;
pub use shape::{
    Attention, DeltaKeys, DeltaNet, Experts, Ffn, Latent, Mamba2, QkNorm, QueryTemperature, Router,
    RouterScore, SharedExpert, ShortConv,
};
pub(crate) use site::Vector;
pub use site::{Input, Site};
pub use weight::Weight;
pub(crate) use weights::Layer;
pub use weights::ModelWeights;

#[cfg(test)]
pub(crate) mod tests;
