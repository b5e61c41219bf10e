//! Errors of data directories.

use crate::uth::UthError;
use sluice::file::OutputError;
use std::io;
use std::path::PathBuf;

/// Why a directory was not imported, with the file or key at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ImportError {
    /// A file is missing or cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// A file is not valid JSON.
    #[error("{}: {error}", path.display())]
    Json {
        path: PathBuf,
        error: serde_json::Error,
    },
    /// A key is missing, or has an unexpected type or range.
    #[error("{}: {key} is missing or is not {expected}", path.display())]
    Key {
        path: PathBuf,
        key: String,
        expected: &'static str,
    },
    /// Directories of one model contradict each other.
    #[error("{}: differs from the first directory's metadata.json", path.display())]
    OtherFacts { path: PathBuf },
    /// A file's length does not fit its shape.
    #[error("{}: {found} bytes, expected {expected}", path.display())]
    Length {
        path: PathBuf,
        found: u64,
        expected: u64,
    },
    /// A name in a manifest is not a plain file name.
    #[error("{name:?} is not a plain file name")]
    FileName { name: String },
    /// A file does not match its manifest's checksum.
    #[error("{}: damaged: its checksum is {found}, expected {expected}", path.display())]
    Checksum {
        path: PathBuf,
        found: String,
        expected: String,
    },
    /// An expert is not in any of the expected files.
    #[error("expert {id} (layer {layer}, {local}) is missing: searched in {looked_for}")]
    MissingExpert {
        id: u64,
        layer: u32,
        local: u32,
        looked_for: String,
    },
    /// An expert's header is not valid.
    #[error("expert {id}: {error}")]
    Expert { id: u64, error: UthError },
    /// An expert's header contradicts the metadata.
    #[error("expert {id}: {what} is {found}, expected {expected}")]
    Mismatch {
        id: u64,
        what: &'static str,
        found: String,
        expected: String,
    },
    /// Experts of a layer differ in type, but a GGUF tensor has a single type.
    #[error(
        "layer {layer}: experts have different types of {projection}; use --type f32 to unify them"
    )]
    TypesDiffer {
        layer: u32,
        projection: &'static str,
    },
    /// Int8 weights whose scale is not an f16.
    #[error(
        "expert {id}: the int8 scale {scale} is not representable in f16, so Q8_0 would round; use --type"
    )]
    Int8Scale { id: u64, scale: f32 },
    /// A type that GGUF does not support.
    #[error("{what} of type {dtype} cannot be stored unchanged in GGUF")]
    Type { what: String, dtype: &'static str },
    /// Weights whose bytes differ in a GGUF file.
    #[error(
        "expert {id}: weights of type {dtype} have a different layout in GGUF, so they cannot be left where they \
         are; import without --leave-experts"
    )]
    Left { id: u64, dtype: &'static str },
    /// A name that is not UTF-8, which GGUF strings have to be.
    #[error("{} is not UTF-8, which names in GGUF files must be", path.display())]
    Utf8 { path: PathBuf },
    /// Some of the tensors outside of the experts are missing.
    #[error("{name} is missing from the directory")]
    MissingDense { name: String },
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The stop flag was set.
    #[error("interrupted")]
    Stopped,
}
