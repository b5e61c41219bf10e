//! Matrices laid out by neuron, so that the weights of a neuron can be left unread.
//!
//! A panel's lines interleave 16 rows: a single row of it cannot be skipped. The two other [`Form`]s hold the same
//! numbers and codes as a panel, in another order:
//!
//! - **[`Form::Rows`]**, for a matrix whose outputs are neurons (up). Row `r` is its lane of the panel: per 256 columns
//!   the numbers of its blocks, then four bytes of each line. Rows follow each other.
//! - **[`Form::Neurons`]**, for a matrix whose inputs are neurons (down). Outputs are in stripes of 2048, so that products
//!   walk through memory in its order. First the heads of each stripe: of all its panels with the first 256 columns, then
//!   with the next ones; then, from a multiple of 64 bytes on, for each stripe the codes of each column (neuron).
//!
//! The codes of a neuron are in chunks of 128 outputs, the last of which may have 32, 64 or 96. A chunk has a plane for
//! each part of the codes' bits that a panel has lines for: 8; 4; 4 and 1; 4 and 2; 2 and 1; or 2 bits. It has two
//! halves of `m` panels each. Output `16 q + 4 k + l` of a half is at position `(k m + q) 4 + l`, so that interleaving
//! the bytes of four neurons gives lines of panels. With `n` positions in a half, `a` and `b` the codes of the two:
//!
//! ```text
//! 8 bits   n bytes of a, then n of b
//! 4 bits   byte p: a[p], b[p]                                      from the low bits up
//! 2 bits   byte p: a[p], a[n / 2 + p], b[p], b[n / 2 + p]
//! 1 bit    bit p of n / 8 bytes: a[p], then n / 8 bytes of b
//! ```
//!
//! Both forms have GGUF's size, except that heads are padded to 64 bytes, and within them as in panels. A form exists
//! for integer types, for whole panels, and with [`Form::Neurons`] for outputs that are a multiple of 32.

mod codes;
mod groups;
#[cfg(test)]
mod tests;

pub use crate::panel::Form;

pub(crate) use codes::ChunkCodes;
pub(crate) use groups::{
    GroupPanels, HALF, HalfChunk, LinesFn, STRIP_ROWS, Strip, Transpose, put_numbers,
};

use crate::panel::{PANEL_ROWS, PanelLayout};

impl PanelLayout {
    /// Packs 16 GGUF rows from row `first` on, a multiple of 16, into the whole matrix `bytes`. It starts as zeros where
    /// the same matrix is to give the same bytes. In [`Form::Rows`] only the bytes of these rows are written.
    ///
    /// # Panics
    /// If a slice's size does not match the layout, `first` is out of range, or the matrix is in panels.
    pub fn pack_band(&self, first: usize, gguf_rows: &[u8], bytes: &mut [u8]) {
        assert!(self.form() != Form::Panels && first.is_multiple_of(PANEL_ROWS));
        assert!(first < self.n_rows());
        assert_eq!(gguf_rows.len(), PANEL_ROWS * self.gguf_row_bytes());
        assert_eq!(bytes.len(), self.bytes());
        groups::pack_band(self, first, gguf_rows, bytes);
    }

    /// The inverse of [`Self::pack_band`].
    ///
    /// # Panics
    /// As [`Self::pack_band`].
    pub fn unpack_band(&self, first: usize, bytes: &[u8], gguf_rows: &mut [u8]) {
        assert!(self.form() != Form::Panels && first.is_multiple_of(PANEL_ROWS));
        assert!(first < self.n_rows());
        assert_eq!(gguf_rows.len(), PANEL_ROWS * self.gguf_row_bytes());
        assert_eq!(bytes.len(), self.bytes());
        groups::unpack_band(self, first, bytes, gguf_rows);
    }
}
