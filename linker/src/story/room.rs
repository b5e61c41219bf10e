//! Free memory.

use super::StoryError;
use sluice_core::kernels::bytes::Pod;
use sluice_core::memory::{ALIGN, Arena};

/// Free memory, handed out piece by piece.
pub(super) struct Room<'m> {
    arena: Arena<'m>,
    free_bytes: usize,
}

impl<'m> Room<'m> {
    pub(super) fn new(memory: &'m mut [u8]) -> Result<Self, StoryError> {
        let free_bytes = memory.len();
        let arena = Arena::new(memory).map_err(|_| StoryError::TooLarge)?;
        Ok(Self { arena, free_bytes })
    }

    /// `len` bytes, not initialised.
    pub(super) fn bytes(
        &mut self,
        what: &'static str,
        len: usize,
    ) -> Result<&'m mut [u8], StoryError> {
        let free_bytes = self.free_bytes;
        self.free_bytes = free_bytes.saturating_sub(len.next_multiple_of(ALIGN));
        self.arena.bytes(len).map_err(|_| StoryError::Memory {
            what,
            needed_bytes: len,
            free_bytes,
        })
    }

    /// `len` numbers.
    pub(super) fn slice<T: Pod + Default>(
        &mut self,
        what: &'static str,
        len: usize,
    ) -> Result<&'m mut [T], StoryError> {
        let free_bytes = self.free_bytes;
        let needed_bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(StoryError::TooLarge)?;
        self.free_bytes = free_bytes.saturating_sub(needed_bytes.next_multiple_of(ALIGN));
        self.arena
            .slice(len, T::default())
            .map_err(|_| StoryError::Memory {
                what,
                needed_bytes,
                free_bytes,
            })
    }
}
