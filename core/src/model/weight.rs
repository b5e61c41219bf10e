//! A weight matrix as kernels take it.

use crate::kernels::panel::PanelLayout;
use core::ops::Range;

/// A weight matrix, ready for kernels: some or all rows of a tensor in panels.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'w> {
    /// Shape and type of the tensor.
    pub layout: PanelLayout,
    /// The tensor's panels, then its tail.
    pub panels: &'w [u8],
    /// The matrix's first row in the tensor; a multiple of 16.
    pub first_row: usize,
    /// Rows of the matrix.
    pub n_rows: usize,
    /// The factor of the product, applied before anything is added: NVFP4 has one for a whole tensor.
    pub factor: Option<f32>,
    /// Added to the outputs, (n_rows).
    pub bias: Option<&'w [f32]>,
}

impl Weight<'_> {
    /// Bytes of some of its rows: whole panels, or up to its end.
    pub(crate) fn strip_bytes(&self, rows: &Range<usize>) -> usize {
        let rows = self.first_row + rows.start..self.first_row + rows.end;
        self.layout.byte_range(rows).len()
    }
}
