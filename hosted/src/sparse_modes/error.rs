//! Why a mode cannot be used with a model, and what it is compared with.

use super::file::SparseFileError;
use super::mode::SparseMode;
use crate::file::{FileError, ModelFile};
use crate::host::memory::OutOfMemory;
use crate::identity::{HashError, Identity};
use sluice_core::model::ModelConfig;

/// Why a mode cannot be used with a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SparseError {
    /// The calibration file cannot be used.
    #[error(transparent)]
    File(#[from] SparseFileError),
    /// The calibration file does not exist.
    #[error(
        "sparse {mode}: {path} does not exist: make it with sluice sparsify -m {model} -f TEXT, or name another file (--sparse-file)"
    )]
    NoFile {
        /// The mode.
        mode: SparseMode,
        /// Where the file was looked for.
        path: String,
        /// The model.
        model: String,
    },
    /// The predictor does not exist.
    #[error(
        "sparse predictor: {path} does not exist: make it with sluice sparsify -m {model} -f TEXT --predictor ridge, or name another file (--sparse-file)"
    )]
    NoPredictor {
        /// Where the file was looked for.
        path: String,
        /// The model.
        model: String,
    },
    /// A predictor's file cannot be read.
    #[error(transparent)]
    Predictor(#[from] FileError),
    /// Not enough memory for a predictor.
    #[error("not enough memory for the predictor: {0}")]
    PredictorMemory(OutOfMemory),
    /// A calibration file is given to a mode that reads none.
    #[error(
        "sparse {0}: this mode reads no calibration file: omit --sparse-file, or use threshold, target or predictor"
    )]
    NeedlessFile(SparseMode),
    /// The file was made for another model.
    #[error(
        "{path}: it was made for another model: it has the fingerprint {found}, {model} has {expected}"
    )]
    OtherModel {
        /// The calibration file.
        path: String,
        /// The model.
        model: String,
        /// The model's fingerprint.
        expected: String,
        /// The file's.
        found: String,
    },
    /// The mode asks for something that the file does not have.
    #[error("{path}: {why}")]
    Lacks {
        /// The calibration file.
        path: String,
        /// What.
        why: String,
    },
    /// The model does not allow the mode.
    #[error("sparse {mode}: {why}")]
    Model {
        /// The mode.
        mode: SparseMode,
        /// Why not.
        why: &'static str,
    },
    /// The model's file could not be hashed, to compare it with the calibration file's.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// Not enough memory for the norms of neurons.
    #[error("not enough memory for the norms of neurons: {0}")]
    Memory(OutOfMemory),
}

/// The model that a mode is fitted to.
pub(crate) struct Subject<'a> {
    pub(crate) config: &'a ModelConfig,
    pub(crate) name: &'a str,
    pub(crate) file: &'a ModelFile,
    /// The fingerprint that its calibration files have.
    pub(crate) fingerprint: &'a dyn Fn() -> Result<Identity, HashError>,
}
