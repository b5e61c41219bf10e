//! Scratch memory: each block lists its buffers once, for two implementations of [`Room`].
//!
//! [`Count`] adds up how much memory they take, [`Carve`] cuts them from the caller's. So a plan and the
//! buffers agree.

use crate::kernels::bytes::Pod;
use crate::memory::{Arena, MemoryError, MemoryPlan, Shared};

/// A source of buffers.
pub(super) trait Room<'m> {
    /// A buffer of `rows` × `len` elements, all zero.
    fn buffer<T: Pod + Default>(
        &mut self,
        rows: usize,
        len: usize,
    ) -> Result<Shared<'m, T>, MemoryError>;

    /// A buffer of `len` elements for each of `n` workers.
    fn of_workers<T: Pod + Default>(
        &mut self,
        n: usize,
        len: usize,
    ) -> Result<PerWorker<'m, T>, MemoryError> {
        Ok(PerWorker {
            all: self.buffer(n, len)?,
            len,
        })
    }
}

/// Adds up sizes; its buffers are empty.
#[derive(Debug, Default)]
pub(super) struct Count(MemoryPlan);

impl Count {
    pub(super) const fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl<'m> Room<'m> for Count {
    fn buffer<T: Pod + Default>(
        &mut self,
        rows: usize,
        len: usize,
    ) -> Result<Shared<'m, T>, MemoryError> {
        self.0.slice::<T>(product(rows, len)?)?;
        Ok(Shared::new(&mut []))
    }
}

/// Cuts buffers from memory.
#[derive(Debug)]
pub(super) struct Carve<'m>(pub(super) Arena<'m>);

impl<'m> Room<'m> for Carve<'m> {
    fn buffer<T: Pod + Default>(
        &mut self,
        rows: usize,
        len: usize,
    ) -> Result<Shared<'m, T>, MemoryError> {
        let slice = self.0.slice(product(rows, len)?, T::default())?;
        Ok(Shared::new(slice))
    }
}

fn product(a: usize, b: usize) -> Result<usize, MemoryError> {
    a.checked_mul(b).ok_or(MemoryError::TooLarge)
}

/// A buffer for each worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct PerWorker<'m, T> {
    all: Shared<'m, T>,
    len: usize,
}

impl<'m, T: Copy> PerWorker<'m, T> {
    /// Elements of each.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Rank `rank`'s own.
    pub(super) fn of(&self, rank: usize) -> Shared<'m, T> {
        self.all.part(rank * self.len..(rank + 1) * self.len)
    }
}
