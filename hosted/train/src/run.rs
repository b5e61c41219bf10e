//! A run: what is read before it, and the way to the loop.

use crate::config::{ConfigError, SftConfig};
use crate::data::{DataError, Dataset, prepare};
use crate::plan::DataPlan;
use sluice::file::LoadMode;
use sluice::model::OpenError;
use sluice::vocabulary::VocabularyFile;
use std::path::PathBuf;

/// Why a run did not begin, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum TrainError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The rows cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model's file cannot be opened.
    #[error(transparent)]
    Model(#[from] OpenError),
    /// The run was interrupted, after a checkpoint was written.
    #[error("interrupted; continue from {checkpoint}", checkpoint = checkpoint.display())]
    Interrupted { checkpoint: PathBuf },
    /// This version reads a run, and does not train.
    #[error(
        "training comes with a later version: add --dry-run to check the configuration and the rows"
    )]
    Later,
}

/// What is known of a run before its model is loaded.
#[derive(Debug)]
pub struct PreparedRun {
    /// The model's vocabulary.
    pub vocabulary: VocabularyFile,
    /// The rows.
    pub dataset: Dataset,
    /// What the run is going to do.
    pub plan: DataPlan,
}

impl PreparedRun {
    /// Reads the vocabulary and the rows.
    ///
    /// # Errors
    /// [`TrainError`]: the model has no vocabulary, or the rows cannot be used.
    pub fn new(config: &SftConfig) -> Result<Self, TrainError> {
        let vocabulary = VocabularyFile::open(&config.model.path, LoadMode::Read)?;
        let dataset = prepare(config, &vocabulary)?;
        let plan = DataPlan::new(config, &vocabulary, &dataset);
        Ok(Self {
            vocabulary,
            dataset,
            plan,
        })
    }
}

/// Trains an adapter, and returns its folder.
///
/// # Errors
/// [`TrainError`].
pub fn run(config: &SftConfig) -> Result<PathBuf, TrainError> {
    let _prepared = PreparedRun::new(config)?;
    Err(TrainError::Later)
}
