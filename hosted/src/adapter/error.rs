//! Why an adapter does not fit a model.

use crate::host::memory::OutOfMemory;
use core::error::Error;
use core::fmt;
use sluice_core::engine;

/// Why an adapter was not loaded.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum AdapterError {
    /// It is for models of another family.
    Family {
        path: String,
        expected: String,
        found: String,
    },
    /// The model has no such matrix, or none that can be adapted.
    NoMatrix { path: String, tensor: String },
    /// The matrices of a pair do not have the shape of what they adapt: (rows, columns) as they are and as they
    /// should be.
    Shape {
        path: String,
        tensor: String,
        expected: [usize; 2],
        found: [usize; 2],
    },
    /// A pair has no rank, or its matrices have different ones.
    Rank { path: String, tensor: String },
    /// A number is not finite, or too large for the type it is packed in.
    Number {
        path: String,
        tensor: String,
        ty: &'static str,
    },
    /// Two pairs adapt the same matrix.
    Twice { path: String, tensor: String },
    /// It adapts nothing.
    Empty { path: String },
    /// Not enough memory for the adapter.
    Memory { path: String, error: OutOfMemory },
    /// The engine does not accept it.
    Engine {
        path: String,
        error: engine::AdapterError,
    },
}

impl fmt::Display for AdapterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Family {
                path,
                expected,
                found,
            } => write!(
                f,
                "{path}: the adapter is for models of architecture {found:?}, but the model's is {expected:?}"
            ),
            Self::NoMatrix { path, tensor } => {
                write!(f, "{path}: the model has no matrix {tensor} to adapt")
            }
            Self::Shape {
                path,
                tensor,
                expected,
                found,
            } => write!(
                f,
                "{path}: {tensor} is {} x {} in the model, but the adapter's matrices are for {} x {}",
                expected[0], expected[1], found[0], found[1]
            ),
            Self::Rank { path, tensor } => {
                write!(f, "{path}: the matrices for {tensor} have different ranks")
            }
            Self::Number { path, tensor, ty } => write!(
                f,
                "{path}: the matrices for {tensor} contain a number that {ty} cannot represent"
            ),
            Self::Twice { path, tensor } => {
                write!(f, "{path}: {tensor} is adapted twice")
            }
            Self::Empty { path } => write!(f, "{path}: the adapter has no matrices"),
            Self::Memory { path, error } => {
                write!(f, "{path}: not enough memory for the adapter: {error}")
            }
            Self::Engine { path, error } => write!(f, "{path}: {error}"),
        }
    }
}

impl Error for AdapterError {}
