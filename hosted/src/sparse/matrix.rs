//! A matrix of f32, row by row.

use super::error::SparseResult;
use sluice_core::sparse::{SparsityError, check_finite, check_len};

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
        check_len("matrix", data.len(), n_rows.saturating_mul(n_cols))?;
        check_finite("matrix", &data)?;
        Ok(Self {
            n_rows,
            n_cols,
            data,
        })
    }

    /// A matrix of numbers from `next`; `names` are of its sizes, for the error.
    pub(super) fn generated(
        names: [&'static str; 2],
        n_rows: usize,
        n_cols: usize,
        mut next: impl FnMut() -> f32,
    ) -> SparseResult<Self> {
        let (larger, name) = (n_rows.max(n_cols), names[usize::from(n_cols > n_rows)]);
        let mut data = Vec::new();
        n_rows
            .checked_mul(n_cols)
            .and_then(|n| data.try_reserve_exact(n).ok())
            .ok_or(SparsityError::Setting {
                name,
                value: larger as f64,
                expected: "a size in memory",
            })?;
        data.resize_with(n_rows * n_cols, &mut next);
        Self::new(n_rows, n_cols, data)
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

    /// All elements, row by row.
    pub(super) fn into_vec(self) -> Vec<f32> {
        self.data
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
