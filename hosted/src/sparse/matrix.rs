//! A matrix of f32, row by row.

use super::error::SparseResult;
use sluice_core::sparse::SparsityError;

/// A matrix of f32, row by row: what the predecessor's signatures have as `Array2<f32>`.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseMatrix {
    n_rows: usize,
    n_cols: usize,
    data: Vec<f32>,
}

impl DenseMatrix {
    /// A matrix of `data`.
    ///
    /// # Errors
    /// Another number of elements than rows times columns; one that is not finite.
    pub fn new(n_rows: usize, n_cols: usize, data: Vec<f32>) -> SparseResult<Self> {
        let expected = n_rows.saturating_mul(n_cols);
        if data.len() != expected {
            return Err(SparsityError::Length {
                what: "matrix",
                expected,
                found: data.len(),
            }
            .into());
        }
        if let Some(index) = data.iter().position(|x| !x.is_finite()) {
            return Err(SparsityError::NotFinite {
                what: "matrix",
                index,
                value: data[index],
            }
            .into());
        }
        Ok(Self {
            n_rows,
            n_cols,
            data,
        })
    }

    /// Rows and columns.
    #[must_use]
    pub const fn dim(&self) -> (usize, usize) {
        (self.n_rows, self.n_cols)
    }

    /// All elements, row by row.
    #[must_use]
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    /// A row.
    ///
    /// # Panics
    /// If the row does not exist.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.n_cols..][..self.n_cols]
    }

    /// The transposed matrix.
    #[must_use]
    pub fn transposed(&self) -> Self {
        let mut data = Vec::with_capacity(self.data.len());
        for col in 0..self.n_cols {
            data.extend((0..self.n_rows).map(|row| self.data[row * self.n_cols + col]));
        }
        Self {
            n_rows: self.n_cols,
            n_cols: self.n_rows,
            data,
        }
    }
}
