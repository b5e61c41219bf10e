//! Room for what adapters make of rows before it is added to outputs.

use super::limits::Limits;
use super::scratch::Room;
use crate::kernels::activation::{ActivationKinds, ActivationLayout};
use crate::memory::{MemoryError, Shared};

/// Linear layers that run side by side.
pub(super) const SLOTS: usize = 3;

/// `A · x` of every row, for up to [`SLOTS`] linear layers side by side.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoraRoom<'m> {
    memory: Shared<'m, u8>,
    n_rows: usize,
    /// Bytes from one row to the next.
    stride: usize,
}

impl<'m> LoraRoom<'m> {
    pub(super) fn new(
        limits: &Limits,
        n_rows: usize,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let (stride, n_rows) = match limits.adapter_rank {
            0 => (0, 0),
            rank => (layout(rank).row_bytes(), n_rows),
        };
        let n_all = n_rows.checked_mul(SLOTS).ok_or(MemoryError::TooLarge)?;
        Ok(Self {
            memory: room.buffer(n_all, stride)?,
            n_rows,
            stride,
        })
    }

    /// Where `n` rows of a rank lie side by side, behind `before` others in the run that begins with row `first`.
    pub(super) fn rows(
        &self,
        (slot, first, before): (usize, usize, usize),
        n: usize,
        rank: usize,
    ) -> Shared<'m, u8> {
        let row_bytes = layout(rank).row_bytes();
        let start = (slot * self.n_rows + first) * self.stride + before * row_bytes;
        self.memory.part(start..start + n * row_bytes)
    }
}

/// Rows of a rank.
pub(super) const fn layout(rank: usize) -> ActivationLayout {
    ActivationLayout::new(rank, ActivationKinds::F32)
}
