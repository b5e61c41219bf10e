//! Why an operation on the state of sequences did not happen.

use super::PAGE_TOKENS;
use super::snapshot::SnapshotError;
use core::fmt;

/// Why an operation on the state of sequences did not happen. Nothing has changed then.
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
        /// The end asked for.
        end: usize,
        /// Tokens in the sequence.
        len: usize,
    },
    /// The state at that length is not kept: recurrent states are kept a few tokens behind the end and at
    /// checkpoints, windowed keys as far back as the window reaches.
    CannotRewind {
        /// The length asked for.
        len: usize,
        /// The greatest length below it that can be reached.
        nearest: usize,
    },
    /// Tokens cannot be taken out of the midst of a sequence: later recurrent states depend on them, or
    /// their keys have been given back.
    CannotRemove,
    /// All checkpoints that the state has room for are in use.
    NoCheckpoint {
        /// Checkpoints that there is room for.
        n_checkpoints: usize,
    },
    /// No checkpoint has this name, or it stands at another length.
    UnknownCheckpoint {
        /// The name.
        name: u32,
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
            Self::UnknownCheckpoint { name } => write!(f, "there is no checkpoint {name} there"),
            Self::NoPage { index } => write!(f, "page {index} is not full, or was given back"),
            Self::Snapshot(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for StateError {}
