//! The caller's memory: plans that give its size, arenas that hand it out, and buffers that
//! several workers share.
//!
//! Every part of the engine that needs memory has a pair: a plan, which is arithmetic, and a
//! constructor that takes slices of exactly those sizes from an [`Arena`]. The order of calls
//! is the same in both, so a plan is checked by carving it.

use crate::kernels::bytes::Pod;
use crate::sampler::Candidate;
use core::fmt;
use core::marker::PhantomData;
use core::ops::Range;
use static_assertions::{assert_impl_all, const_assert_eq};

/// Alignment of every slice of an arena, in bytes: a cache line, and a vector of any ISA.
pub const ALIGN: usize = 64;

/// The caller's memory does not match the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryError {
    /// The first byte is not aligned to [`ALIGN`].
    Misaligned,
    /// The memory ends before everything is placed.
    TooSmall {
        /// Bytes missing for the slice that did not fit.
        missing_bytes: usize,
    },
    /// A size does not fit in the address space.
    TooLarge,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned => write!(f, "memory is not aligned to {ALIGN} bytes"),
            Self::TooSmall { missing_bytes } => {
                write!(f, "memory is too small: {missing_bytes} bytes are missing")
            }
            Self::TooLarge => f.write_str("a size is larger than the address space"),
        }
    }
}

impl core::error::Error for MemoryError {}

/// Adds up sizes of slices before memory is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    bytes: usize,
}

impl MemoryPlan {
    /// An empty plan.
    pub const fn new() -> Self {
        Self { bytes: 0 }
    }

    /// Adds a slice of `len` elements of `T`.
    ///
    /// # Errors
    /// [`MemoryError::TooLarge`] on overflow.
    pub fn slice<T>(&mut self, len: usize) -> Result<(), MemoryError> {
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(MemoryError::TooLarge)?;
        let bytes = bytes
            .checked_next_multiple_of(ALIGN)
            .ok_or(MemoryError::TooLarge)?;
        self.bytes = self.bytes.checked_add(bytes).ok_or(MemoryError::TooLarge)?;
        Ok(())
    }

    /// Bytes of memory needed, to be aligned to [`ALIGN`].
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Hands out slices of one piece of memory, each aligned to [`ALIGN`].
#[derive(Debug)]
pub struct Arena<'m> {
    rest: &'m mut [u8],
}

impl<'m> Arena<'m> {
    /// An arena over `memory`.
    ///
    /// # Errors
    /// [`MemoryError::Misaligned`].
    pub fn new(memory: &'m mut [u8]) -> Result<Self, MemoryError> {
        if !memory.as_ptr().addr().is_multiple_of(ALIGN) {
            return Err(MemoryError::Misaligned);
        }
        Ok(Self { rest: memory })
    }

    /// The next `len` bytes, with the contents that the caller left there.
    ///
    /// # Errors
    /// [`MemoryError::TooSmall`].
    pub fn bytes(&mut self, len: usize) -> Result<&'m mut [u8], MemoryError> {
        let padded = len
            .checked_next_multiple_of(ALIGN)
            .ok_or(MemoryError::TooLarge)?;
        if padded > self.rest.len() {
            return Err(MemoryError::TooSmall {
                missing_bytes: padded - self.rest.len(),
            });
        }
        let (taken, rest) = core::mem::take(&mut self.rest).split_at_mut(padded);
        self.rest = rest;
        Ok(&mut taken[..len])
    }

    /// `len` elements, each set to `value`. Plain numbers only: the memory will be the caller's
    /// bytes again, and padding would leave uninitialised bytes in it.
    ///
    /// # Errors
    /// [`MemoryError::TooSmall`], [`MemoryError::TooLarge`].
    pub fn slice<T: Pod>(&mut self, len: usize, value: T) -> Result<&'m mut [T], MemoryError> {
        const { assert!(align_of::<T>() <= ALIGN) }
        let bytes = len
            .checked_mul(size_of::<T>())
            .ok_or(MemoryError::TooLarge)?;
        let start = self.bytes(bytes)?.as_mut_ptr().cast::<T>();
        for i in 0..len {
            // SAFETY: the bytes are exclusively ours, aligned to ALIGN ≥ align_of::<T>(), and
            // hold `len` elements; a Pod leaves no byte of them uninitialised.
            unsafe { start.wrapping_add(i).write(value) };
        }
        // SAFETY: all elements were just initialised; the borrow lives as long as the memory.
        Ok(unsafe { core::slice::from_raw_parts_mut(start, len) })
    }
}

// So that a sampler's memory can come from an arena too.
// SAFETY: repr(C) of three numbers of four bytes each: any bits are values, without padding by
// the assertion below.
unsafe impl Pod for Candidate {}

/// Memory that the workers of a step write in turns.
///
/// In a phase, each element has at most one writer, and workers read what was written only after the
/// next barrier. The code that uses it has to ensure that; this type only carries the pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared<'m, T> {
    start: *mut T,
    len: usize,
    memory: PhantomData<&'m mut [T]>,
}

// SAFETY: a Shared is a pointer to plain numbers that outlive it; each access states
// why no other worker touches the same elements meanwhile.
unsafe impl<T: Copy + Send> Send for Shared<'_, T> {}
// SAFETY: as for Send.
unsafe impl<T: Copy + Send> Sync for Shared<'_, T> {}

impl<'m, T: Copy> Shared<'m, T> {
    pub(crate) fn new(slice: &'m mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            memory: PhantomData,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The elements in `range` as a separate `Shared`.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end);
        assert!(range.end <= self.len);
        Self {
            start: self.start.wrapping_add(range.start),
            len: range.len(),
            memory: PhantomData,
        }
    }

    /// Elements in `range`, to read.
    ///
    /// # Safety
    /// - No worker writes them while the slice lives.
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &'m [T] {
        assert!(range.start <= range.end);
        assert!(range.end <= self.len);
        // SAFETY: in range; by the caller no worker writes meanwhile.
        unsafe { core::slice::from_raw_parts(self.start.wrapping_add(range.start), range.len()) }
    }

    /// Elements in `range`, to write.
    ///
    /// # Safety
    /// - No other worker accesses them while the slice lives, and neither does this one by
    ///   another path.
    pub(crate) unsafe fn write(&self, range: Range<usize>) -> &'m mut [T] {
        assert!(range.start <= range.end);
        assert!(range.end <= self.len);
        // SAFETY: in range; by the caller no other worker accesses them meanwhile.
        unsafe {
            core::slice::from_raw_parts_mut(self.start.wrapping_add(range.start), range.len())
        }
    }

    /// The address of element `at`, for kernels that write through a pointer.
    pub(crate) fn pointer(&self, at: usize) -> *mut T {
        assert!(at <= self.len);
        self.start.wrapping_add(at)
    }
}

const_assert_eq!(size_of::<Candidate>(), 12);
assert_impl_all!(Arena<'static>: Send);

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;

    #[repr(align(64))]
    struct Memory([u8; 1024]);

    #[test]
    fn a_plan_is_what_carving_takes() {
        let mut plan = MemoryPlan::new();
        plan.slice::<u32>(3).unwrap();
        plan.slice::<u8>(65).unwrap();
        plan.slice::<u64>(0).unwrap();
        assert_eq!(plan.bytes(), 64 + 128);
        let mut memory = Memory([7; 1024]);
        let mut arena = Arena::new(&mut memory.0[..plan.bytes()]).unwrap();
        assert_eq!(arena.slice(3, 5u32).unwrap(), [5, 5, 5]);
        assert_eq!(arena.slice(65, 1u8).unwrap().len(), 65);
        assert!(arena.slice(0, 0u64).unwrap().is_empty());
        assert_eq!(
            arena.bytes(1),
            Err(MemoryError::TooSmall { missing_bytes: 64 })
        );
    }

    #[test]
    fn bad_memory_is_refused() {
        let mut memory = Memory([0; 1024]);
        assert_eq!(
            Arena::new(&mut memory.0[1..]).unwrap_err(),
            MemoryError::Misaligned
        );
        let mut arena = Arena::new(&mut memory.0).unwrap();
        assert_eq!(
            arena.slice(usize::MAX, 0u64).unwrap_err(),
            MemoryError::TooLarge
        );
        assert_eq!(
            MemoryPlan::new().slice::<u64>(usize::MAX),
            Err(MemoryError::TooLarge)
        );
    }
}
