//! Why an operation on the state of sequences failed.

use super::PAGE_TOKENS;
use core::fmt;

/// Version of the layout of saved sequences.
pub(super) const SNAPSHOT_VERSION: u32 = 5;

/// Why an operation on the state of sequences failed. The state is unchanged then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateError {
    /// No sequence has this number.
    UnknownSequence {
        /// The number.
        sequence: u32,
        /// Sequences are numbered below this.
        n_seq: usize,
    },
    /// There are not enough free pages.
    Full {
        /// Pages needed.
        needed: usize,
        /// Pages free.
        free: usize,
    },
    /// The target of a fork, restore or attachment holds tokens already.
    NotEmpty {
        /// The sequence.
        sequence: u32,
    },
    /// A range or length beyond the sequence's end.
    OutOfRange {
        /// The requested end.
        end: usize,
        /// Tokens in the sequence.
        len: usize,
    },
    /// The state at that length is not kept: recurrent states are kept a few tokens before the end and at
    /// checkpoints, windowed keys as far back as the window reaches.
    CannotRewind {
        /// The requested length.
        len: usize,
        /// The greatest length below it that can be reached.
        nearest: usize,
    },
    /// Tokens cannot be removed from the middle of a sequence: later recurrent states depend on them, their keys
    /// have been given back, or keys cannot be rotated back ([`crate::model::ModelConfig::can_remove`]).
    CannotRemove,
    /// A checkpoint has this name already.
    NameTaken {
        /// The name.
        name: u32,
    },
    /// A recurrent model continues from a state at the end of the pages, which is missing: no name was given,
    /// or the checkpoint of that name is not there.
    NoState {
        /// Tokens of the pages.
        len: usize,
        /// The name, where one was given.
        name: Option<u32>,
    },
    /// A page of another state, or bytes of another model.
    ForeignPage,
    /// All checkpoints that the state has room for are in use.
    NoCheckpoint {
        /// Checkpoints that there is room for.
        n_checkpoints: usize,
    },
    /// A page is not full, or given back.
    NoPage {
        /// The page of its sequence.
        index: usize,
    },
    /// Saved bytes cannot be restored here.
    Snapshot(SnapshotError),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownSequence { sequence, n_seq } => {
                write!(
                    f,
                    "sequence {sequence} does not exist; the cache has {n_seq}"
                )
            }
            Self::Full { needed, free } => write!(
                f,
                "the KV cache is full: {needed} pages of {PAGE_TOKENS} tokens needed, {free} free"
            ),
            Self::NotEmpty { sequence } => write!(f, "sequence {sequence} is not empty"),
            Self::OutOfRange { end, len } => {
                write!(f, "position {end} is beyond the sequence's {len} tokens")
            }
            Self::CannotRewind { len, nearest } => write!(
                f,
                "the state after {len} tokens is not kept; the nearest before it is that after {nearest}"
            ),
            Self::CannotRemove => {
                f.write_str("this model's state does not allow tokens to be removed before the end")
            }
            Self::NoCheckpoint { n_checkpoints } => {
                write!(f, "all {n_checkpoints} checkpoints are in use")
            }
            Self::NameTaken { name } => write!(f, "a checkpoint {name} exists already"),
            Self::NoState {
                len,
                name: Some(name),
            } => write!(f, "no checkpoint {name} stands behind {len} tokens"),
            Self::NoState { len, name: None } => write!(
                f,
                "{len} tokens of a recurrent model need the state behind them, and none was named"
            ),
            Self::ForeignPage => f.write_str("the page is not one of this state"),
            Self::NoPage { index } => write!(f, "page {index} is not full, or was given back"),
            Self::Snapshot(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for StateError {}

/// Why saved bytes cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Not a saved sequence.
    NotASnapshot,
    /// Written by another version.
    Version(u32),
    /// Saved from another model.
    OtherModel,
    /// Saved from a cache of another element type or shape.
    OtherShape,
    /// Shorter or longer than its header says.
    Length {
        /// Bytes that the header implies.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The bytes were damaged.
    Checksum,
    /// The memory given to save into is too small.
    TooSmall {
        /// Bytes needed.
        needed: usize,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASnapshot => f.write_str("not a saved KV sequence"),
            Self::Version(version) => {
                write!(
                    f,
                    "saved KV sequence of version {version}, expected {SNAPSHOT_VERSION}"
                )
            }
            Self::OtherModel => f.write_str("the KV sequence was saved from another model"),
            Self::OtherShape => {
                f.write_str("the KV sequence was saved from a cache of another type or shape")
            }
            Self::Length { expected, found } => {
                write!(f, "a saved KV sequence of {expected} bytes has {found}")
            }
            Self::Checksum => f.write_str("the saved KV sequence is damaged (checksum)"),
            Self::TooSmall { needed } => write!(f, "saving needs {needed} bytes"),
        }
    }
}

impl core::error::Error for SnapshotError {}
