//! Hashing a model's file.

use super::Identity;
use crate::file::{FileStamp, HashRecords, ModelFile, TICK};
use sha2::{Digest as _, Sha256};
use sluice_core::gguf::source::{SourceError, TensorSource};
use std::time::Instant;

/// Why a model's file was not hashed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// It cannot be read.
    #[error("{name}: {error}")]
    Read {
        /// The file.
        name: String,
        /// Why not.
        error: SourceError,
    },
    /// It changed while it was read.
    #[error("{name} changed while it was read")]
    Changed {
        /// The file.
        name: String,
    },
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
}

/// The SHA-256 of the GGUF file that `file` reads as, read from its first byte to its last and remembered in `records`.
/// `go_on` is called with the number of bytes read so far about every MiB, and stops it with false.
///
/// # Errors
/// [`HashError`]. If a record cannot be written, the file is hashed again next time.
pub fn identify(
    file: &ModelFile,
    records: Option<&HashRecords>,
    go_on: impl FnMut(u64) -> bool,
) -> Result<Identity, HashError> {
    let name = || file.name().to_owned();
    let before = file.stamp();
    if before.is_some_and(FileStamp::is_fresh) {
        let start = Instant::now();
        while start.elapsed() < TICK {
            std::thread::park_timeout(TICK);
        }
    }
    let hash = sha256(file.source(), go_on).map_err(|error| HashError::Read {
        name: name(),
        error,
    })?;
    let hash = hash.ok_or(HashError::Stopped)?;
    if before.is_some() && !file.is_as_opened() {
        return Err(HashError::Changed { name: name() });
    }
    if let Some((stamp, records)) = before.zip(records) {
        let _recorded = records.record(stamp, hash);
    }
    Ok(hash)
}

/// The SHA-256 of all bytes of `source`; `None` if `go_on`, called with the number of bytes read so far, returned false.
///
/// # Errors
/// A part cannot be read.
pub fn sha256(
    source: &dyn TensorSource,
    mut go_on: impl FnMut(u64) -> bool,
) -> Result<Option<Identity>, SourceError> {
    let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE_BYTES]);
    let (mut at, end) = (0, source.len_bytes());
    while at < end {
        if !go_on(at) {
            return Ok(None);
        }
        let len = usize::try_from(end - at).map_or(PIECE_BYTES, |rest| rest.min(PIECE_BYTES));
        source.read(at, &mut piece[..len])?;
        hash.update(&piece[..len]);
        at += len as u64;
    }
    Ok(Some(Identity(hash.finalize().into())))
}

/// Bytes read at once: half a millisecond of hashing.
const PIECE_BYTES: usize = 1 << 20;
