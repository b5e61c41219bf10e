//! Rows of floats, and their products.

use core::ops::Range;
use nalgebra::{Dyn, MatrixView, MatrixViewMut};

/// Rows of floats, one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rows {
    /// (n_rows, n_cols)
    pub(super) values: Vec<f32>,
    /// Floats of a row.
    pub(super) n_cols: usize,
}

type View<'a> = MatrixView<'a, f32, Dyn, Dyn, Dyn, Dyn>;

impl Rows {
    /// Zeros.
    pub(super) fn zeros(n_rows: usize, n_cols: usize) -> Self {
        Self {
            values: vec![0.0; n_rows * n_cols],
            n_cols,
        }
    }

    /// The number of rows.
    pub(super) fn n_rows(&self) -> usize {
        self.values.len().checked_div(self.n_cols).unwrap_or(0)
    }

    /// Row `i`.
    pub(super) fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.n_cols..(i + 1) * self.n_cols]
    }

    /// Some rows.
    pub(super) fn some(&self, rows: Range<usize>) -> Self {
        Self {
            values: self.values[rows.start * self.n_cols..rows.end * self.n_cols].to_vec(),
            n_cols: self.n_cols,
        }
    }

    fn view(&self) -> View<'_> {
        let (n_rows, n_cols) = (Dyn(self.n_rows()), Dyn(self.n_cols));
        View::from_slice_with_strides_generic(&self.values, n_rows, n_cols, n_cols, Dyn(1))
    }

    fn turned(&self) -> View<'_> {
        let (n_rows, n_cols) = (Dyn(self.n_cols), Dyn(self.n_rows()));
        View::from_slice_with_strides_generic(&self.values, n_rows, n_cols, Dyn(1), n_rows)
    }

    /// `self · other`.
    pub(super) fn times(&self, other: &Self) -> Self {
        product(self.view(), other.view())
    }

    /// `self · otherᵀ`.
    pub(super) fn times_turned(&self, other: &Self) -> Self {
        product(self.view(), other.turned())
    }

    /// `selfᵀ · other`.
    pub(super) fn turned_times(&self, other: &Self) -> Self {
        product(self.turned(), other.view())
    }
}

/// Rounded.
#[expect(clippy::cast_possible_truncation, reason = "rounded")]
pub(super) const fn narrow(x: f64) -> f32 {
    x as f32
}

/// The nearest number of `n` that is a share of them.
#[expect(clippy::cast_possible_truncation, reason = "at most n")]
#[expect(clippy::cast_sign_loss, reason = "a share is not negative")]
pub(super) fn part(share: f64, n: usize) -> usize {
    ((share * n as f64) as usize).min(n)
}

fn product(a: View<'_>, b: View<'_>) -> Rows {
    let mut out = Rows::zeros(a.nrows(), b.ncols());
    let (n_rows, n_cols) = (Dyn(a.nrows()), Dyn(b.ncols()));
    let mut view = MatrixViewMut::<f32, Dyn, Dyn, Dyn, Dyn>::from_slice_with_strides_generic(
        &mut out.values,
        n_rows,
        n_cols,
        n_cols,
        Dyn(1),
    );
    view.gemm(1.0, &a, &b, 0.0);
    out
}
