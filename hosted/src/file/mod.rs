//! Model files: opened, checked for what they are, and read in one of two ways.
//!
//! | way | peak memory | a file that shrinks while it is read |
//! |---|---|---|
//! | [`ReadFile`]: `pread` into the caller's memory | header only | an error |
//! | [`MappedFile`]: memory map | pages are given back as they are converted | an error or SIGBUS ([`report_shrunk_maps`]) |
//!
//! [`ModelFile`] is either, or a model that is part of the program. A `.slc` file
//! ([`sluice_core::slc`]) is read both ways too: mapped, its weights are used where they are, for
//! as long as the model is (so the file must not change meanwhile); read, they are copied once.
//!
//! A model in several GGUF files is opened by its first, and then reads as one file. So does a model whose experts
//! are in files of another program ([`ExpertLinks`]).
//!
//! Output files are [`OutputFile`]s: complete under their name, or absent. [`GgufWriter`] writes GGUF
//! into one; [`write_folder`] writes several that belong together. [`mistaken`] identifies other files that stand in a model's place. [`FolderKey`] authenticates what a
//! folder of caches holds.

mod bytes;
mod damage;
mod folder;
mod follow;
mod gguf;
mod hashes;
mod joined;
mod links;
mod mapped;
mod mistaken;
mod model;
mod output;
mod partial;
mod private;
mod read;
mod shrunk;
mod split;
mod stamp;
mod unpacked;

pub use bytes::LoadMode;
pub use damage::damaged_payload;
pub use folder::{FolderFile, write_folder};
pub use gguf::{GgufHeader, GgufWriter, MetaValue, TensorEntry};
pub use hashes::HashRecords;
pub use links::{ExpertLinks, LinkProblem};
pub use mapped::MappedFile;
pub use mistaken::mistaken;
pub use model::ModelFile;
pub use output::{OutputError, OutputFile};
pub use private::{
    FolderKey, PrivateFileError, PrivateFileProblem, SharedFolder, open_plain, open_private,
};
pub use read::ReadFile;
pub use shrunk::report_shrunk_maps;
pub use split::{
    COUNT_KEY, ID_KEY, INDEX_KEY, SPLIT_KEYS, SplitPart, SplitProblem, TENSORS_KEY, split_path,
};
pub use stamp::FileStamp;
pub(crate) use stamp::TICK;
pub use unpacked::GgufInSlc;

use sluice_core::gguf::{GgufError, GgufErrorKind};
use sluice_core::slc::SlcError;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Why a file cannot be used, with its path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum FileError {
    /// It does not exist, or may not be read.
    #[error("cannot open {path}: {error}")]
    Open { path: PathBuf, error: io::Error },
    /// A directory.
    #[error("{path} is a directory, not a model file{}", convert_hint(.path))]
    Directory { path: PathBuf },
    /// A pipe, socket or device: it has no length and cannot be read in parallel.
    #[error("{path} is not a regular file")]
    NotRegular { path: PathBuf },
    /// No bytes.
    #[error("{path} is empty")]
    Empty { path: PathBuf },
    /// The kernel refused the map.
    #[error("cannot map {path}: {error}")]
    Map { path: PathBuf, error: io::Error },
    /// Reading failed.
    #[error("cannot read {path}: {error}")]
    Read { path: PathBuf, error: io::Error },
    /// The headers of a `.slc` file are wrong.
    #[error("{name}: {error}")]
    Slc { name: String, error: Box<SlcError> },
    /// Not a model; `what` describes the file and what to do.
    #[error("{name}: {what}")]
    Mistaken { name: String, what: &'static str },
    /// The header is not one of a GGUF file.
    #[error("{name}: {error}")]
    Header { name: String, error: Box<GgufError> },
    /// Its weights are damaged.
    #[error("{name}: {what}")]
    Weights { name: String, what: String },
    /// The file does not belong to the split model that it is read for.
    #[error("{name}: {problem}")]
    Split { name: String, problem: SplitProblem },
    /// A part of a split model is absent.
    #[error("cannot open {path}: {error}; all {count} parts of the model must be in one folder")]
    Part {
        path: PathBuf,
        count: u64,
        error: io::Error,
    },
    /// Experts in other files cannot be read.
    #[error("{name}: {problem}")]
    Links { name: String, problem: LinkProblem },
    /// A file with experts of the model `name` does not exist, or may not be read.
    #[error("cannot open {path}: {error}; it holds experts of {name}")]
    Blob {
        path: PathBuf,
        name: String,
        error: io::Error,
    },
}

/// What to do with a folder of Hugging Face's.
fn convert_hint(path: &Path) -> &'static str {
    match path.join("config.json").is_file() {
        true => ": convert such a folder to GGUF with `sluice convert`",
        false => "",
    }
}

impl FileError {
    /// What is wrong with a file that begins with `head`.
    fn of_header(name: String, head: &[u8], error: GgufError) -> Self {
        let what = match error.kind() {
            GgufErrorKind::NotGguf { .. } => mistaken(head).or_else(|| safetensors(head)),
            _ => None,
        };
        match what {
            Some(what) => Self::Mistaken { name, what },
            None => Self::Header {
                name,
                error: Box::new(error),
            },
        }
    }
}

/// Whether a file begins as one of safetensors: a length, and a text in JSON.
fn safetensors(head: &[u8]) -> Option<&'static str> {
    let (len, text) = head.split_first_chunk()?;
    let is_one = text.starts_with(b"{\"") && u64::from_le_bytes(*len) < 1 << 32;
    is_one.then_some(
        "it is a safetensors file: convert its folder to GGUF with `sluice convert FOLDER`",
    )
}

/// Opens a file that can be a model: regular and not empty. Returns its length too.
fn open_regular(path: &Path) -> Result<(File, u64), FileError> {
    let path_buf = || path.to_path_buf();
    let open_error = |error| FileError::Open {
        path: path_buf(),
        error,
    };
    // Looked at before it is opened: opening a pipe would wait for its writer.
    let kind = fs::metadata(path).map_err(open_error)?.file_type();
    if kind.is_dir() {
        return Err(FileError::Directory { path: path_buf() });
    }
    if !kind.is_file() {
        return Err(FileError::NotRegular { path: path_buf() });
    }
    let file = File::open(path).map_err(open_error)?;
    let len_bytes = file.metadata().map_err(open_error)?.len();
    if len_bytes == 0 {
        return Err(FileError::Empty { path: path_buf() });
    }
    Ok((file, len_bytes))
}
