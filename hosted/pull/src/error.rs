//! Why a file did not come.

use std::io;
use std::path::PathBuf;

/// Why a pull failed. Every message names what and where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described by the messages")]
pub enum PullError {
    /// The name of a repository or of a revision is none.
    #[error("{text:?} is no {what}: expected {expected}")]
    Name {
        what: &'static str,
        text: String,
        expected: &'static str,
    },
    /// A setting of the environment cannot be used.
    #[error("{name}: {why}")]
    Setting { name: &'static str, why: String },
    /// No connection, or it broke.
    #[error("cannot reach {host}: {why}")]
    Unreachable { host: String, why: String },
    /// The server does not give it to us.
    #[error("{url}: {why}")]
    Refused {
        url: String,
        status: u16,
        why: String,
    },
    /// The server's answer is none that we know.
    #[error("{url}: the answer is not as expected: {why}")]
    Answer { url: String, why: String },
    /// The repository has no file of what was asked for.
    #[error("{repo}: {why}")]
    NotThere { repo: String, why: String },
    /// Offline, and it was never fetched.
    #[error("{repo} is not in the cache {}; without --offline it is fetched", folder.display())]
    NotCached { repo: String, folder: PathBuf },
    /// The bytes are others than the server promised.
    #[error("{file}: SHA-256 is {found}, the server says {expected}; what came was removed")]
    Sha256 {
        file: String,
        found: String,
        expected: String,
    },
    /// More bytes came than the file has.
    #[error("{file}: more than its {expected} bytes came; what came was removed")]
    TooLong { file: String, expected: u64 },
    /// The disk has no room for it.
    #[error(
        "{file} needs {needed} more bytes, and {} has {free}; HF_HUB_CACHE names another folder",
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
    /// It was told to stop. What has come stays for the next time.
    #[error("stopped; what has come is kept, and the next time goes on from there")]
    Stopped,
}

impl PullError {
    /// Whether the server was not there to be asked.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Whether asking again may help.
    pub(crate) fn is_passing(&self) -> bool {
        let is_busy = matches!(
            self,
            Self::Refused {
                status: 408 | 425 | 429,
                ..
            }
        );
        is_busy || self.is_unreachable()
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::Io { path, error }
    }
}
