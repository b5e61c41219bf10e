//! A run: what is read before it, and the way to the loop.

use crate::checkpoint::CheckpointError;
use crate::config::{ConfigError, SftConfig};
use crate::data::{DataError, Dataset, prepare};
use crate::logs::LogError;
use crate::optimizer::BadGradient;
use crate::plan::DataPlan;
use sluice::file::LoadMode;
use sluice::host::isa::IsaError;
use sluice::identity::HashError;
use sluice::model::{LoadError, OpenError};
use sluice::training::TrainingError;
use sluice::vocabulary::VocabularyFile;
use sluice_make::lora::LoraError;
use std::io;
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
    /// `target_modules` or a pattern names no matrix, or one that cannot be adapted.
    #[error("{0}")]
    Targets(String),
    /// The base is a file that gradients cannot go through.
    #[error("{} is stored by neuron, which is for inference: train on the GGUF file, or on one of sluice pack without --ffn", .0.display())]
    ByNeuron(PathBuf),
    /// Threads could not be started.
    #[error("no threads: {0}")]
    Threads(#[source] io::Error),
    /// The kernels that `isa` names are not there.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// The model's weights cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The model's file cannot be hashed.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// A pass failed, or the model has a part that cannot be trained.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// The loss is not a number or infinite.
    #[error(
        "the loss of step {step} is not finite: lower learning_rate, or check the rows of that step"
    )]
    NotFinite { step: u64 },
    /// A gradient is not a number or infinite.
    #[error(transparent)]
    Gradient(#[from] BadGradient),
    /// The memory that passes need is not there.
    #[error(
        "passes need {} MB of memory, and {} MB are available: lower per_device_train_batch_size or max_length, or set \
         gradient_checkpointing",
        needed / 1_000_000,
        available / 1_000_000
    )]
    Memory { needed: u64, available: u64 },
    /// A checkpoint cannot be written or continued.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A log cannot be written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The adapter to start from is of another kind.
    #[error("the adapter {} {what}", path.display())]
    Start { path: PathBuf, what: String },
    /// A setting that this version does not have.
    #[error("{0} comes with a later version")]
    Later(&'static str),
    /// The adapter cannot be written.
    #[error(transparent)]
    Write(#[from] LoraError),
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
