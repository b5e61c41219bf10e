//! A file read by position.
#![forbid(unsafe_code)]

use super::{FileError, open_regular};
use sluice_core::gguf::source::{SourceError, TensorSource};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// A file whose ranges are copied into the caller's memory with `pread`.
///
/// Costs no address space and no page tables, and a file that shrinks or a disk that fails is an
/// ordinary error. Any number of threads read at once.
#[derive(Debug)]
pub struct ReadFile {
    path: PathBuf,
    file: File,
    len_bytes: u64,
}

impl ReadFile {
    /// Opens `path`.
    ///
    /// # Errors
    /// [`FileError`]: it cannot be opened, is not a regular file, or is empty.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let (file, len_bytes) = open_regular(path)?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            len_bytes,
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl TensorSource for ReadFile {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn slice(&self, _: u64, _: usize) -> Option<&[u8]> {
        None
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        read_exactly(&self.file, self.len_bytes, offset, into)
    }
}

/// Fills `into` from `offset` of a file that had `len_bytes` when it was opened.
pub(super) fn read_exactly(
    file: &File,
    len_bytes: u64,
    offset: u64,
    into: &mut [u8],
) -> Result<(), SourceError> {
    let end = offset.checked_add(into.len() as u64);
    if end.is_none_or(|end| end > len_bytes) {
        return Err(SourceError::OutOfRange {
            offset,
            len_bytes: into.len() as u64,
            source_len_bytes: len_bytes,
        });
    }
    let mut done = 0;
    while done < into.len() {
        let at = offset + done as u64;
        match file.read_at(&mut into[done..], at) {
            Ok(0) => return Err(SourceError::EndOfFile { offset: at }),
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                return Err(SourceError::Io {
                    offset: at,
                    code: error.raw_os_error().unwrap_or(0),
                });
            }
        }
    }
    Ok(())
}
