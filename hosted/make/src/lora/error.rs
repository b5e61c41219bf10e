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

/// Why an adapter cannot be used, with the file and the tensor at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum LoraError {
    /// A file that does not exist or cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// A path that does not hold an adapter, and what it holds instead.
    #[error("{} is not an adapter: {what}", path.display())]
    NotAnAdapter { path: PathBuf, what: String },
    /// An unsupported key that changes what an adapter computes.
    #[error("{}: {key} {what}", path.display())]
    Key {
        path: PathBuf,
        key: String,
        what: String,
    },
    /// A tensor that is not expected, or not valid.
    #[error("{}: {tensor} {what}", path.display())]
    Tensor {
        path: PathBuf,
        tensor: String,
        what: String,
    },
    /// A tensor type that is not a plain float.
    #[error("{}: {tensor} is stored as {dtype}; adapters have F32, F16 or BF16", path.display())]
    Dtype {
        path: PathBuf,
        tensor: String,
        dtype: Dtype,
    },
    /// The adapter's matrices do not fit the model's matrix: (rows, columns).
    #[error(
        "{}: {tensor} was made for {} x {}, but the model has {} x {}",
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
        "{}: the adapter is for models of architecture {found:?}, but the model's is {expected:?}",
        path.display()
    )]
    Family {
        path: PathBuf,
        found: String,
        expected: String,
    },
    /// The model's sizes are unknown.
    #[error("{}: {what}", path.display())]
    NoBase { path: PathBuf, what: String },
    /// An adapter that does not fit the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// Reading numbers failed.
    #[error("{}: cannot read {tensor}: {error}", path.display())]
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
    /// A type that cannot be written.
    #[error(
        "{tensor}, with rows of {row_len}, cannot be written as {ty}: choose another type with --outtype"
    )]
    CannotEncode {
        tensor: String,
        ty: GgmlType,
        row_len: u64,
    },
    /// The output format cannot express the adapter.
    #[error("{tensor} {what}")]
    CannotSay { tensor: String, what: String },
    /// A Hugging Face configuration or weights that cannot be read.
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
