//! Why a folder cannot be converted.

use super::sentencepiece::PiecesError;
use sluice::file::{FileError, OutputError};
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::quantize::QuantizeError;
use sluice_hf::HfError;
use sluice_hf::safetensors::Dtype;
use std::path::PathBuf;

/// Why a folder cannot be converted, with the file and the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ConvertError {
    /// The path of the model's folder is a file, or does not exist.
    #[error("{} is not a folder; a Hugging Face model is a folder with config.json", path.display())]
    NotAFolder { path: PathBuf },
    /// The folder holds an adapter, not a model.
    #[error(
        "{} has adapter_config.json but no config.json: it is a LoRA adapter, not a model; convert it with `sluice \
         lora convert`, or merge it into its model with `sluice lora merge`",
        path.display()
    )]
    Adapter { path: PathBuf },
    /// The folder has no safetensors files.
    #[error("{}: no model.safetensors and no model-….safetensors{hint}", path.display())]
    NoWeights { path: PathBuf, hint: &'static str },
    /// The index and the files do not match.
    #[error("{}: {what}", path.display())]
    Index { path: PathBuf, what: String },
    /// A required tensor that the files do not have.
    #[error("{}: tensor {tensor} {expected:?} is missing", path.display())]
    MissingTensor {
        path: PathBuf,
        tensor: String,
        expected: Vec<u64>,
    },
    /// A tensor that the architecture does not use: dropping it would change the model.
    #[error("{}: tensor {tensor} does not belong to the {architecture} architecture", path.display())]
    ExtraTensor {
        path: PathBuf,
        tensor: String,
        architecture: &'static str,
    },
    /// A tensor whose shape does not match config.json.
    #[error("{}: tensor {tensor} has shape {found:?}, but config.json implies {expected:?}", path.display())]
    WrongShape {
        path: PathBuf,
        tensor: String,
        found: Vec<u64>,
        expected: Vec<u64>,
    },
    /// A tensor type that is not a plain float.
    #[error("{}: tensor {tensor} is stored as {dtype}; only F32, F16, BF16, F8_E4M3 with its scales, and U8 as MXFP4 \
         blocks can be converted", path.display())]
    UnsupportedDtype {
        path: PathBuf,
        tensor: String,
        dtype: Dtype,
    },
    /// A type that cannot be written.
    #[error("tensor {tensor}: rows of {row_len} cannot be written as {ty}")]
    CannotEncode {
        tensor: String,
        row_len: u64,
        ty: GgmlType,
    },
    /// The vocabulary cannot be used.
    #[error("{}: {what}", path.display())]
    Tokenizer { path: PathBuf, what: String },
    /// Unknown pre-tokenizer rules.
    #[error("{}: unknown pre-tokenizer ({rules}); {names}; set the one to write with --pre NAME", path.display())]
    UnknownPre {
        path: PathBuf,
        rules: String,
        names: String,
    },
    /// A malformed tokenizer.model.
    #[error("{}: {error}", path.display())]
    Pieces { path: PathBuf, error: PiecesError },
    /// A file that the engine would refuse to open.
    #[error("{}: the file would not open: {reason}", path.display())]
    WouldNotOpen { path: PathBuf, reason: String },
    /// Numbers that the type cannot hold.
    #[error("tensor {tensor}, from row {row} on: {error}")]
    Numbers {
        tensor: String,
        row: u64,
        error: QuantizeError,
    },
    /// A file of the folder that cannot be used.
    #[error(transparent)]
    Folder(#[from] HfError),
    /// A file that cannot be used as a source of weights.
    #[error(transparent)]
    File(#[from] FileError),
    /// The result cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}
