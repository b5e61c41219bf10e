//! A text on disk: its tokens, and their keys and values.
//!
//! ```text
//!  0  "SLPC"           magic
//!  4  u32 2            version of this layout
//!  8  u64              n_tokens
//! 16  [u8; 32]         tag of the text's salt
//! 48  u32 (n_tokens)   tokens
//!  …  saved sequence   of core's KV cache: model, shape and a checksum of its own
//!  …  [u8; 32]         tag of the file's name, the header with the tokens, and the saved sequence
//! ```
//!
//! Little endian; tags are made with the key of the file's folder ([`FolderKey`]). A restored text continues with the
//! same bits as the one that was saved.

use super::{GenerateError, Generator};
use crate::file::{
    FolderKey, OutputError, OutputFile, PrivateFileError, PrivateFileProblem, open_plain,
};
use crate::session::SavedText;
use core::fmt;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: [u8; 4] = *b"SLPC";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 48;
const TAG_BYTES: usize = 32;

/// A text, and who may find it.
#[derive(Clone, Debug)]
pub struct PromptCache {
    /// The text.
    pub text: SavedText,
    /// Its salt.
    pub salt: CacheSalt,
}

/// A text's salt: only requests with the same one may continue it.
#[derive(Clone)]
pub enum CacheSalt {
    /// As it was requested; empty for none.
    Plain(Arc<str>),
    /// As it was saved: its tag with the key of the file's folder.
    Sealed {
        /// The key.
        key: FolderKey,
        /// The tag.
        tag: [u8; TAG_BYTES],
    },
}

/// Why a prompt cache was not read or written.
#[derive(Debug, thiserror::Error)]
#[error("prompt cache {}: {problem}", path.display())]
pub struct PromptCacheError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub problem: Box<PromptCacheProblem>,
}

/// The reason why a prompt cache was not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum PromptCacheProblem {
    /// The key of its folder cannot be used.
    #[error("its folder is not used: {0}")]
    Key(#[from] PrivateFileError),
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] PrivateFileProblem),
    /// It is not a prompt cache.
    #[error("it is not a prompt cache")]
    NotACache,
    /// A version wrote it that did not authenticate prompt caches.
    #[error("it is from an older version of Sluice")]
    Older,
    /// Another version wrote it.
    #[error("it has version {version}, expected {VERSION}")]
    Version { version: u32 },
    /// It was truncated.
    #[error("it is damaged: it is truncated")]
    Truncated,
    /// The key of its folder does not authenticate it.
    #[error(
        "it is damaged, or was renamed or moved here, or the key of its folder (.sluice-key) was replaced: remove it"
    )]
    Changed,
    /// It was saved for requests with a salt, and a generator has none.
    #[error("it belongs to requests with a cache_salt")]
    Salted,
    /// The text's salt is known only by its tag in another folder.
    #[error(
        "the text was restored from a folder with another key, and cannot be saved in this one"
    )]
    OtherKey,
    /// It holds more tokens than the context.
    #[error("it holds {n_tokens} tokens, more than the context of {n_ctx} (-c)")]
    TooLong { n_tokens: usize, n_ctx: usize },
    /// It is for another model, KV type or shape.
    #[error("it cannot be used: {0}")]
    Unusable(GenerateError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] OutputError),
}

impl From<GenerateError> for PromptCacheProblem {
    fn from(error: GenerateError) -> Self {
        match error {
            GenerateError::TooLong { n_tokens, n_ctx } => Self::TooLong { n_tokens, n_ctx },
            error => Self::Unusable(error),
        }
    }
}

impl CacheSalt {
    /// Whether it is this one.
    #[must_use]
    pub fn is(&self, salt: &str) -> bool {
        match self {
            Self::Plain(own) => **own == *salt,
            Self::Sealed { key, tag } => key.verifies(&tagged(salt), tag),
        }
    }

    fn tag(&self, folder: &FolderKey) -> Result<[u8; TAG_BYTES], PromptCacheProblem> {
        match self {
            Self::Plain(salt) => Ok(folder.tag(&tagged(salt))),
            Self::Sealed { key, tag } if key == folder => Ok(*tag),
            Self::Sealed { .. } => Err(PromptCacheProblem::OtherKey),
        }
    }
}

fn tagged(salt: &str) -> [&[u8]; 2] {
    [b"salt", salt.as_bytes()]
}

impl fmt::Debug for CacheSalt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheSalt").finish_non_exhaustive()
    }
}

impl PromptCache {
    /// Reads the file at `path`, which must not be a link; `None` if it does not exist or is empty.
    ///
    /// # Errors
    /// [`PromptCacheError`].
    pub fn read(path: &Path) -> Result<Option<Self>, PromptCacheError> {
        let read = || match read_bytes(path)? {
            bytes if bytes.is_empty() => Ok(None),
            bytes => Self::parse(path, bytes).map(Some),
        };
        read().map_err(|problem| problem.at(path))
    }

    /// Writes the file at `path`, which must not be a link, and returns its length in bytes. Replaces only prompt
    /// caches.
    ///
    /// # Errors
    /// [`PromptCacheError`]; what was at `path` is then still there.
    pub fn write(&self, path: &Path) -> Result<u64, PromptCacheError> {
        self.try_write(path).map_err(|problem| problem.at(path))
    }

    fn try_write(&self, path: &Path) -> Result<u64, PromptCacheProblem> {
        if fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
            return Err(PrivateFileProblem::NotRegular.into());
        }
        let output = OutputFile::replacing(path, &MAGIC)?;
        let key = FolderKey::open(folder_of(path))?;
        let SavedText { tokens, state } = &self.text;
        let mut head = Vec::with_capacity(HEADER_BYTES + 4 * tokens.len());
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend((tokens.len() as u64).to_le_bytes());
        head.extend(self.salt.tag(&key)?);
        head.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
        let tag = key.tag(&[&MAGIC, name_of(path), &head, state]);
        let mut offset = 0;
        for part in [&head[..], state, &tag] {
            output.write_at(offset, part)?;
            offset += part.len() as u64;
        }
        output.finish()?;
        Ok(offset)
    }

    fn parse(path: &Path, mut bytes: Vec<u8>) -> Result<Self, PromptCacheProblem> {
        if !bytes.starts_with(&MAGIC) {
            return Err(PromptCacheProblem::NotACache);
        }
        let version = bytes[4..].first_chunk().copied();
        match version.map(u32::from_le_bytes) {
            None => return Err(PromptCacheProblem::Truncated),
            Some(VERSION) => {}
            Some(1) => return Err(PromptCacheProblem::Older),
            Some(version) => return Err(PromptCacheProblem::Version { version }),
        }
        let body = bytes.split_last_chunk();
        let (body, tag) = body.ok_or(PromptCacheProblem::Truncated)?;
        let n_tokens = body.get(8..).and_then(|rest| rest.first_chunk().copied());
        let n_tokens = n_tokens.and_then(|n| usize::try_from(u64::from_le_bytes(n)).ok());
        let len = n_tokens.and_then(|n| n.checked_mul(4)?.checked_add(HEADER_BYTES));
        let parts = len.and_then(|len| body.split_at_checked(len));
        let (head, state) = parts.ok_or(PromptCacheProblem::Truncated)?;
        let key = FolderKey::existing(folder_of(path))?;
        let key = key.filter(|key| key.verifies(&[&MAGIC, name_of(path), head, state], tag));
        let key = key.ok_or(PromptCacheProblem::Changed)?;
        let tokens = head[HEADER_BYTES..].as_chunks().0.iter();
        let tokens = tokens.map(|&token| u32::from_le_bytes(token)).collect();
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&head[16..HEADER_BYTES]);
        // In place: a long text's state takes gigabytes.
        let (n_head, n_body) = (head.len(), body.len());
        bytes.truncate(n_body);
        bytes.drain(..n_head);
        Ok(Self {
            text: SavedText {
                tokens,
                state: bytes,
            },
            salt: CacheSalt::Sealed { key, tag },
        })
    }
}

impl PromptCacheProblem {
    fn at(self, path: &Path) -> PromptCacheError {
        PromptCacheError {
            path: path.into(),
            problem: self.into(),
        }
    }
}

impl Generator {
    /// Replaces the context by the one in the file at `path`; returns its number of tokens. `None`,
    /// without a change, if the file does not exist or is empty.
    ///
    /// # Errors
    /// [`PromptCacheError`]; the context is then empty or as before.
    pub fn restore(&mut self, path: &Path) -> Result<Option<usize>, PromptCacheError> {
        let Some(cache) = PromptCache::read(&resolved(path))? else {
            return Ok(None);
        };
        let mut restore = || {
            if !cache.salt.is("") {
                return Err(PromptCacheProblem::Salted);
            }
            self.session.truncate(&mut self.sequence, 0)?;
            self.pending = None;
            Ok(self.session.restore(&mut self.sequence, &cache.text)?)
        };
        restore().map_err(|problem| problem.at(path))?;
        Ok(Some(cache.text.tokens.len()))
    }

    /// Writes the context to `path`. Replaces only prompt caches.
    ///
    /// # Errors
    /// [`PromptCacheError`]; what was at `path` is then still there.
    pub fn save(&self, path: &Path) -> Result<(), PromptCacheError> {
        let text = self.session.save(&self.sequence);
        let text = text.map_err(|error| PromptCacheProblem::from(error).at(path))?;
        let salt = CacheSalt::Plain(Arc::from(""));
        PromptCache { text, salt }.write(&resolved(path)).map(drop)
    }
}

/// The file that a link names.
fn resolved(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.into())
}

/// The folder of a file.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent();
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn name_of(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_bytes()
}

/// All bytes of a file that begins as a cache does; of another, only the beginning; none of one that does not exist.
fn read_bytes(path: &Path) -> Result<Vec<u8>, PrivateFileProblem> {
    let mut file = match open_plain(path) {
        Err(PrivateFileProblem::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Vec::new());
        }
        opened => opened?,
    };
    let found = file.metadata()?.len();
    let mut bytes = Vec::new();
    (&mut file)
        .take(MAGIC.len() as u64)
        .read_to_end(&mut bytes)?;
    if bytes == MAGIC {
        let len = usize::try_from(found).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(len).map_err(io::Error::from)?;
        file.take(found).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
