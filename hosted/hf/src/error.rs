//! Why a folder of Hugging Face's cannot be used.

use crate::safetensors::HeaderError;
use sluice::adapter::AdapterLoadError;
use sluice::file::FileError;
use sluice_core::gguf::source::SourceError;
use std::io;
use std::path::PathBuf;

/// Why a folder of Hugging Face's cannot be used, with the file and the key or the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum HfError {
    /// A file whose contents do not match its name.
    #[error("{}: {what}", path.display())]
    Mistaken { path: PathBuf, what: &'static str },
    /// A file that does not exist or cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// A file above the size limit for its kind.
    #[error("{} has {len_bytes} bytes, more than the maximum of {bytes_max}", path.display())]
    TooLarge {
        path: PathBuf,
        len_bytes: u64,
        bytes_max: u64,
    },
    /// A file that is not valid JSON.
    #[error("{}: {error}", path.display())]
    Json {
        path: PathBuf,
        error: serde_json::Error,
    },
    /// A safetensors file with a malformed header.
    #[error("{}: {error}", path.display())]
    Header { path: PathBuf, error: HeaderError },
    /// A configuration value that is missing or not valid.
    #[error("{}: {key} {what}", path.display())]
    Config {
        path: PathBuf,
        key: String,
        what: String,
    },
    /// An unknown architecture.
    #[error("{}: architecture {name:?} is not supported; supported are {known}", path.display())]
    UnknownArchitecture {
        path: PathBuf,
        name: String,
        known: String,
    },
    /// Reading a tensor failed.
    #[error("{}: tensor {tensor}: {error}", path.display())]
    Data {
        path: PathBuf,
        tensor: String,
        error: SourceError,
    },
    /// A file that cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
}

impl From<HfError> for AdapterLoadError {
    fn from(error: HfError) -> Self {
        Self::Folder(Box::new(error))
    }
}
