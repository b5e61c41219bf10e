//! Saved sequences: a header, the rows of every token, a checksum.
//!
//! ```text
//!  0  "SLKV"           magic
//!  4  u32 2            version of this layout
//!  8  u64              fingerprint of the model
//! 16  u32 × 6          types (keys', then 256 times values'), n_layer, n_head_kv, head_dim_k,
//!                      head_dim_v, n_tokens
//! 40  rows             per token, layer, head: key, then value
//!  …  u64              hash of everything before
//! ```
//!
//! Little endian. Rows ([`crate::kernels::kv`]) are stored as the cache holds them, so a restored
//! sequence continues with the same bits; where pages lie does not matter.

use super::{KvCache, KvConfig, KvError, PAGE_TOKENS};
use crate::hash::Hash64;
use core::fmt;

const MAGIC: [u8; 4] = *b"SLKV";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 40;
const CHECKSUM_BYTES: usize = 8;

/// Why saved bytes cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Not a saved sequence.
    NotASnapshot,
    /// Written by another version.
    Version(u32),
    /// Saved from another model.
    OtherModel,
    /// Saved from a cache of another element type or shape.
    OtherShape,
    /// Shorter or longer than its header says.
    Length {
        /// Bytes that the header implies.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The bytes were damaged.
    Checksum,
    /// The memory given to save into is too small.
    TooSmall {
        /// Bytes needed.
        needed: usize,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotASnapshot => f.write_str("not a saved KV sequence"),
            Self::Version(version) => {
                write!(
                    f,
                    "saved KV sequence of version {version}, expected {VERSION}"
                )
            }
            Self::OtherModel => f.write_str("the KV sequence was saved from another model"),
            Self::OtherShape => {
                f.write_str("the KV sequence was saved from a cache of another type or shape")
            }
            Self::Length { expected, found } => {
                write!(f, "a saved KV sequence of {expected} bytes has {found}")
            }
            Self::Checksum => f.write_str("the saved KV sequence is damaged (checksum)"),
            Self::TooSmall { needed } => write!(f, "saving needs {needed} bytes"),
        }
    }
}

impl core::error::Error for SnapshotError {}

impl KvConfig {
    const fn token_bytes(&self) -> usize {
        let head = self.layout.k_row_bytes() + self.layout.v_row_bytes();
        head * self.n_layer * self.n_head_kv
    }

    fn header(&self, fingerprint: u64, n_tokens: usize) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&VERSION.to_le_bytes());
        header[8..16].copy_from_slice(&fingerprint.to_le_bytes());
        let layout = &self.layout;
        let fields = [
            layout.type_k as usize | (layout.type_v as usize) << 8,
            self.n_layer,
            self.n_head_kv,
            layout.head_dim_k,
            layout.head_dim_v,
            n_tokens,
        ];
        for (bytes, field) in header[16..].chunks_exact_mut(4).zip(fields) {
            let field = u32::try_from(field).expect("model dimensions are below 2^24");
            bytes.copy_from_slice(&field.to_le_bytes());
        }
        header
    }
}

impl KvCache<'_> {
    /// Bytes that [`Self::save`] writes for a sequence.
    pub fn saved_bytes(&self, sequence: u32) -> usize {
        HEADER_BYTES + self.len(sequence) * self.config.token_bytes() + CHECKSUM_BYTES
    }

    /// Saves a sequence into `out` and returns the bytes written; `fingerprint` is
    /// [`crate::model::Model::fingerprint`].
    ///
    /// # Errors
    /// An unknown sequence, or `out` too small.
    pub fn save(&self, sequence: u32, fingerprint: u64, out: &mut [u8]) -> Result<usize, KvError> {
        let s = self.check(sequence)?;
        let needed = self.saved_bytes(sequence);
        let small = KvError::Snapshot(SnapshotError::TooSmall { needed });
        let out = out.get_mut(..needed).ok_or(small)?;
        let n_tokens = self.len(sequence);
        let (body, checksum) = out.split_at_mut(needed - CHECKSUM_BYTES);
        body[..HEADER_BYTES].copy_from_slice(&self.config.header(fingerprint, n_tokens));
        let (layout, view) = (self.config.layout, self.view());
        let (k_row_bytes, v_row_bytes) = (layout.k_row_bytes(), layout.v_row_bytes());
        let rows = body[HEADER_BYTES..].chunks_exact_mut(k_row_bytes + v_row_bytes);
        for ((position, layer, head), row) in self.config.cells(n_tokens).zip(rows) {
            // SAFETY: `&self` outside of a step: a step borrows the cache exclusively.
            let block = unsafe { view.block(s, position / PAGE_TOKENS, layer, head) };
            let (key, value) = row.split_at_mut(k_row_bytes);
            layout.key_row(block, position % PAGE_TOKENS, key);
            layout.value_row(block, position % PAGE_TOKENS, value);
        }
        let mut hash = Hash64::new();
        hash.write(body);
        checksum.copy_from_slice(&hash.finish().to_le_bytes());
        Ok(needed)
    }

    /// Restores a saved sequence into the empty `sequence`.
    ///
    /// # Errors
    /// A sequence that is unknown or not empty, too few free pages, or bytes that were not
    /// saved from this model and shape or are damaged. Nothing has changed then.
    pub fn restore(
        &mut self,
        sequence: u32,
        fingerprint: u64,
        bytes: &[u8],
    ) -> Result<(), KvError> {
        let s = self.check(sequence)?;
        if self.lens[s] != 0 {
            return Err(KvError::NotEmpty { sequence });
        }
        let (n_tokens, rows) = self
            .config
            .verify(fingerprint, bytes)
            .map_err(KvError::Snapshot)?;
        self.reserve(sequence, n_tokens)?;
        let layout = self.config.layout;
        let rows = rows.chunks_exact(layout.k_row_bytes() + layout.v_row_bytes());
        let view = self.view();
        for ((position, layer, head), row) in self.config.cells(n_tokens).zip(rows) {
            let (key, value) = row.split_at(layout.k_row_bytes());
            let block = view.pointer(s, position / PAGE_TOKENS, layer, head);
            // SAFETY: the page was reserved for this sequence alone; `&mut self`: no worker runs.
            unsafe { layout.put_key_row(block, position % PAGE_TOKENS, key) };
            // SAFETY: as above.
            unsafe { layout.put_value_row(block, position % PAGE_TOKENS, value) };
        }
        self.commit(sequence, n_tokens);
        Ok(())
    }
}

impl KvConfig {
    /// Every (position, layer, head) in the order of a snapshot.
    fn cells(&self, n_tokens: usize) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let (n_layer, n_head_kv) = (self.n_layer, self.n_head_kv);
        (0..n_tokens * n_layer * n_head_kv).map(move |i| {
            (
                i / n_head_kv / n_layer,
                i / n_head_kv % n_layer,
                i % n_head_kv,
            )
        })
    }

    /// Checks a snapshot; returns its number of tokens and their rows.
    fn verify<'b>(
        &self,
        fingerprint: u64,
        bytes: &'b [u8],
    ) -> Result<(usize, &'b [u8]), SnapshotError> {
        let field = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(*bytes.get(at..at + 4)?.first_chunk()?))
        };
        if bytes.len() < HEADER_BYTES + CHECKSUM_BYTES || bytes[..4] != MAGIC {
            return Err(SnapshotError::NotASnapshot);
        }
        let version = field(4).ok_or(SnapshotError::NotASnapshot)?;
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let n_tokens = field(36).ok_or(SnapshotError::NotASnapshot)? as usize;
        let header = self.header(fingerprint, n_tokens);
        if bytes[8..16] != header[8..16] {
            return Err(SnapshotError::OtherModel);
        }
        if bytes[16..36] != header[16..36] {
            return Err(SnapshotError::OtherShape);
        }
        let expected = n_tokens
            .checked_mul(self.token_bytes())
            .and_then(|n| n.checked_add(HEADER_BYTES + CHECKSUM_BYTES))
            .unwrap_or(usize::MAX);
        if bytes.len() != expected {
            return Err(SnapshotError::Length {
                expected,
                found: bytes.len(),
            });
        }
        let (body, checksum) = bytes.split_at(expected - CHECKSUM_BYTES);
        let mut hash = Hash64::new();
        hash.write(body);
        if checksum != hash.finish().to_le_bytes() {
            return Err(SnapshotError::Checksum);
        }
        Ok((n_tokens, &body[HEADER_BYTES..]))
    }
}
