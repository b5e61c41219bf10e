//! Why a log cannot be written.

use sluice::file::OutputError;
use std::io;
use std::path::{Path, PathBuf};

/// Why a log cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum LogError {
    /// A log cannot be created, or added to.
    #[error("cannot write the log {path}: {error}", path = path.display())]
    Write { path: PathBuf, error: io::Error },
    /// The curves cannot be written.
    #[error(transparent)]
    Curves(#[from] OutputError),
}

impl LogError {
    /// Puts the path to an error.
    pub(super) fn of(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_path_buf();
        move |error| Self::Write {
            path: path.clone(),
            error,
        }
    }
}
