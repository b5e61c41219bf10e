//! Why an adapter cannot be read, converted or merged.
#![forbid(unsafe_code)]

use crate::convert::ConvertError;
use crate::convert::safetensors::Dtype;
use sluice::adapter::AdapterError;
use sluice::file::{FileError, OutputError};
use sluice_core::gguf::source::SourceError;
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::quantize::QuantizeError;
use std::io;
use std::path::PathBuf;

/// Why an adapter cannot be used, with the file and the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum LoraError {
    /// A file that is absent or not ours to read.
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// Something that is no adapter, and what it is instead.
    #[error("{} is no adapter: {what}", path.display())]
    NotAnAdapter { path: PathBuf, what: String },
    /// A key of a file that changes what an adapter computes, and is not supported.
    #[error("{}: {key} {what}", path.display())]
    Key {
        path: PathBuf,
        key: String,
        what: String,
    },
    /// A tensor that has no place, or not this one.
    #[error("{}: {tensor} {what}", path.display())]
    Tensor {
        path: PathBuf,
        tensor: String,
        what: String,
    },
    /// A type that is no plain float.
    #[error("{}: {tensor} is stored as {dtype}; adapters have F32, F16 or BF16", path.display())]
    Dtype {
        path: PathBuf,
        tensor: String,
        dtype: Dtype,
    },
    /// Matrices for a matrix of another shape: (rows, columns).
    #[error(
        "{}: {tensor} is made for {} x {}, the model has {} x {}",
        path.display(), found[0], found[1], expected[0], expected[1]
    )]
    Shape {
        path: PathBuf,
        tensor: String,
        found: [u64; 2],
        expected: [u64; 2],
    },
    /// An adapter for models of another family.
    #[error(
        "{}: the adapter is for models of architecture {found:?}, the model's is {expected:?}",
        path.display()
    )]
    Family {
        path: PathBuf,
        found: String,
        expected: String,
    },
    /// Nothing says how large the model is that the adapter is for.
    #[error("{}: {what}", path.display())]
    NoBase { path: PathBuf, what: String },
    /// An adapter that does not go with the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// Reading numbers failed.
    #[error("{}: reading {tensor}: {error}", path.display())]
    Data {
        path: PathBuf,
        tensor: String,
        error: SourceError,
    },
    /// Numbers that a type cannot hold.
    #[error("{tensor}: {error}")]
    Numbers {
        tensor: String,
        error: QuantizeError,
    },
    /// A type that nothing here can write.
    #[error(
        "{tensor}, of rows of {row_len}, cannot be written as {ty}: --outtype names another type"
    )]
    CannotEncode {
        tensor: String,
        ty: GgmlType,
        row_len: u64,
    },
    /// What is asked for cannot be written in that format.
    #[error("{tensor} {what}")]
    CannotSay { tensor: String, what: String },
    /// A configuration or weights of Hugging Face's that cannot be read.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// A file that cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The result cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl LoraError {
    pub(super) fn tensor(
        path: impl Into<PathBuf>,
        tensor: impl Into<String>,
        what: impl Into<String>,
    ) -> Self {
        Self::Tensor {
            path: path.into(),
            tensor: tensor.into(),
            what: what.into(),
        }
    }

    pub(super) fn key(
        path: impl Into<PathBuf>,
        key: impl Into<String>,
        what: impl Into<String>,
    ) -> Self {
        Self::Key {
            path: path.into(),
            key: key.into(),
            what: what.into(),
        }
    }
}
