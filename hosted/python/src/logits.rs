//! A text's logits, in arrays that Python can read without a copy.

use numpy::{PyArray1, PyArrayMethods as _};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PySlice;

/// The logits of the last token, or of each. Rows that were handed out are not overwritten, unless the text is cut
/// before them.
pub(crate) struct Logits {
    n_vocab: usize,
    keeps_all: bool,
    /// For the last token: (n_vocab); for each token: one row after the other, with spare room.
    array: Py<PyArray1<f32>>,
    /// Whether the last token has logits.
    is_there: bool,
}

impl Logits {
    pub(crate) fn new(py: Python<'_>, n_vocab: usize, keeps_all: bool) -> Self {
        Self {
            n_vocab,
            keeps_all,
            array: PyArray1::zeros(py, 0, false).unbind(),
            is_there: false,
        }
    }

    pub(crate) const fn keeps_all(&self) -> bool {
        self.keeps_all
    }

    /// The number of rows to keep from a step over `n` tokens.
    pub(crate) fn rows_of(&self, n: usize, is_last: bool) -> usize {
        if self.keeps_all {
            n
        } else {
            usize::from(is_last)
        }
    }

    /// Room for `n_rows` rows, for the tokens after the first `n_tokens`.
    pub(crate) fn room(
        &mut self,
        py: Python<'_>,
        n_tokens: usize,
        n_rows: usize,
    ) -> PyResult<Py<PyArray1<f32>>> {
        self.is_there = false;
        if !self.keeps_all {
            // Always a new array, so that arrays handed out earlier do not change.
            self.array = PyArray1::zeros(py, n_rows * self.n_vocab, false).unbind();
            return Ok(self.array.clone_ref(py));
        }
        let (used, needed) = (n_tokens * self.n_vocab, (n_tokens + n_rows) * self.n_vocab);
        let len = self.array.bind(py).len()?;
        if needed > len {
            let grown = PyArray1::zeros(py, needed.max(2 * len), false);
            let old = self.array.bind(py).try_readonly()?;
            let mut room = grown.try_readwrite()?;
            room.as_slice_mut()?[..used].copy_from_slice(&old.as_slice()?[..used]);
            drop(room);
            self.array = grown.unbind();
        }
        Ok(self.part(py, used, needed)?.unbind())
    }

    /// Records that `n_rows` rows of the room were written, the last one for the last token.
    pub(crate) const fn written(&mut self, n_rows: usize) {
        self.is_there = n_rows > 0;
    }

    /// The logits of the last of `n_tokens` tokens.
    pub(crate) fn last<'p>(
        &self,
        py: Python<'p>,
        n_tokens: usize,
    ) -> PyResult<Bound<'p, PyArray1<f32>>> {
        if !self.is_there || n_tokens == 0 {
            return Err(PyRuntimeError::new_err("no token has been evaluated"));
        }
        let n_rows = if self.keeps_all { n_tokens } else { 1 };
        self.part(py, (n_rows - 1) * self.n_vocab, n_rows * self.n_vocab)
    }

    /// The logits of each token: (n_tokens, n_vocab).
    pub(crate) fn all<'p>(&self, py: Python<'p>, n_tokens: usize) -> PyResult<Bound<'p, PyAny>> {
        if !self.keeps_all {
            let message = "only the last logits are kept (set logits_all)";
            return Err(PyValueError::new_err(message));
        }
        let rows = self.part(py, 0, n_tokens * self.n_vocab)?;
        Ok(rows.reshape([n_tokens, self.n_vocab])?.into_any())
    }

    /// All rows that are kept, one after the other.
    pub(crate) fn kept<'p>(
        &self,
        py: Python<'p>,
        n_tokens: usize,
    ) -> PyResult<Bound<'p, PyArray1<f32>>> {
        let n_rows = self.rows_of(n_tokens, self.is_there);
        self.part(py, 0, n_rows * self.n_vocab)
    }

    /// Records that the text was cut: its new last token has logits only if those for each token are kept.
    pub(crate) fn forget(&mut self, py: Python<'_>) {
        if !self.keeps_all {
            self.array = PyArray1::zeros(py, 0, false).unbind();
            self.is_there = false;
        }
    }

    /// A view of the array.
    fn part<'p>(
        &self,
        py: Python<'p>,
        first: usize,
        end: usize,
    ) -> PyResult<Bound<'p, PyArray1<f32>>> {
        let slice = PySlice::new(py, isize::try_from(first)?, isize::try_from(end)?, 1);
        let part = self.array.bind(py).get_item(slice)?;
        Ok(part.cast_into::<PyArray1<f32>>()?)
    }
}
