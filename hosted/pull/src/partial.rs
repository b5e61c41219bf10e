//! The part of a file that has been received so far.

use crate::Watch;
use crate::error::PullError;
use crate::hub::{Checksum, Known};
use core::fmt::Write as _;
use rustix::fs::OFlags;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A blob being downloaded, `ETAG.incomplete`. It includes what an earlier run received.
pub(crate) struct Partial<'k> {
    known: &'k Known,
    path: PathBuf,
    file: File,
    /// `None` if the server names no hash.
    hash: Option<Hash>,
    len: u64,
}

/// The hash of the bytes so far.
enum Hash {
    Sha256(Sha256),
    Blob(Sha1),
}

impl Hash {
    fn of(known: &Known) -> Option<Self> {
        Some(match known.checksum()? {
            Checksum::Sha256(_) => Self::Sha256(Sha256::new()),
            // Git hashes a header as well.
            Checksum::Blob(_) => {
                Self::Blob(Sha1::new_with_prefix(format!("blob {}\0", known.len_bytes)))
            }
        })
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Blob(hash) => hash.update(bytes),
        }
    }

    /// The hash in hexadecimal digits, and itself if it is a SHA-256.
    fn finish(self) -> (String, Option<[u8; 32]>) {
        match self {
            Self::Sha256(hash) => {
                let hash = hash.finalize();
                (hex(&hash), Some(hash.into()))
            }
            Self::Blob(hash) => (hex(&hash.finalize()), None),
        }
    }
}

impl<'k> Partial<'k> {
    /// Opens the partial download of `blob`, and reads it to continue its hash. A link is refused:
    /// it would be written through.
    pub(crate) fn open(
        blob: &Path,
        known: &'k Known,
        watch: &dyn Watch,
    ) -> Result<Self, PullError> {
        let path = partial_path(blob);
        let mut options = File::options();
        let options = options.create(true).truncate(false).read(true).write(true);
        let options = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(&path).map_err(PullError::io(&path))?;
        let hash = Hash::of(known);
        let mut partial = Self {
            known,
            path,
            file,
            hash,
            len: 0,
        };
        partial.read_back(watch)?;
        if partial.len > known.len_bytes {
            partial.restart()?;
        }
        Ok(partial)
    }

    fn read_back(&mut self, watch: &dyn Watch) -> Result<(), PullError> {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            watch.check_stop()?;
            let read = self.file.read(&mut chunk);
            match read.map_err(PullError::io(&self.path))? {
                0 => return Ok(()),
                n => self.take(&chunk[..n]),
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
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
        (self.hash, self.len) = (Hash::of(self.known), 0);
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

    /// Checks the hash, syncs the bytes to disk and renames the file to its final name. Returns the SHA-256 if the hub
    /// gives one.
    pub(crate) fn finish(mut self, blob: &Path) -> Result<Option<[u8; 32]>, PullError> {
        let mut sha256 = None;
        if let Some((expected, hash)) = self.known.checksum().zip(self.hash.take()) {
            let (found, whole) = hash.finish();
            sha256 = whole;
            if !found.eq_ignore_ascii_case(expected.hex()) {
                let error = PullError::Checksum {
                    file: self.known.path.clone(),
                    name: expected.name(),
                    found,
                    expected: expected.hex().to_owned(),
                };
                fs::remove_file(&self.path).map_err(PullError::io(&self.path))?;
                return Err(error);
            }
        }
        self.file.sync_all().map_err(PullError::io(&self.path))?;
        fs::rename(&self.path, blob).map_err(PullError::io(blob))?;
        Ok(sha256)
    }
}

/// The file with what has been received of a blob.
pub(crate) fn partial_path(blob: &Path) -> PathBuf {
    let mut name = blob.as_os_str().to_owned();
    name.push(".incomplete");
    name.into()
}

/// Bytes per read.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}
