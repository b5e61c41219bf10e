//! The part of a file that has been received so far.

use crate::error::PullError;
use crate::hub::Known;
use core::fmt::Write as _;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// A blob being downloaded, `ETAG.incomplete`. It includes what an earlier run received.
pub(crate) struct Partial<'k> {
    known: &'k Known,
    path: PathBuf,
    file: File,
    hash: Sha256,
    len: u64,
}

impl<'k> Partial<'k> {
    /// Opens the partial download of `blob`, and reads it to continue its SHA-256.
    pub(crate) fn open(blob: &Path, known: &'k Known) -> Result<Self, PullError> {
        let mut name = blob.as_os_str().to_owned();
        name.push(".incomplete");
        let path = PathBuf::from(name);
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let file = options.open(&path).map_err(PullError::io(&path))?;
        let hash = Sha256::new();
        let mut partial = Self {
            known,
            path,
            file,
            hash,
            len: 0,
        };
        partial.read_back().map_err(PullError::io(&partial.path))?;
        if partial.len > known.len_bytes {
            partial.restart()?;
        }
        Ok(partial)
    }

    fn read_back(&mut self) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match self.file.read(&mut chunk)? {
                0 => return Ok(()),
                n => self.take(&chunk[..n]),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if self.known.sha256().is_some() {
            self.hash.update(bytes);
        }
    }

    /// Number of bytes received so far.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.len == self.known.len_bytes
    }

    /// Discards the bytes received so far.
    pub(crate) fn restart(&mut self) -> Result<(), PullError> {
        let emptied = self.file.set_len(0);
        let begun = emptied.and_then(|()| self.file.seek(SeekFrom::Start(0)));
        begun.map_err(PullError::io(&self.path))?;
        (self.hash, self.len) = (Sha256::new(), 0);
        Ok(())
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), PullError> {
        if self.len + bytes.len() as u64 > self.known.len_bytes {
            self.restart()?;
            return Err(PullError::TooLong {
                file: self.known.path.clone(),
                expected: self.known.len_bytes,
            });
        }
        self.file
            .write_all(bytes)
            .map_err(PullError::io(&self.path))?;
        self.take(bytes);
        Ok(())
    }

    /// Checks the SHA-256, syncs the bytes to disk and renames the file to its final name. Returns the SHA-256 if the hub
    /// gives one.
    pub(crate) fn finish(mut self, blob: &Path) -> Result<Option<[u8; 32]>, PullError> {
        let sha256: [u8; 32] = core::mem::take(&mut self.hash).finalize().into();
        let expected = self.known.sha256();
        if let Some(expected) = expected {
            let found = hex(&sha256);
            if !found.eq_ignore_ascii_case(expected) {
                let error = PullError::Sha256 {
                    file: self.known.path.clone(),
                    found,
                    expected: expected.to_owned(),
                };
                fs::remove_file(&self.path).map_err(PullError::io(&self.path))?;
                return Err(error);
            }
        }
        self.file.sync_all().map_err(PullError::io(&self.path))?;
        fs::rename(&self.path, blob).map_err(PullError::io(blob))?;
        Ok(expected.map(|_| sha256))
    }
}

/// Bytes per read.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}
