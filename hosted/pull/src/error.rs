//! Why a file could not be fetched.

use std::io;
use std::path::PathBuf;

/// Why a pull failed. Every message names the operation and the file or server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described by the messages")]
pub enum PullError {
    /// The name of a repository or of a revision is not valid.
    #[error("invalid {what} {text:?}: expected {expected}")]
    Name {
        what: &'static str,
        text: String,
        expected: &'static str,
    },
    /// An environment variable cannot be used.
    #[error("{name}: {why}")]
    Setting { name: &'static str, why: String },
    /// The connection failed or broke.
    #[error("cannot reach {host}: {why}")]
    Unreachable { host: String, why: String },
    /// The server refused the request.
    #[error("{url}: {why}")]
    Refused {
        url: String,
        status: u16,
        why: String,
    },
    /// The server's answer is not valid.
    #[error("{url}: unexpected response: {why}")]
    Answer { url: String, why: String },
    /// The repository does not have the requested file.
    #[error("{repo}: {why}")]
    NotThere { repo: String, why: String },
    /// Offline, and the repository has never been fetched.
    #[error("{repo} is not in the cache {}; run without --offline to download it", folder.display())]
    NotCached { repo: String, folder: PathBuf },
    /// The bytes do not match the server's checksum.
    #[error(
        "{file}: the {name} is {found}, but the server announced {expected}; the download was removed"
    )]
    Checksum {
        file: String,
        name: &'static str,
        found: String,
        expected: String,
    },
    /// The server sent more bytes than the file has.
    #[error("{file}: received more than its {expected} bytes; the download was removed")]
    TooLong { file: String, expected: u64 },
    /// The disk does not have enough space.
    #[error(
        "{file} needs {needed} more bytes, but {} has {free}; set another folder with HF_HUB_CACHE",
        folder.display()
    )]
    Disk {
        file: String,
        needed: u64,
        free: u64,
        folder: PathBuf,
    },
    /// Reading or writing in the cache failed.
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// The files exceed a limit of the one who asked.
    #[error("{0}")]
    Limit(String),
    /// The pull was stopped. Bytes received so far are kept for the next one.
    #[error("interrupted; the partial download is kept and will be resumed")]
    Stopped,
}

impl PullError {
    /// Whether the server failed: it was not reached, refused, or answered or sent what it should not have.
    pub(crate) fn is_of_hub(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Refused { .. }
                | Self::Answer { .. }
                | Self::Checksum { .. }
                | Self::TooLong { .. }
        )
    }

    /// Whether a retry may help.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 425 | 429 | 500..),
            _ => false,
        }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, error }
    }
}
