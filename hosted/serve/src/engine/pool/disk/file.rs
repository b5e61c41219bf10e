//! A page or a state as a file.
//!
//! ```text
//!  0  "SLPG"    magic
//!  4  u32 2     version of this layout
//!  8  u64       length of what follows the header
//! 16  [u8; 32]  tag of the kind, the key and what follows the header (HMAC-SHA256 with the folder's key)
//! 48  …         a page or a state, as core writes it
//! ```

use crate::engine::pool::prefix::Key;
use core::fmt;
use sluice::file::{FolderKey, PrivateFileProblem, open_plain};
use std::fs::{File, FileTimes};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const MAGIC: [u8; 4] = *b"SLPG";
const VERSION: u32 = 2;
pub(super) const HEADER_BYTES: usize = 48;
/// Maximum length of a page: the length in a header is checked before memory is allocated.
const PAYLOAD_BYTES_MAX: u64 = 1 << 32;

/// The contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine::pool) enum FileKind {
    /// Keys and values of 64 tokens.
    Page,
    /// The recurrent state after them.
    State,
}

impl FileKind {
    const fn extension(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::State => "state",
        }
    }
}

/// The name of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine::pool) struct FileName {
    pub(in crate::engine::pool) key: Key,
    pub(in crate::engine::pool) kind: FileKind,
}

/// A file and its bytes.
#[derive(Debug)]
pub(crate) struct StoredFile {
    pub(in crate::engine::pool) name: FileName,
    pub(in crate::engine::pool) bytes: Vec<u8>,
}

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// What is there is not the file, and never will be.
    #[error("{0}")]
    Wrong(&'static str),
    /// It cannot be read now.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

impl StoredFile {
    pub(super) fn len_bytes(&self) -> u64 {
        (HEADER_BYTES + self.bytes.len()) as u64
    }

    pub(super) fn header(&self, key: &FolderKey) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&VERSION.to_le_bytes());
        header[8..16].copy_from_slice(&(self.bytes.len() as u64).to_le_bytes());
        header[16..].copy_from_slice(&key.tag(&self.name.tagged(&self.bytes)));
        header
    }
}

impl FileName {
    fn tagged<'b>(&'b self, bytes: &'b [u8]) -> [&'b [u8]; 3] {
        [self.kind.extension().as_bytes(), &self.key, bytes]
    }

    /// `ab/abcd….page`: subfolders keep folders small.
    pub(super) fn path_in(&self, folder: &Path) -> PathBuf {
        let mut name = String::with_capacity(80);
        for byte in &self.key {
            let _written = fmt::Write::write_fmt(&mut name, format_args!("{byte:02x}"));
        }
        folder
            .join(&name[..2])
            .join(format!("{name}.{}", self.kind.extension()))
    }

    /// The name of the file at `path`; `None` if it has another form.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let kind = [FileKind::Page, FileKind::State];
        let extension = path.extension()?;
        let kind = kind
            .into_iter()
            .find(|kind| extension == kind.extension())?;
        let stem = path.file_stem()?.to_str()?;
        let mut key = [0; 32];
        if stem.len() != 64 || !stem.is_ascii() {
            return None;
        }
        for (i, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&stem[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self { key, kind })
    }

    /// The contents of the file in `folder`, if `key` authenticates them; the file then counts as used now.
    pub(super) fn read(&self, folder: &Path, key: &FolderKey) -> Result<Vec<u8>, ReadError> {
        let file = open_plain(&self.path_in(folder)).map_err(|problem| match problem {
            PrivateFileProblem::Io(error) => ReadError::Failed(error),
            _ => ReadError::Wrong("it is not a regular file"),
        })?;
        let bytes = self.checked(&file, key)?;
        // On a file system that keeps no times, only the order of eviction suffers.
        let _touched = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        Ok(bytes)
    }

    fn checked(&self, mut file: &File, key: &FolderKey) -> Result<Vec<u8>, ReadError> {
        let len = file.metadata()?.len();
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => ReadError::Wrong("it is truncated"),
                _ => error.into(),
            })?;
        if header[..4] != MAGIC {
            return Err(ReadError::Wrong("it is not a page"));
        }
        if header[4..8] != VERSION.to_le_bytes() {
            return Err(ReadError::Wrong("it is from another version"));
        }
        let len = len.saturating_sub(HEADER_BYTES as u64);
        if len > PAYLOAD_BYTES_MAX || header[8..16] != len.to_le_bytes() {
            return Err(ReadError::Wrong("it is truncated"));
        }
        let mut bytes = Vec::new();
        let len_bytes = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory.into());
        let reserved = len_bytes.and_then(|len| Ok(bytes.try_reserve_exact(len)?));
        reserved.map_err(|error: io::Error| error)?;
        file.take(len).read_to_end(&mut bytes)?;
        let mut tag = [0; 32];
        tag.copy_from_slice(&header[16..]);
        match key.verifies(&self.tagged(&bytes), &tag) {
            true => Ok(bytes),
            false => Err(ReadError::Wrong("it was changed, or is of another key")),
        }
    }
}
