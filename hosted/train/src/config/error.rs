//! What is wrong with a configuration, and where.

use core::fmt;
use std::io;
use std::path::PathBuf;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigPlace {
    /// A configuration file, and the line if it is known.
    File {
        /// The file's path.
        path: PathBuf,
        /// From 1; JSON files have none.
        line: Option<usize>,
    },
    /// A flag of the command line, whose name begins with two dashes.
    Flag,
    /// The key's default.
    Default,
}

/// Why a configuration cannot be used. Every variant names the key, or the place in the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: cannot read the configuration: {error}", path = path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    /// The file is neither YAML nor JSON, or has something that is not read.
    #[error("{place}{reason}")]
    Syntax { place: ConfigPlace, reason: String },
    /// A flag without a value, or an argument that is not a flag.
    #[error("{argument}: {reason}")]
    Argument { argument: String, reason: String },
    /// No key has this name.
    #[error("{place}unknown key {key}{hint}")]
    Unknown {
        place: ConfigPlace,
        key: String,
        /// The nearest name, as a question; may be empty.
        hint: String,
    },
    /// Two names of one key are in the same file.
    #[error("{place}{name} and {other} are two names of the same key: use one of them")]
    Twice {
        place: ConfigPlace,
        name: String,
        other: String,
    },
    /// A value of a wrong type, or out of range.
    #[error("{place}{key}: expected {expected}, found {found}")]
    Value {
        place: ConfigPlace,
        key: String,
        expected: String,
        found: String,
    },
    /// A key, or the value of one, that is known but not supported.
    #[error("{place}{key} is not supported: {reason}")]
    NotSupported {
        place: ConfigPlace,
        key: String,
        reason: String,
    },
    /// Two keys contradict each other.
    #[error("{0}")]
    Conflict(String),
    /// A required key is not set.
    #[error("{key} is not set: {what}")]
    Missing {
        key: &'static str,
        what: &'static str,
    },
}

impl fmt::Display for ConfigPlace {
    /// The place and a colon, or nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File {
                path,
                line: Some(line),
            } => write!(f, "{}, line {line}: ", path.display()),
            Self::File { path, line: None } => write!(f, "{}: ", path.display()),
            Self::Flag | Self::Default => Ok(()),
        }
    }
}
