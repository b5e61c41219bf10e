//! Memory for weights, KV cache and scratch.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;

/// Zeroed bytes straight from the kernel, aligned to a page (and so to
/// [`sluice_core::memory::ALIGN`]).
///
/// Pages become resident when they are first touched, so memory that is planned but not used,
/// such as the end of a KV cache, costs nothing. Freed on drop.
pub struct AlignedMemory {
    start: NonNull<u8>,
    len: usize,
}

/// The kernel would not give the memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot reserve {len_bytes} bytes of memory: {error}")]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub len_bytes: usize,
    /// What the kernel said.
    pub error: io::Error,
}

// SAFETY: plain bytes that the value owns.
unsafe impl Send for AlignedMemory {}
// SAFETY: plain bytes; shared references only read them.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// `len` bytes of zeros; 0 is allowed.
    ///
    /// # Errors
    /// [`OutOfMemory`]: more than the address space, `ulimit -v` or the overcommit policy allow.
    pub fn zeroed(len: usize) -> Result<Self, OutOfMemory> {
        // The kernel maps no empty ranges.
        let mapped_len = len.max(1);
        let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new map at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), mapped_len, access, private) };
        let refused = |error: rustix::io::Errno| OutOfMemory {
            len_bytes: len,
            error: error.into(),
        };
        let start = NonNull::new(start.map_err(refused)?.cast());
        let start = start.ok_or_else(|| refused(rustix::io::Errno::NOMEM))?;
        Ok(Self { start, len })
    }

    /// Asks for huge pages, which spare address translation. A hint: before the first touch,
    /// and granted only as far as the system has such pages.
    ///
    /// # Errors
    /// The kernel was built without transparent huge pages.
    pub fn advise_huge_pages(&self) -> io::Result<()> {
        let at = self.start.as_ptr().cast();
        // SAFETY: our own map; the advice changes no contents.
        unsafe { madvise(at, self.len.max(1), Advice::LinuxHugepage) }?;
        Ok(())
    }
}

impl Deref for AlignedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised (zeroed) bytes that `self` owns.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        // SAFETY: our own map, of the length it was made with; no borrow outlives the value.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len.max(1)) };
    }
}

/// Only the length.
impl fmt::Debug for AlignedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedMemory({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::memory::ALIGN;

    #[test]
    fn zeroed_aligned_and_writable() {
        for len in [0, 1, 63, 4096, 1 << 20] {
            let mut memory = AlignedMemory::zeroed(len).unwrap();
            assert_eq!(memory.len(), len);
            assert_eq!(memory.as_ptr().addr() % ALIGN, 0);
            assert!(memory.iter().all(|&byte| byte == 0));
            memory.fill(7);
            assert!(memory.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn too_much_is_an_error_with_the_size() {
        let error = AlignedMemory::zeroed(usize::MAX / 2).unwrap_err();
        assert!(error.to_string().contains(&(usize::MAX / 2).to_string()));
    }

    #[test]
    fn untouched_memory_is_not_resident() {
        let before = crate::process::peak_memory_bytes().unwrap();
        let memory = AlignedMemory::zeroed(1 << 30).unwrap();
        let after = crate::process::peak_memory_bytes().unwrap();
        // Other tests of this process may touch memory meanwhile.
        assert!(after - before < 512 << 20, "{before} {after}");
        assert_eq!(memory.len(), 1 << 30);
    }
}
