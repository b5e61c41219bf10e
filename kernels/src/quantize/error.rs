//! What [`super::quantize_rows`] refuses.

use crate::GgmlType;
use core::fmt;

/// Why rows were not quantised. Indices count from the start of the slice they speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are what the sentences name")]
pub enum QuantizeError {
    /// Quantizing to this type is not supported.
    NoQuantizer { ty: GgmlType },
    /// A row is empty or not a whole number of blocks.
    RowNotWholeBlocks { ty: GgmlType, n_per_row: usize },
    /// The source is not a whole number of rows.
    SourceNotWholeRows { len: usize, n_per_row: usize },
    /// There is not one importance per column.
    ImportanceLength { len: usize, n_per_row: usize },
    /// The output has another length than the blocks.
    OutLength { len_bytes: usize, expected: usize },
    /// `source[index]` is infinite or not a number.
    ValueNotFinite { index: usize },
    /// `source[index]` is above [`super::max_abs`] of the type.
    ValueTooLarge { ty: GgmlType, index: usize },
    /// `importance[index]` is negative, infinite or not a number.
    ImportanceNotValid { index: usize },
}

impl fmt::Display for QuantizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoQuantizer { ty } => write!(f, "quantizing to type {ty} is not supported"),
            Self::RowNotWholeBlocks { ty, n_per_row } => write!(
                f,
                "rows of {n_per_row} are not whole blocks of {ty}, which have {}",
                ty.block_len()
            ),
            Self::SourceNotWholeRows { len, n_per_row } => {
                write!(f, "{len} values are not whole rows of {n_per_row}")
            }
            Self::ImportanceLength { len, n_per_row } => {
                write!(f, "{len} importance values for rows of {n_per_row}")
            }
            Self::OutLength {
                len_bytes,
                expected,
            } => write!(f, "the output has {len_bytes} bytes, not {expected}"),
            Self::ValueNotFinite { index } => write!(f, "value {index} is not finite"),
            Self::ValueTooLarge { ty, index } => {
                write!(f, "value {index} is too large for type {ty}")
            }
            Self::ImportanceNotValid { index } => {
                write!(f, "importance {index} is negative or not finite")
            }
        }
    }
}

impl core::error::Error for QuantizeError {}
