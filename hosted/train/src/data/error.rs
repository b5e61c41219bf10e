//! What is wrong with rows, and where.

use core::fmt;
use std::io;
use std::path::PathBuf;

/// A row of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowPlace {
    /// The file.
    pub path: PathBuf,
    /// `line` of files that have one row per line, else `row`.
    pub unit: &'static str,
    /// From 1.
    pub number: u64,
}

impl fmt::Display for RowPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} {}", self.path.display(), self.unit, self.number)
    }
}

/// Why rows cannot be trained on. Every variant names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum DataError {
    /// Neither `dataset` nor `prompts` is set.
    #[error(
        "dataset is not set: name a file of rows (.jsonl, .json, .csv, .tsv) or a folder with train.jsonl"
    )]
    NoFiles,
    /// A file cannot be read.
    #[error("{path}: cannot read the rows: {error}", path = path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// The name says that the file has another format.
    #[error("{path}: not supported: rows are read from .jsonl, .json, .csv and .tsv files{hint}", path = path.display())]
    Format { path: PathBuf, hint: &'static str },
    /// A folder without files of rows.
    #[error("{path}: the folder has no train.jsonl, .json, .csv or .tsv", path = path.display())]
    Folder { path: PathBuf },
    /// Rows for evaluation are set in two ways.
    #[error("val_size and {path} are both rows for evaluation: use one of them", path = path.display())]
    TwoEvals { path: PathBuf },
    /// A file without rows.
    #[error("{path}: the file has no rows", path = path.display())]
    Empty { path: PathBuf },
    /// A line or file that is not JSON.
    #[error("{place}, column {column}: not JSON: {reason}")]
    Json {
        place: RowPlace,
        column: usize,
        reason: String,
    },
    /// A line that is not CSV.
    #[error("{place}: not CSV: {reason}")]
    Csv { place: RowPlace, reason: String },
    /// A row that is not what its form asks for.
    #[error("{place}: {reason}")]
    Row { place: RowPlace, reason: String },
    /// Rows of messages, and no template to write them with.
    #[error(
        "{place}: the model has no chat template: set chat_template (chatml, gemma, llama3, phi3, zephyr) or chat_template_path"
    )]
    NoTemplate { place: RowPlace },
    /// The chat template that is set cannot be used.
    #[error("{key}: {reason}")]
    Template { key: &'static str, reason: String },
    /// Rows without a label that are a fifth of all, or more.
    #[error(
        "{n_dropped} of {n_rows} rows have nothing to learn: {reasons}; the first is {place}:\n{example}"
    )]
    TooFew {
        n_dropped: usize,
        n_rows: usize,
        /// Each reason with its count.
        reasons: String,
        place: RowPlace,
        /// The beginning of that row, as the model would read it.
        example: String,
    },
    /// No row has a label within the maximum length.
    #[error(
        "max_length {max_length} is below the shortest prompt ({shortest} tokens): nothing is left to learn"
    )]
    TooShort { max_length: usize, shortest: usize },
}
