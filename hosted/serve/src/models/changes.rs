//! Changes of models, for those who listen.

use std::sync::Arc;

/// A change.
#[derive(Clone, Debug)]
pub(crate) enum ModelChange {
    /// The model with this number has another state.
    State(usize),
    /// The list of models was read again.
    Listed,
    /// The model of this name was deleted.
    Removed(String),
    /// The download of this name has come further.
    Download(Arc<str>, DownloadStep),
}

/// How far a download has come.
#[derive(Clone, Debug)]
pub(crate) enum DownloadStep {
    Progress(Vec<FileProgress>),
    Finished,
    Failed,
}

/// How much of a file is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileProgress {
    /// Its path in the repository.
    pub(crate) path: String,
    pub(crate) done_bytes: u64,
    pub(crate) total_bytes: u64,
}
