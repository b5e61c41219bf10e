//! A file mapped into memory.

use super::read::read_exactly;
use super::shrunk::MapRecord;
use super::{FileError, open_regular};
use crate::host::memory;
use core::fmt;
use core::ops::Range;
use core::ptr::{self, NonNull};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use sluice_core::gguf::source::{SourceError, TensorSource};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A read-only, private map of a whole file. Other processes that map the file share its pages.
///
/// Where a file may change, use [`super::ReadFile`]. If one changes all the same:
/// - It shrinks: touching a page past its new end ends the process (SIGBUS), with a sentence if the program has called
///   [`super::report_shrunk_maps`]. [`TensorSource::slice`] checks the file's length and returns `None` once it has
///   shrunk, after which [`TensorSource::read`] reports [`SourceError::EndOfFile`]; but what was lent before, such as
///   a header or the weights of a `.slc` file, is touched without a check.
/// - It is written to in place: any mixture of old and new bytes is read. Core reads headers by
///   checked indices and copies the sizes that it relies on, so the observed effects are wrong
///   numbers or panics. Rust promises nothing: it assumes that bytes behind a reference do not change.
pub struct MappedFile {
    path: PathBuf,
    file: File,
    start: NonNull<u8>,
    len: usize,
    /// Removed before the map.
    record: Option<MapRecord>,
}

// SAFETY: the map is read-only and lives as long as the value; nothing in it belongs to a thread.
unsafe impl Send for MappedFile {}
// SAFETY: as for Send.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps `path`.
    ///
    /// # Safety
    /// - The file's bytes and length do not change as long as the value lives: neither this process
    ///   nor another changes them. Replacing the file under its name does no harm.
    ///
    /// # Errors
    /// [`FileError`]: it cannot be opened, is not a regular file, is empty, or the kernel
    /// refuses the map.
    pub unsafe fn open(path: &Path) -> Result<Self, FileError> {
        let (file, len_bytes) = open_regular(path)?;
        let map_error = |error: rustix::io::Errno| FileError::Map {
            path: path.to_path_buf(),
            error: error.into(),
        };
        let len = usize::try_from(len_bytes).map_err(|_| map_error(rustix::io::Errno::NOMEM))?;
        let (read, private) = (ProtFlags::READ, MapFlags::PRIVATE);
        // SAFETY: a new map at an address of the kernel's choice.
        let start = unsafe { mmap(ptr::null_mut(), len, read, private, &file, 0) };
        let start = NonNull::new(start.map_err(map_error)?.cast::<u8>());
        let start = start.ok_or_else(|| map_error(rustix::io::Errno::NOMEM))?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            start,
            len,
            record: MapRecord::new(start.addr().get(), len, path),
        })
    }

    /// [`Self::open`] as a function that is not unsafe, for [`super::LoadMode::Map`] alone.
    ///
    /// No program can prove what others do to a file, so every program that opens a model would use
    /// `unsafe` on the same assumption. Instead the mode's documentation demands it, once, and the
    /// other mode needs no such assumption.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn open_undisturbed(path: &Path) -> Result<Self, FileError> {
        // SAFETY: the caller chose the mode, whose documentation forbids changes to the file meanwhile.
        // This is taken on trust, not checked.
        unsafe { Self::open(path) }
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps pages of the map in memory, as [`memory::AlignedMemory::lock`].
    ///
    /// # Errors
    /// As for [`memory::AlignedMemory::lock`].
    ///
    /// # Panics
    /// If the range is outside of the file.
    pub fn lock(&self, range: Range<usize>) -> std::io::Result<()> {
        let bytes = &self.bytes()[range];
        // SAFETY: our own map; locking changes no contents.
        Ok(unsafe { rustix::mm::mlock(bytes.as_ptr().cast_mut().cast(), bytes.len()) }?)
    }

    /// Asks for huge pages for a range, as [`memory::AlignedMemory::advise_huge_pages`]. File systems with
    /// large folios grant them for what is read from the drive from now on, not for what is cached already.
    ///
    /// # Panics
    /// If the range is outside of the file.
    pub(crate) fn advise_huge_pages(&self, range: Range<usize>) {
        let bytes = &self.bytes()[range];
        // SAFETY: pages of the map; advice changes no contents.
        let _hint = unsafe { memory::advise(bytes, Advice::LinuxHugepage) };
        memory::note_mapped(bytes);
    }

    /// Advises the kernel that bytes are read a few at a time, anywhere, so that it does not read ahead.
    pub(crate) fn advise_random(&self, offset: u64, len: u64) {
        let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        let bytes = range.and_then(|(start, len)| self.bytes().get(start..start.checked_add(len)?));
        let Some(bytes) = bytes else {
            return;
        };
        // SAFETY: pages of the map; advice changes no contents.
        let _hint = unsafe { memory::advise(bytes, Advice::Random) };
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the map is `len` readable bytes and lives as long as `self`; by the contract of
        // `open` they do not change.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl TensorSource for MappedFile {
    fn len_bytes(&self) -> u64 {
        self.len as u64
    }

    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len)?;
        let now = self.file.metadata().ok()?.len();
        (end as u64 <= now).then(|| self.bytes().get(start..end))?
    }

    /// By `pread`, not from the map: a file that has shrunk is an error here.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        read_exactly(&self.file, self.len_bytes(), offset, into)
    }

    /// Gives back the pages of the range, rounded outward to 2 MiB.
    ///
    /// A fault maps neighbouring pages as well: 64 KiB, and since Linux 6.18 the whole folio
    /// that the page cache holds the page in. Releasing only the pages inside the range would
    /// leave those mapped at its ends (14% of a 600 MB model, measured). What a neighbour still
    /// needs is mapped again on its next access.
    fn release(&self, offset: u64, len: usize) {
        let Ok(start) = usize::try_from(offset) else {
            return;
        };
        let end = start.saturating_add(len).min(self.len);
        let start = start - start % FOLIO_BYTES;
        let end = end.next_multiple_of(FOLIO_BYTES).min(self.len);
        if start >= end {
            return;
        }
        let at = self.start.as_ptr().wrapping_add(start).cast();
        // SAFETY: the range is inside the map. Dropping clean pages of a read-only file map
        // changes no byte that anybody can read: they come from the file again.
        let _hint = unsafe { madvise(at, end - start, Advice::LinuxDontNeed) };
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.record = None;
        memory::forget_mapped(self.start.addr().get()..self.start.addr().get() + self.len);
        // SAFETY: our own map, and every slice of it borrowed from `self`.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({}, {} bytes)", self.path.display(), self.len)
    }
}

/// The maximum that the kernel maps on a fault: the largest folio of the page cache on x86.
const FOLIO_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn open(path: &Path) -> Result<MappedFile, FileError> {
        // SAFETY: the tests' own files. One is cut short, and no page beyond its end is touched.
        unsafe { MappedFile::open(path) }
    }

    fn temporary(name: &str, bytes: &[u8]) -> PathBuf {
        let name = format!("sluice-mapped-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn ranges_are_those_of_the_file_also_after_release() {
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let path = temporary("ranges", &bytes);
        let file = open(&path).unwrap();
        assert_eq!(file.len_bytes(), 300_000);
        for (at, len) in [
            (0, 300_000),
            (0, 0),
            (299_999, 1),
            (70_000, 9000),
            (300_000, 0),
        ] {
            let expected = &bytes[at..at + len];
            assert_eq!(file.slice(at as u64, len).unwrap(), expected);
            let mut copy = vec![0; len];
            file.read(at as u64, &mut copy).unwrap();
            assert_eq!(copy, expected);
            file.release(at as u64, len);
            assert_eq!(file.slice(at as u64, len).unwrap(), expected);
        }
        for (at, len) in [(300_000, 1), (u64::MAX, 1), (1, usize::MAX)] {
            assert!(file.slice(at, len).is_none());
            file.release(at, len);
        }
        assert!(matches!(
            file.read(299_999, &mut [0; 2]),
            Err(SourceError::OutOfRange { .. })
        ));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_shrinks_is_an_error() {
        let path = temporary("shrinks", &vec![1; 100_000]);
        let file = open(&path).unwrap();
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(5000)
            .unwrap();
        assert!(file.slice(4000, 2000).is_none());
        assert_eq!(file.slice(4000, 1000).unwrap(), [1; 1000]);
        assert_eq!(
            file.read(4000, &mut [0; 2000]),
            Err(SourceError::EndOfFile { offset: 5000 })
        );
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_no_model_file_is_refused_by_name() {
        let empty = temporary("empty", b"");
        let cases = [
            (empty.as_path(), "is empty"),
            (Path::new("/"), "is a directory"),
            (Path::new("/dev/null"), "is not a regular file"),
            (Path::new("/does/not/exist"), "No such file"),
        ];
        for (path, expected) in cases {
            let message = open(path).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            assert!(message.contains(path.to_str().unwrap()), "{message}");
        }
        fs::remove_file(empty).unwrap();
    }

    #[test]
    fn huge_pages_of_a_map_are_reported_until_it_is_closed() {
        let path = temporary("huge", &vec![1; 8 << 20]);
        let file = open(&path).unwrap();
        file.advise_huge_pages(0..file.bytes().len());
        assert_eq!(
            file.bytes()
                .iter()
                .map(|&byte| u64::from(byte))
                .sum::<u64>(),
            8 << 20
        );
        let measure = || {
            let name = "huge pages of the mapped weights";
            memory::report().into_iter().find(|m| m.name == name)
        };
        let found = measure().unwrap();
        assert!(found.found.ends_with(" of 8 MiB"), "{found}");
        drop(file);
        assert!(measure().is_none());
        fs::remove_file(&path).unwrap();
    }
}
