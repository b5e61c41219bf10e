//! What is wrong with a trace, and where.

use super::LINE_BYTES_MAX;
use core::error::Error;
use core::fmt;
use sluice::experts::trace::{EXPERTS_MAX, IDS_MAX, LAYERS_MAX};
use std::io;

/// Why a trace was not read.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum TraceReadError {
    /// The file cannot be opened.
    Open { file: String, error: io::Error },
    /// A directory has the name.
    Directory { file: String },
    /// Reading failed.
    Read { file: String, error: io::Error },
    /// A line is not part of a trace.
    Line {
        file: String,
        line: u64,
        error: LineError,
    },
    /// It holds no steps.
    Empty { file: String },
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum LineError {
    /// It is longer than a line can be.
    TooLong,
    /// It is not JSON.
    Json { column: usize, error: String },
    /// It is JSON, and not an object.
    NotAnObject,
    /// A field is missing.
    Absent { field: &'static str },
    /// A field is not a whole number.
    NotANumber { field: &'static str },
    /// No model has as many layers.
    LayerTooLarge,
    /// A field is not a list.
    NotAList { field: &'static str },
    /// A list is longer than the number of experts in a layer.
    ListTooLong { field: &'static str },
    /// A list of experts holds something that is not an id.
    NotAnId { field: &'static str },
    /// An expert is listed more than once.
    Twice { field: &'static str, id: u32 },
    /// `cache_hit` holds something other than true and false.
    NotHits,
    /// `cache_hit` is not as long as `experts`.
    HitsOfOthers { n_hits: usize, n_experts: usize },
    /// An id does not belong to this line's layer, which has `n_expert` experts.
    OfAnotherLayer {
        field: &'static str,
        id: u32,
        n_expert: u32,
    },
}

impl fmt::Display for TraceReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { file, error } => write!(f, "cannot open trace {file}: {error}"),
            Self::Directory { file } => write!(f, "trace {file} is a directory"),
            Self::Read { file, error } => write!(f, "cannot read trace {file}: {error}"),
            Self::Line { file, line, error } => write!(f, "trace {file}, line {line}: {error}"),
            Self::Empty { file } => write!(f, "trace {file} is empty"),
        }
    }
}

impl Error for TraceReadError {}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "the line exceeds {} KiB", LINE_BYTES_MAX >> 10),
            Self::Json { column, error } => {
                // serde_json counts lines within what it was given, which is always the first.
                let error = error.split(" at line ").next().unwrap_or_default();
                write!(f, "not JSON: {error}, column {column}")
            }
            Self::NotAnObject => f.write_str("expected a JSON object"),
            Self::Absent { field } => write!(f, "{field:?} is missing"),
            Self::NotANumber { field } => write!(f, "{field:?}: expected an integer"),
            Self::LayerTooLarge => write!(f, "\"layer\": a model has at most {LAYERS_MAX} layers"),
            Self::NotAList { field } => write!(f, "{field:?}: expected a list"),
            Self::ListTooLong { field } => write!(
                f,
                "{field:?}: the list has more than the {EXPERTS_MAX} experts that a layer can have"
            ),
            Self::NotAnId { field } => {
                write!(f, "{field:?}: expert ids are integers below {IDS_MAX}")
            }
            Self::Twice { field, id } => write!(f, "{field:?}: {id} is listed twice"),
            Self::NotHits => f.write_str("\"cache_hit\": expected true and false"),
            Self::HitsOfOthers { n_hits, n_experts } => write!(
                f,
                "\"cache_hit\" has {n_hits} values, but \"experts\" has {n_experts}"
            ),
            Self::OfAnotherLayer {
                field,
                id,
                n_expert,
            } => write!(
                f,
                "{field:?}: {id} is out of range: a layer has {n_expert} experts"
            ),
        }
    }
}

impl Error for LineError {}
