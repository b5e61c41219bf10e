//! Why a checkpoint cannot be written or continued.

use sluice::file::OutputError;
use sluice_make::lora::LoraError;
use std::io;
use std::path::PathBuf;

/// Why a checkpoint cannot be written, read or continued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum CheckpointError {
    /// The output folder cannot be made or used.
    #[error("{path}: cannot use the output folder: {error}", path = path.display())]
    Folder { path: PathBuf, error: io::Error },
    /// Another run writes there.
    #[error("{path} is in use by another run: wait for it, or set another output_dir", path = path.display())]
    Locked { path: PathBuf },
    /// The folder has an earlier run's checkpoints, or its adapter.
    #[error(
        "{path} is from an earlier run: continue it with --resume auto, replace it with --overwrite-output-dir, or set \
         another output_dir",
        path = path.display()
    )]
    Used { path: PathBuf },
    /// The adapter cannot be written.
    #[error(transparent)]
    Adapter(#[from] LoraError),
    /// A file cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A folder cannot be written, renamed or removed.
    #[error("cannot write {path}: {error}", path = path.display())]
    Write { path: PathBuf, error: io::Error },
    /// A file of a checkpoint cannot be read.
    #[error("cannot read {path}: {error}", path = path.display())]
    Read { path: PathBuf, error: io::Error },
    /// A file of a checkpoint is not what was written.
    #[error("{path}: {what}", path = path.display())]
    Damaged { path: PathBuf, what: String },
    /// The checkpoint is of another run.
    #[error(
        "{path} was made with {what} {saved}, and this run has {now}: use the same, or start a new run from its adapter \
         (adapter_name_or_path)",
        path = path.display()
    )]
    Different {
        path: PathBuf,
        /// The setting, or what was hashed.
        what: String,
        saved: String,
        now: String,
    },
}

impl CheckpointError {
    /// Whether the checkpoint itself is at fault: an earlier one may be whole.
    pub(super) const fn is_of_checkpoint(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Damaged { .. })
    }
}
