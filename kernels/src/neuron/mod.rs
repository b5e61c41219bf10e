//! Matrices laid out by neuron, so that the weights of a neuron can be left unread.
//!
//! A panel's lines interleave 16 rows: a single row of it cannot be skipped. The two other [`Form`]s hold the same
//! numbers and codes as a panel, in another order:
//!
//! - **[`Form::Rows`]**, for a matrix whose outputs are neurons (up). Row `r` is its lane of the panel: per [`GROUP`]
//!   columns the numbers of its blocks, then four bytes of each line. Rows follow each other.
//! - **[`Form::Neurons`]**, for a matrix whose inputs are neurons (down). First the heads of all panels, those with the
//!   first [`GROUP`] columns of each panel, then those with the next ones; then, from a multiple of 64 bytes on, the
//!   codes of each column (neuron) for all outputs.
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
mod format;
mod groups;
#[cfg(test)]
mod tests;

pub(crate) use codes::{CHUNK, Chunks, Plane};
pub(crate) use groups::{GroupPanels, STRIP_ROWS, Strip, Transpose};

use crate::contract::GROUP;
use crate::panel::{PANEL_ALIGN, PANEL_ROWS, PanelError, PanelLayout};
use format::GroupFormat;

/// How the numbers and codes of a matrix are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Form {
    /// Panels of 16 rows, then the remaining rows.
    #[default]
    Panels = 0,
    /// Row by row: any row can be left unread.
    Rows = 1,
    /// Scales by block, then codes column by column: any column can be left unread.
    Neurons = 2,
}

impl Form {
    pub(crate) const ALL: [Self; 3] = [Self::Panels, Self::Rows, Self::Neurons];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Panels => "panels",
            Self::Rows => "rows",
            Self::Neurons => "neurons",
        }
    }
}

/// Columns of group `g`.
pub(crate) fn group_cols(layout: &PanelLayout, g: usize) -> usize {
    (layout.n_cols() - g * GROUP).min(GROUP)
}

/// Bytes of all heads before group `g` of a matrix in [`Form::Neurons`].
const fn heads_before(format: &GroupFormat, layout: &PanelLayout, g: usize) -> usize {
    // All groups but the last are whole.
    let whole = if g * GROUP > layout.n_cols() {
        g - 1
    } else {
        g
    };
    let rest = layout.n_cols().saturating_sub(whole * GROUP);
    let last = if whole < g {
        format.head_bytes(rest)
    } else {
        0
    };
    layout.n_rows() / PANEL_ROWS * (whole * format.head_bytes(GROUP) + last)
}

/// Where the head of panel `panel` of group `g` is.
fn head_at(layout: &PanelLayout, panel: usize, g: usize) -> usize {
    let format = groups::format_of(layout);
    heads_before(&format, layout, g) + panel * format.head_bytes(group_cols(layout, g))
}

/// Where the codes start.
const fn codes_start(format: &GroupFormat, layout: &PanelLayout) -> usize {
    let n_groups = layout.n_cols().div_ceil(GROUP);
    heads_before(format, layout, n_groups).next_multiple_of(PANEL_ALIGN)
}

/// Where the codes of neuron `neuron` for the chunk of outputs from `first` on are.
fn chunk_at(layout: &PanelLayout, neuron: usize, first: usize) -> usize {
    let format = groups::format_of(layout);
    let row = layout.n_rows() * format.bits() / 8;
    codes_start(&format, layout) + neuron * row + first * format.bits() / 8
}

impl PanelLayout {
    /// The same matrix in another form.
    ///
    /// # Errors
    /// [`PanelError::NoForm`] if its type is not one of integers, it has rows that are in no panel, or, with
    /// [`Form::Neurons`], its rows are not a multiple of 32.
    pub fn with_form(&self, form: Form) -> Result<Self, PanelError> {
        let unit = match form {
            Form::Panels => return Ok(self.in_panels()),
            Form::Rows => PANEL_ROWS,
            Form::Neurons => 2 * PANEL_ROWS,
        };
        let is_whole = self.panel_bytes() > 0 && self.n_rows().is_multiple_of(unit);
        if GroupFormat::of(self.ty()).is_none() || !is_whole {
            return Err(PanelError::NoForm {
                ty: self.ty().ggml(),
                n_rows: self.n_rows(),
                form,
            });
        }
        Ok(self.set_form(form))
    }

    /// Bytes of the matrix in a form other than panels.
    pub(crate) const fn bytes_by_neuron(&self) -> usize {
        match (self.form(), GroupFormat::of(self.ty())) {
            (Form::Neurons, Some(format)) => {
                let codes = self.n_cols() * self.n_rows() / 8 * format.bits();
                codes_start(&format, self) + codes
            }
            _ => self.n_rows() * self.gguf_row_bytes(),
        }
    }

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

    /// Rows of a strip of work: in [`Form::Neurons`] a chunk of codes.
    pub const fn strip_rows(&self) -> usize {
        match self.form() {
            Form::Neurons => CHUNK,
            Form::Panels | Form::Rows => 4 * PANEL_ROWS,
        }
    }
}
