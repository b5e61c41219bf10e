//! Why an adapter cannot be converted or merged.

use sluice::adapter::AdapterLoadError;
use sluice::file::{FileError, OutputError};
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::quantize::QuantizeError;

/// Why an adapter cannot be used, with the file and the tensor at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum LoraError {
    /// An adapter that cannot be read, or does not fit the model.
    #[error(transparent)]
    Adapter(#[from] AdapterLoadError),
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
    /// A file that cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The result cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}
