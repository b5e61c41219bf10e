//! Rows that workers share, and the products of layers that are kept.

use crate::engine::scratch::Room;
use crate::memory::{MemoryError, Shared};
use crate::model::{Attention, LayerKind};

/// Rows of f32, (n_tokens, width).
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'m> {
    pub(super) memory: Shared<'m, f32>,
    pub(super) width: usize,
}

impl<'m> Matrix<'m> {
    pub(super) fn new(
        rows: usize,
        width: usize,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let memory = room.buffer(rows, width)?;
        Ok(Self { memory, width })
    }

    /// As a matrix of narrower rows, in the same memory.
    pub(super) const fn of_width(self, width: usize) -> Self {
        Self {
            memory: self.memory,
            width,
        }
    }

    /// # Safety
    /// - No worker writes the row while the result lives.
    pub(super) unsafe fn row(&self, row: usize) -> &'m [f32] {
        // SAFETY: by the caller.
        unsafe { self.memory.read(row * self.width..(row + 1) * self.width) }
    }

    /// # Safety
    /// - The row is this worker's alone while the result lives.
    pub(super) unsafe fn row_mut(&self, row: usize) -> &'m mut [f32] {
        // SAFETY: by the caller.
        unsafe { self.memory.write(row * self.width..(row + 1) * self.width) }
    }

    /// Piece number `piece` of a row, of `len` elements.
    ///
    /// # Safety
    /// - As [`Self::row_mut`], for the piece.
    pub(super) unsafe fn piece(&self, row: usize, piece: usize, len: usize) -> &'m mut [f32] {
        let start = row * self.width + piece * len;
        // SAFETY: by the caller.
        unsafe { self.memory.write(start..start + len) }
    }

    /// All elements from `row` on.
    ///
    /// # Safety
    /// - No worker writes them while the result lives.
    pub(super) unsafe fn rows_from(&self, row: usize) -> &'m [f32] {
        // SAFETY: by the caller.
        unsafe { self.memory.read(row * self.width..self.memory.len()) }
    }
}

/// The products of layers' matrices, (n_kept, n_tokens, width) each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept<'m> {
    pub(super) q: Matrix<'m>,
    pub(super) k: Matrix<'m>,
    pub(super) v: Matrix<'m>,
    /// The input of the output projection.
    pub(super) mixed: Matrix<'m>,
    pub(super) mixer: Matrix<'m>,
    pub(super) gate: Matrix<'m>,
    pub(super) up: Matrix<'m>,
    /// Where its output has a norm.
    pub(super) down: Matrix<'m>,
}

impl<'m> Kept<'m> {
    /// Those of a layer of this kind, in place `slot` of `n_kept`.
    pub(super) fn of(&self, slot: usize, n_tokens: usize, kind: &LayerKind, n_embd: usize) -> Self {
        let (shape, n_ff) = (kind.attention(), kind.n_ff());
        let part = |all: Matrix<'m>, width: usize| {
            let start = slot * n_tokens * all.width;
            Matrix {
                memory: all.memory.part(start..start + n_tokens * all.width),
                width,
            }
        };
        let of = |width: fn(&Attention) -> usize| shape.map_or(0, width);
        let post = if kind.has_post_norms { n_embd } else { 0 };
        Self {
            q: part(self.q, of(Attention::n_query)),
            k: part(self.k, of(Attention::n_key)),
            v: part(self.v, of(Attention::n_value)),
            mixed: part(self.mixed, of(Attention::n_mixed)),
            mixer: part(self.mixer, n_embd),
            gate: part(self.gate, n_ff),
            up: part(self.up, n_ff),
            down: part(self.down, post),
        }
    }
}
