//! Why an adapter cannot be loaded.

use crate::file::FileError;
use crate::host::memory::OutOfMemory;
use core::error::Error;
use core::fmt;
use sluice_core::engine;
use sluice_core::gguf::source::SourceError;
use std::io;
use std::path::Path;

/// Why an adapter was not loaded.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum AdapterLoadError {
    /// A file that does not exist or cannot be read.
    Read { path: String, error: io::Error },
    /// A path that does not hold an adapter, and what it holds instead.
    NotAnAdapter { path: String, what: String },
    /// An unsupported key that changes what an adapter computes.
    Key {
        path: String,
        key: String,
        what: String,
    },
    /// A tensor that is not expected, or not valid.
    Tensor {
        path: String,
        tensor: String,
        what: String,
    },
    /// Reading numbers failed.
    Data {
        path: String,
        tensor: String,
        error: SourceError,
    },
    /// A file that cannot be opened.
    File(FileError),
    /// A folder whose reader is another crate's, and that reader's error.
    Folder(Box<dyn Error + Send + Sync>),
    /// The sizes of the model that it is for are unknown.
    NoBase { path: String, what: String },
    /// It is for models of another family.
    Family {
        path: String,
        expected: String,
        found: String,
    },
    /// The model has no such matrix, or none that can be adapted.
    NoMatrix { path: String, tensor: String },
    /// The matrices of a pair do not have the shape of what they adapt: (rows, columns) as they are and as they
    /// should be.
    Shape {
        path: String,
        tensor: String,
        expected: [u64; 2],
        found: [u64; 2],
    },
    /// A pair has no rank, or its matrices have different ones.
    Rank { path: String, tensor: String },
    /// A number is not finite, or too large for the type it is packed in.
    Number {
        path: String,
        tensor: String,
        ty: &'static str,
    },
    /// Two pairs adapt the same matrix.
    Twice { path: String, tensor: String },
    /// It adapts nothing.
    Empty { path: String },
    /// Not enough memory for the adapter.
    Memory { path: String, error: OutOfMemory },
    /// The engine does not accept it.
    Engine {
        path: String,
        error: engine::AdapterError,
    },
}

impl AdapterLoadError {
    /// [`Self::NotAnAdapter`].
    pub fn not_an_adapter(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Self::NotAnAdapter {
            path: shown(path),
            what: what.into(),
        }
    }

    /// [`Self::Key`].
    pub fn key(path: impl AsRef<Path>, key: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Key {
            path: shown(path),
            key: key.into(),
            what: what.into(),
        }
    }

    /// [`Self::Tensor`].
    pub fn tensor(
        path: impl AsRef<Path>,
        tensor: impl Into<String>,
        what: impl Into<String>,
    ) -> Self {
        Self::Tensor {
            path: shown(path),
            tensor: tensor.into(),
            what: what.into(),
        }
    }

    /// [`Self::Data`].
    pub fn data(path: impl AsRef<Path>, tensor: impl Into<String>, error: SourceError) -> Self {
        Self::Data {
            path: shown(path),
            tensor: tensor.into(),
            error,
        }
    }
}

impl AdapterLoadError {
    /// Whether the file could not be read, so that a later attempt may succeed without a change of it.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        let (Self::Read { error, .. }
        | Self::File(
            FileError::Open { error, .. }
            | FileError::Read { error, .. }
            | FileError::Map { error, .. },
        )) = self
        else {
            return false;
        };
        !matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        )
    }
}

fn shown(path: impl AsRef<Path>) -> String {
    path.as_ref().display().to_string()
}

impl From<FileError> for AdapterLoadError {
    fn from(error: FileError) -> Self {
        Self::File(error)
    }
}

impl fmt::Display for AdapterLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, error } => write!(f, "cannot read {path}: {error}"),
            Self::NotAnAdapter { path, what } => write!(f, "{path} is not an adapter: {what}"),
            Self::Key { path, key, what } => write!(f, "{path}: {key} {what}"),
            Self::Tensor { path, tensor, what } => write!(f, "{path}: {tensor} {what}"),
            Self::Data {
                path,
                tensor,
                error,
            } => write!(f, "{path}: cannot read {tensor}: {error}"),
            Self::File(error) => error.fmt(f),
            Self::Folder(error) => error.fmt(f),
            Self::NoBase { path, what } => write!(f, "{path}: {what}"),
            Self::Family {
                path,
                expected,
                found,
            } => write!(
                f,
                "{path}: the adapter is for models of architecture {found:?}, but the model's is {expected:?}"
            ),
            Self::NoMatrix { path, tensor } => {
                write!(f, "{path}: the model has no matrix {tensor} to adapt")
            }
            Self::Shape {
                path,
                tensor,
                expected,
                found,
            } => write!(
                f,
                "{path}: {tensor} was made for {} x {}, but the model has {} x {}",
                found[0], found[1], expected[0], expected[1]
            ),
            Self::Rank { path, tensor } => {
                write!(f, "{path}: the matrices for {tensor} have different ranks")
            }
            Self::Number { path, tensor, ty } => write!(
                f,
                "{path}: the matrices for {tensor} contain a number that {ty} cannot represent"
            ),
            Self::Twice { path, tensor } => {
                write!(f, "{path}: {tensor} is adapted twice")
            }
            Self::Empty { path } => write!(f, "{path}: the adapter has no matrices"),
            Self::Memory { path, error } => {
                write!(f, "{path}: not enough memory for the adapter: {error}")
            }
            Self::Engine { path, error } => write!(f, "{path}: {error}"),
        }
    }
}

impl Error for AdapterLoadError {}
