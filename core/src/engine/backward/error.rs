//! Why a backward pass fails.

use crate::memory::MemoryError;
use crate::team::Stop;
use core::fmt;

/// Why a backward pass cannot be made, or was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackwardError {
    /// The model has a part without a backward pass.
    Unsupported {
        /// The layer that has it.
        layer: usize,
        /// The part.
        part: &'static str,
    },
    /// The caller's memory does not match the plan.
    Memory(MemoryError),
    /// A limit is out of range.
    Limit {
        /// The field of [`super::BackwardLimits`].
        name: &'static str,
        /// Its value.
        value: usize,
    },
    /// There are more tokens than the limits allow, or a text is longer.
    TooLong {
        /// Tokens in all, or of the text.
        n: usize,
        /// The limit.
        max: usize,
    },
    /// Texts have no tokens, or tokens, labels and texts do not go together.
    Lengths,
    /// A token or a label is not in the vocabulary.
    UnknownToken {
        /// Its number in the batch.
        index: usize,
        /// The token.
        token: u32,
    },
    /// A pair does not fit its matrix, is out of order, has too large a rank, or lies outside of the gradients.
    Pair {
        /// Its index.
        index: usize,
    },
    /// It was stopped.
    Stopped(Stop),
    /// Not every rank has run.
    NotRun,
}

impl fmt::Display for BackwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported { layer, part } => {
                write!(
                    f,
                    "layer {layer} has {part}, which training does not support"
                )
            }
            Self::Memory(error) => error.fmt(f),
            Self::Limit { name, value } => write!(f, "{name} = {value} is out of range"),
            Self::TooLong { n, max } => write!(f, "{n} tokens, at most {max}"),
            Self::Lengths => f.write_str("tokens, labels and lengths of texts do not go together"),
            Self::UnknownToken { index, token } => {
                write!(
                    f,
                    "token {index} of the batch is {token}, which the vocabulary does not have"
                )
            }
            Self::Pair { index } => write!(
                f,
                "pair {index} of the adapter does not fit its matrix, its place or the limits"
            ),
            Self::Stopped(stop) => stop.fmt(f),
            Self::NotRun => f.write_str("not every rank has run"),
        }
    }
}

impl core::error::Error for BackwardError {}

impl From<MemoryError> for BackwardError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}
