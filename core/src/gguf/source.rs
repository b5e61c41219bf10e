//! Where tensor bytes come from.
//!
//! The header is parsed from memory; the data behind it may be megabytes in flash, a memory
//! map, or a file that is read in pieces by several workers. Core asks for byte ranges through
//! [`TensorSource`] and does not know which it is.

use core::fmt;
use core::ops::Range;

/// A model file as ranges of bytes. Workers read it in parallel, hence `Sync`.
pub trait TensorSource: Sync {
    /// Length of the file in bytes.
    fn len_bytes(&self) -> u64;

    /// `len` bytes at `offset` in place, where the source is addressable (a slice, a memory
    /// map). `None` where it is not, or where the range is not inside the file.
    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]>;

    /// Copies the `into.len()` bytes at `offset` into the caller's memory.
    ///
    /// # Errors
    ///
    /// The range is not inside the file, or reading failed. What `into` holds is then
    /// unspecified.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError>;

    /// A hint that the range is not needed any more: a memory map gives its pages back.
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
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len_bytes: u64,
        /// Length of the file.
        source_len_bytes: u64,
    },
    /// The device or operating system failed.
    Io {
        /// First byte that could not be read.
        offset: u64,
        /// The system's error number, 0 where it has none.
        code: i32,
    },
    /// The file ended early: it is shorter than it was when it was opened.
    EndOfFile {
        /// Where it ends now.
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
            Self::EndOfFile { offset } => write!(f, "the file now ends at byte {offset}"),
        }
    }
}

impl core::error::Error for SourceError {}

/// `offset..offset + len` as indices, if they fit.
fn range(offset: u64, len: usize) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len)?)
}
