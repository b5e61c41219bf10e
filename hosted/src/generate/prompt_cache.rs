//! A generator's context on disk: the tokens and their keys and values.
//!
//! ```text
//!  0  "SLPC"           magic
//!  4  u32 1            version of this layout
//!  8  u64              n_tokens
//! 16  u32 (n_tokens)   tokens
//!  …  saved sequence   of core's KV cache: model, shape and a checksum of its own
//!  …  u64              hash of everything before
//! ```
//!
//! Little endian. A restored context continues with the same bits as the one that was saved.

use super::{GenerateError, Generator};
use crate::file::{OutputError, OutputFile};
use crate::sequence::Sequence;
use crate::session::Session;
use sluice_core::engine::EngineError;
use sluice_core::hash::Hash64;
use sluice_core::state::StateError;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 4] = *b"SLPC";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;

/// Why a prompt cache was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum PromptCacheError {
    /// The file cannot be read.
    #[error("cannot read prompt cache {path}: {error}")]
    Read { path: PathBuf, error: io::Error },
    /// It is not a prompt cache.
    #[error("{path} is not a prompt cache")]
    NotACache { path: PathBuf },
    /// Another version wrote it.
    #[error("prompt cache {path} has version {version}, expected {}", VERSION)]
    Version { path: PathBuf, version: u32 },
    /// It was truncated, or its bytes were changed.
    #[error("prompt cache {path} is damaged: {what}")]
    Damaged { path: PathBuf, what: &'static str },
    /// It is for another model, KV type or shape.
    #[error("prompt cache {path} cannot be used: {error}")]
    Foreign { path: PathBuf, error: StateError },
    /// It holds more tokens than the context.
    #[error("prompt cache {path} holds {n_tokens} tokens, more than the context of {n_ctx} (-c)")]
    TooLong {
        path: PathBuf,
        n_tokens: usize,
        n_ctx: usize,
    },
    /// It cannot be written.
    #[error("prompt cache: {0}")]
    Write(OutputError),
    /// The engine refused.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

impl From<OutputError> for PromptCacheError {
    fn from(error: OutputError) -> Self {
        Self::Write(error)
    }
}

/// All bytes of a file that begins as a cache does; of another, only the beginning.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    (&mut file)
        .take(MAGIC.len() as u64)
        .read_to_end(&mut bytes)?;
    if bytes == MAGIC {
        let len = usize::try_from(found.len()).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(len)?;
        file.take(found.len()).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

impl Generator {
    /// Replaces the context by the one in the file at `path`; returns its number of tokens. `None`,
    /// without a change, if the file does not exist or is empty.
    ///
    /// # Errors
    /// [`PromptCacheError`]; the context is then empty or as before.
    pub fn restore(&mut self, path: &Path) -> Result<Option<usize>, PromptCacheError> {
        let restored = self.session.restore(&mut self.sequence, path)?;
        if restored.is_some() {
            self.pending = None;
        }
        Ok(restored)
    }

    /// Writes the context to `path`. Replaces only prompt caches.
    ///
    /// # Errors
    /// [`PromptCacheError`]; what was at `path` is then still there.
    pub fn save(&self, path: &Path) -> Result<(), PromptCacheError> {
        self.session.save(&self.sequence, path)
    }
}

impl Session {
    /// Replaces what a sequence has read by the contents of the file at `path`; returns its number of tokens. `None`,
    /// without a change, if the file does not exist or is empty.
    ///
    /// # Errors
    /// [`PromptCacheError`]; the sequence is then empty or as before.
    pub fn restore(
        &mut self,
        sequence: &mut Sequence,
        path: &Path,
    ) -> Result<Option<usize>, PromptCacheError> {
        let bytes = match read(path) {
            Ok(bytes) if bytes.is_empty() => return Ok(None),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let path = path.to_path_buf();
                return Err(PromptCacheError::Read { path, error });
            }
        };
        let (tokens, saved) = parse(path, &bytes)?;
        let path_buf = || path.to_path_buf();
        let n_ctx = self.limits().n_ctx;
        if tokens.len() > n_ctx {
            return Err(PromptCacheError::TooLong {
                path: path_buf(),
                n_tokens: tokens.len(),
                n_ctx,
            });
        }
        self.truncate(sequence, 0)?;
        let (slot, fingerprint) = (sequence.slot, self.fingerprint(sequence));
        let restored = self.with_state(|state| {
            state.restore(slot, fingerprint, saved)?;
            Ok(state.len(slot))
        });
        let n_restored = restored.map_err(|error| PromptCacheError::Foreign {
            path: path_buf(),
            error,
        })?;
        if n_restored != tokens.len() {
            self.truncate(sequence, 0)?;
            let what = "it has different numbers of tokens and keys";
            let path = path_buf();
            return Err(PromptCacheError::Damaged { path, what });
        }
        sequence.tokens = tokens;
        Ok(Some(sequence.tokens.len()))
    }

    /// Writes what a sequence has read to `path`. Replaces only prompt caches.
    ///
    /// # Errors
    /// [`PromptCacheError`]; what was at `path` is then still there.
    pub fn save(&self, sequence: &Sequence, path: &Path) -> Result<(), PromptCacheError> {
        let output = OutputFile::replacing(path, &MAGIC)?;
        let (tokens, slot, kv) = (sequence.tokens(), sequence.slot, self.state());
        let mut bytes = Vec::with_capacity(
            HEADER_BYTES + 4 * tokens.len() + kv.saved_bytes(slot) + CHECKSUM_BYTES,
        );
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((tokens.len() as u64).to_le_bytes());
        for token in tokens {
            bytes.extend(token.to_le_bytes());
        }
        let start = bytes.len();
        bytes.resize(start + kv.saved_bytes(slot), 0);
        let fingerprint = self.fingerprint(sequence);
        kv.save(slot, fingerprint, &mut bytes[start..])
            .map_err(|error| GenerateError::from(EngineError::from(error)))?;
        let hash = hash(&bytes);
        bytes.extend(hash.to_le_bytes());
        output.write_at(0, &bytes)?;
        output.finish()?;
        Ok(())
    }
}

/// The tokens and the saved sequence of a file, after a check of its checksum.
fn parse<'b>(path: &Path, bytes: &'b [u8]) -> Result<(Vec<u32>, &'b [u8]), PromptCacheError> {
    let path_buf = || path.to_path_buf();
    let damaged = |what| PromptCacheError::Damaged {
        path: path_buf(),
        what,
    };
    if !bytes.starts_with(&MAGIC) {
        return Err(PromptCacheError::NotACache { path: path_buf() });
    }
    if bytes.len() < HEADER_BYTES + CHECKSUM_BYTES {
        return Err(damaged("it is truncated"));
    }
    let version = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    if version != VERSION {
        return Err(PromptCacheError::Version {
            path: path_buf(),
            version,
        });
    }
    let (body, checksum) = bytes.split_at(bytes.len() - CHECKSUM_BYTES);
    if checksum != hash(body).to_le_bytes() {
        return Err(damaged("its checksum is wrong, or it is truncated"));
    }
    let (head, rest) = body.split_at(HEADER_BYTES);
    let n_tokens = head[8..]
        .first_chunk()
        .map_or(0, |&n| u64::from_le_bytes(n));
    let tokens_len = usize::try_from(n_tokens).ok();
    let tokens_len = tokens_len.and_then(|n| n.checked_mul(4));
    let parts = tokens_len.and_then(|len| rest.split_at_checked(len));
    let (tokens, saved) = parts.ok_or_else(|| damaged("it has fewer tokens than stated"))?;
    let (tokens, _) = tokens.as_chunks();
    let tokens = tokens.iter().map(|&token| u32::from_le_bytes(token));
    Ok((tokens.collect(), saved))
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hash = Hash64::new();
    hash.write(bytes);
    hash.finish()
}
