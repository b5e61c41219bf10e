//! Networks of which some neurons are computed: modes of models, and the names of ruvector-sparse-inference 2.3.0.
//!
//! - [`SparseMode`], [`SparseFile`] and [`SparsePlan`] are how a model leaves neurons out (`--sparse`).
//! - [`SparseInferenceEngine`], [`NeuronCache`], [`QuantizedWeights`] and the providers have the signatures of that crate;
//!   what it computes without vectors is in [`sluice_core::sparse`], and taken from there.
//! - [`SparseEmbeddingProvider`] and [`SparseInferenceBackend`] run a real model.
//!
//! ```
//! use sluice::sparse::{PiContext, PrecisionLane, SparseInferenceEngine};
//!
//! # fn main() -> sluice::sparse::SparseResult<()> {
//! let engine = SparseInferenceEngine::new_sparse(512, 2048, 0.1)?;
//! let output = engine.infer(&[0.1; 512])?;
//! let honesty = PiContext::new(PrecisionLane::Bit5).check_honesty(&output, &output);
//! assert!(honesty.is_honest);
//! # Ok(()) }
//! ```
#![forbid(unsafe_code)]

mod aligned;
mod backend;
mod cache;
mod cached;
mod embedding;
mod engine;
mod error;
mod ffn;
mod fit;
mod matrix;
mod predictor;
#[cfg(test)]
mod tests;
mod trace;
mod vectors;
mod weights;

pub use backend::{GenerationConfig, GenerationStats, InferenceBackend, SparseInferenceBackend};
pub use cache::{CacheChange, CacheConfig, CacheStats, CacheStrategy, NeuronCache};
pub use cached::{BundleFile, CachedFfn, NeuronSource};
pub use embedding::{EmbeddingProvider, SparseEmbeddingProvider, StoredVector, StreamedEmbedding};
pub use engine::{SparseInferenceEngine, SparsityStats};
pub use error::{InferenceError, PredictorFault, SparseInferenceError, SparseResult};
pub use ffn::{FeedForward, SparseFfn};
pub use matrix::DenseMatrix;
pub use predictor::NeuronPredictor as Predictor;
pub use predictor::{DensePredictor, LowRankPredictor, NeuronPredictor, PredictorStats};
pub use trace::NeuronTrace;
pub use weights::{QuantizedWeights, Quantizer3Bit, Quantizer5Bit, Quantizer7Bit};

pub use sluice_core::sparse::{
    ActivationType, GraduationConfig, GraduationDecision, GraduationMetrics, GraduationPolicy,
    HardwareTarget, LaneConfig, LaneStats, LaneTelemetry, LaneTransition, ObservationMetrics,
    PrecisionLane, SparsityConfig, SparsityError, TransitionReason,
};

pub use crate::sparse_modes::{
    NormsError, PREDICTOR_ARCHITECTURE, PREDICTOR_MODEL, SparseError, SparseFile, SparseFileError,
    SparseMode, SparseModeError, SparsePlan, SparseRule, compares_gates, default_signal,
    predictor_beside, shares_between, signal_name, signal_of,
};
pub use pi::{
    AngularEmbedding, DeterministicJitter, DriftDetector, DriftReport, HypersphericalProjection,
    PI_SCALE_3BIT, PI_SCALE_5BIT, PI_SCALE_7BIT, PhaseEncoder, PiCalibration, PiChaos, PiContext,
    PiScheduler, QuantizationHonesty,
};

/// The π module, and traits that return vectors.
pub mod pi {
    pub use super::vectors::{
        AngularVectors, ChaosVectors, ContextVectors, JitterVectors, SchedulerVectors,
        SphericalVectors,
    };
    pub use sluice_core::sparse::pi::*;
}

/// Lanes and the policy, under the predecessor's path.
pub mod precision {
    pub use super::{
        GraduationConfig, GraduationDecision, GraduationMetrics, GraduationPolicy, HardwareTarget,
        LaneConfig, LaneStats, LaneTelemetry, LaneTransition, ObservationMetrics, PrecisionLane,
        Quantizer3Bit, Quantizer5Bit, Quantizer7Bit, TransitionReason,
    };
}

/// Weights and caches, under the predecessor's path.
pub mod memory {
    pub use super::{CacheConfig, CacheStats, CacheStrategy, NeuronCache, QuantizedWeights};
}

/// Providers, under the predecessor's path.
pub mod integration {
    pub use super::{
        EmbeddingProvider, InferenceBackend, SparseEmbeddingProvider, SparseInferenceBackend,
    };
}
