//! Atomics, in one module so that loom can replace them: `tests/ring_loom.rs` compiles the ring
//! with a module of this name that provides the checked ones.

pub(crate) use core::sync::atomic::{AtomicUsize, Ordering, fence};

/// Under loom, records which slots a half touches; does nothing here.
#[derive(Debug)]
pub(crate) struct Accesses;

impl Accesses {
    pub(crate) const fn new(_: usize) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) const fn write(&self, _: usize, _: usize) {}

    #[inline(always)]
    pub(crate) const fn read(&self, _: usize, _: usize) {}
}
