//! The texts of a pass: rows one text after the other, positions from 0.

use core::ops::Range;

/// The label of a token that is not predicted.
pub const NO_LABEL: u32 = u32::MAX;

/// Lengths of texts whose rows follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Texts<'a> {
    pub(super) lengths: &'a [u32],
}

impl Texts<'_> {
    /// Rows of each text, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        self.lengths.iter().map(move |len| {
            let rows = start..start + *len as usize;
            start = rows.end;
            rows
        })
    }

    /// Rows of all texts.
    pub(super) fn n_rows(&self) -> usize {
        self.lengths.iter().map(|len| *len as usize).sum()
    }

    /// Rows of text `index`.
    pub(super) fn text(&self, index: usize) -> Range<usize> {
        self.rows().nth(index).unwrap_or(0..0)
    }

    /// The position of a row in its text.
    pub(super) fn position(&self, row: usize) -> usize {
        let text = self.rows().find(|rows| rows.contains(&row));
        row - text.map_or(0, |rows| rows.start)
    }
}
