//! Sources of tensor bytes.
//!
//! The header is parsed from memory; the data after it may be megabytes in flash, a memory
//! map, or a file that is read in pieces by several workers. Core requests byte ranges through
//! [`TensorSource`] and does not depend on the kind of source.

use core::fmt;
use core::ops::Range;

/// A model file as ranges of bytes. Workers read it in parallel, hence `Sync`.
pub trait TensorSource: Sync {
    /// Length of the file in bytes.
    fn len_bytes(&self) -> u64;

    /// `len` bytes at `offset` in place, if the source is addressable (a slice, a memory
    /// map). `None` if it is not, or if the range is not inside the file.
    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]>;

    /// Copies the `into.len()` bytes at `offset` into the caller's memory.
    ///
    /// # Errors
    ///
    /// The range is not inside the file, or reading failed. The contents of `into` are then
    /// unspecified.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError>;

    /// A hint that the range is not needed any more: a memory map releases its pages.
    fn release(&self, _offset: u64, _len: usize) {}
}

/// A file that is in memory as a whole.
#[derive(Clone, Copy)]
pub struct SliceSource<'a>(pub &'a [u8]);

impl TensorSource for SliceSource<'_> {
    fn len_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.0.get(range(offset, len)?)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let len = into.len();
        let bytes = self.slice(offset, len).ok_or(SourceError::OutOfRange {
            offset,
            len_bytes: len as u64,
            source_len_bytes: self.len_bytes(),
        })?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

/// Only the length: the bytes are a model.
impl fmt::Debug for SliceSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SliceSource({} bytes)", self.0.len())
    }
}

/// Why a range could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceError {
    /// The range is not inside the file.
    OutOfRange {
        /// First byte requested.
        offset: u64,
        /// Number of bytes requested.
        len_bytes: u64,
        /// Length of the file.
        source_len_bytes: u64,
    },
    /// The device or operating system failed.
    Io {
        /// First byte that could not be read.
        offset: u64,
        /// The system's error number, 0 if it has none.
        code: i32,
    },
    /// The file ended early: it is shorter than when it was opened.
    EndOfFile {
        /// The current end of the file.
        offset: u64,
    },
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfRange {
                offset,
                len_bytes,
                source_len_bytes,
            } => write!(
                f,
                "{len_bytes} bytes at byte {offset} are not inside a file of {source_len_bytes}"
            ),
            Self::Io { offset, code } => write!(f, "reading byte {offset} failed (error {code})"),
            Self::EndOfFile { offset } => write!(f, "the file now ends at or before byte {offset}"),
        }
    }
}

impl core::error::Error for SourceError {}

/// `offset..offset + len` as indices, if they fit.
fn range(offset: u64, len: usize) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len)?)
}
