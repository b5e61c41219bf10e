//! A weight matrix as kernels take it.

use crate::kernels::panel::{PanelError, PanelLayout};
use crate::kernels::{GgmlType, bytes};
use core::ops::Range;

/// A weight matrix, ready for kernels: some rows of a tensor in panels, mostly all.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'w> {
    /// Shape and type of the tensor.
    pub layout: PanelLayout,
    /// Its panels, and the rows behind them.
    pub panels: &'w [u8],
    /// The matrix's first row in the tensor; a multiple of 16.
    pub first_row: usize,
    /// Rows of the matrix.
    pub n_rows: usize,
    /// What the product is multiplied by before anything is added: that of NVFP4's whole tensors.
    pub factor: Option<f32>,
    /// Added to the outputs, (n_rows).
    pub bias: Option<&'w [f32]>,
}

impl<'w> Weight<'w> {
    /// Bytes that [`Self::pack_f32`] takes for a matrix of that shape.
    ///
    /// # Errors
    /// A shape that has no layout.
    pub fn f32_bytes(n_rows: usize, n_cols: usize) -> Result<usize, PanelError> {
        Ok(PanelLayout::new(GgmlType::F32, n_rows, n_cols)?.bytes())
    }

    /// A matrix of f32 in panels, from its rows one after the other: for adapters, which bring their own.
    /// `memory` has [`Self::f32_bytes`].
    ///
    /// # Errors
    /// A shape that has no layout.
    ///
    /// # Panics
    /// If there are other than `n_rows * n_cols` values, or `memory` is of another length.
    pub fn pack_f32(
        (n_rows, n_cols): (usize, usize),
        values: &[f32],
        memory: &'w mut [u8],
    ) -> Result<Self, PanelError> {
        let layout = PanelLayout::new(GgmlType::F32, n_rows, n_cols)?;
        assert_eq!(
            (values.len(), memory.len()),
            (n_rows * n_cols, layout.bytes())
        );
        memory.fill(0);
        for (i, row) in values.chunks_exact(n_cols).enumerate() {
            let place = layout.byte_range(layout.band(i));
            // Files are little endian, as all machines that are built for.
            layout.pack_row(i, bytes::of(row), &mut memory[place]);
        }
        Ok(Self {
            layout,
            panels: memory,
            first_row: 0,
            n_rows,
            factor: None,
            bias: None,
        })
    }

    /// Bytes of some of its rows: whole panels, or up to its end.
    pub(crate) fn strip_bytes(&self, rows: &Range<usize>) -> usize {
        let rows = self.first_row + rows.start..self.first_row + rows.end;
        self.layout.byte_range(rows).len()
    }
}
