//! Errors by the predecessor's names; what is wrong with an input is core's [`SparsityError`].

use crate::evaluate::EvaluateError;
use crate::host::memory::OutOfMemory;
use crate::model::OpenError;
use crate::session::{GenerateError, SessionError};
use sluice_core::gguf::GgufError;
use sluice_core::sparse::SparsityError;

/// Result of a sparse computation.
pub type SparseResult<T> = Result<T, SparseInferenceError>;

/// Why a sparse computation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SparseInferenceError {
    /// A predictor.
    #[error("predictor: {0}")]
    Predictor(#[from] PredictorFault),
    /// A model file, or its weights.
    #[error("model: {0}")]
    Model(Box<dyn core::error::Error + Send + Sync>),
    /// A computation.
    #[error("inference: {0}")]
    Inference(#[from] InferenceError),
    /// A cache, or a trace for one.
    #[error("cache: {0}")]
    Cache(String),
    /// Quantised weights.
    #[error("quantization: {0}")]
    Quantization(SparsityError),
    /// A file.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A GGUF header.
    #[error("GGUF: {0}")]
    Gguf(#[from] GgufError),
}

/// What is wrong with a predictor.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PredictorFault {
    /// A setting.
    #[error("{0}")]
    InvalidConfig(SparsityError),
    /// A width.
    #[error("{what} has {actual} elements: expected {expected}")]
    DimensionMismatch {
        /// The vector or matrix.
        what: &'static str,
        /// Elements it should have.
        expected: usize,
        /// Elements it has.
        actual: usize,
    },
    /// No calibration yet.
    #[error("{0}")]
    NotCalibrated(SparsityError),
    /// A rank of 0, or above a dimension.
    #[error("rank {rank}: expected 1 to {most}")]
    InvalidRank {
        /// The rank.
        rank: usize,
        /// The smaller of both dimensions.
        most: usize,
    },
    /// Samples that a predictor cannot be fitted to.
    #[error("calibration: sample {sample}: {error}")]
    CalibrationFailed {
        /// The sample.
        sample: usize,
        /// What is wrong with it.
        error: SparsityError,
    },
}

/// What is wrong with a computation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InferenceError {
    /// The input has another width.
    #[error("input has {actual} elements: expected {expected}")]
    InputDimensionMismatch {
        /// Elements it should have.
        expected: usize,
        /// Elements it has.
        actual: usize,
    },
    /// No neuron was selected.
    #[error("no active neurons: lower the threshold, or set top_k")]
    NoActiveNeurons,
    /// The model failed.
    #[error("{0}")]
    Failed(String),
    /// A backend failed.
    #[error("{0}")]
    Backend(String),
    /// A number, neuron or setting.
    #[error("{0}")]
    InvalidInput(SparsityError),
}

impl From<SparsityError> for InferenceError {
    fn from(error: SparsityError) -> Self {
        match error {
            SparsityError::NoneSelected => Self::NoActiveNeurons,
            SparsityError::Length {
                what: "input",
                expected,
                found,
            } => Self::InputDimensionMismatch {
                expected,
                actual: found,
            },
            error => Self::InvalidInput(error),
        }
    }
}

impl From<SparsityError> for PredictorFault {
    fn from(error: SparsityError) -> Self {
        match error {
            SparsityError::NotCalibrated => Self::NotCalibrated(error),
            SparsityError::Length {
                what,
                expected,
                found,
            } => Self::DimensionMismatch {
                what,
                expected,
                actual: found,
            },
            error => Self::InvalidConfig(error),
        }
    }
}

impl From<SparsityError> for SparseInferenceError {
    fn from(error: SparsityError) -> Self {
        Self::Inference(error.into())
    }
}

impl From<OpenError> for SparseInferenceError {
    fn from(error: OpenError) -> Self {
        Self::Model(Box::new(error))
    }
}

impl From<SessionError> for SparseInferenceError {
    fn from(error: SessionError) -> Self {
        Self::Model(Box::new(error))
    }
}

impl From<OutOfMemory> for SparseInferenceError {
    fn from(error: OutOfMemory) -> Self {
        Self::Model(Box::new(error))
    }
}

impl From<EvaluateError> for SparseInferenceError {
    fn from(error: EvaluateError) -> Self {
        Self::Inference(InferenceError::Failed(error.to_string()))
    }
}

impl From<GenerateError> for SparseInferenceError {
    fn from(error: GenerateError) -> Self {
        Self::Inference(InferenceError::Failed(error.to_string()))
    }
}
