//! Saved sequences: a header, the rows of every token, a checksum.
//!
//! ```text
//!  0  "SLKV"           magic
//!  4  u32 5            version of this layout
//!  8  [u8; 32]         identity of the weights
//! 40  u64              fingerprint of the state's shape
//! 48  u32              n_tokens
//! 52  u32 × 8          the first position that each group of layers still has
//! 84  rows             per group: per token, layer, head: key, then value
//!  …  f32 …            the recurrent state, in a model that has some
//!  …  u64              hash of everything before
//! ```
//!
//! Little endian. Rows ([`crate::kernels::kv`]) are stored as the cache holds them, so a restored
//! sequence continues with the same bits; the places of pages do not matter.

use super::config::{GROUPS_MAX, GroupConfig};
use super::error::{SNAPSHOT_VERSION as VERSION, SnapshotError, StateError};
use super::{Identity, PAGE_TOKENS, State, StateConfig};
use crate::hash::Hash64;
use core::ops::Range;

const MAGIC: [u8; 4] = *b"SLKV";
const HEADER_BYTES: usize = 52 + 4 * GROUPS_MAX;
const CHECKSUM_BYTES: usize = 8;

/// The tokens that a header describes.
#[derive(Clone, Copy)]
struct Extent {
    n_tokens: usize,
    /// The first position of each group.
    firsts: [usize; GROUPS_MAX],
}

impl StateConfig {
    /// Bytes of a snapshot; `None` beyond the address space.
    fn saved_bytes(&self, extent: &Extent) -> Option<usize> {
        let mut bytes = HEADER_BYTES + CHECKSUM_BYTES;
        for (group, first) in self.groups.iter().zip(extent.firsts) {
            let rows = extent.n_tokens.checked_sub(first)?;
            bytes = bytes.checked_add(rows.checked_mul(group.token_bytes())?)?;
        }
        let states = if extent.n_tokens > 0 {
            self.state_len
        } else {
            0
        };
        bytes.checked_add(states.checked_mul(size_of::<f32>())?)
    }

    fn header(&self, identity: &Identity, extent: &Extent) -> [u8; HEADER_BYTES] {
        let word = |n: usize| {
            u32::try_from(n)
                .expect("positions are 32-bit")
                .to_le_bytes()
        };
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&VERSION.to_le_bytes());
        header[8..40].copy_from_slice(&identity.0);
        header[40..48].copy_from_slice(&self.fingerprint().to_le_bytes());
        header[48..52].copy_from_slice(&word(extent.n_tokens));
        for (bytes, first) in header[52..].chunks_exact_mut(4).zip(extent.firsts) {
            bytes.copy_from_slice(&word(first));
        }
        header
    }

    /// Checks a snapshot; returns its extent, and the bytes between header and checksum.
    fn verify<'b>(
        &self,
        identity: &Identity,
        bytes: &'b [u8],
    ) -> Result<(Extent, &'b [u8]), SnapshotError> {
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(*bytes.get(at..at + 4)?.first_chunk()?))
        };
        if bytes.len() < 8 || bytes[..4] != MAGIC {
            return Err(SnapshotError::NotASnapshot);
        }
        match word(4) {
            Some(VERSION) => {}
            version => return Err(SnapshotError::Version(version.unwrap_or(0))),
        }
        if bytes.len() < HEADER_BYTES + CHECKSUM_BYTES {
            return Err(SnapshotError::NotASnapshot);
        }
        let number = |at: usize| word(at).map_or(0, |n| n as usize);
        let extent = Extent {
            n_tokens: number(48),
            firsts: core::array::from_fn(|i| number(52 + 4 * i)),
        };
        let header = self.header(identity, &extent);
        if bytes[8..40] != header[8..40] {
            return Err(SnapshotError::OtherModel);
        }
        if bytes[40..48] != header[40..48] {
            return Err(SnapshotError::OtherShape);
        }
        // Rows begin with a page; groups that do not exist have none.
        let n_groups = self.groups.len();
        let is_odd = |(i, &first): (usize, &usize)| {
            !first.is_multiple_of(PAGE_TOKENS)
                || first > extent.n_tokens
                || i >= n_groups && first > 0
        };
        if extent.firsts.iter().enumerate().any(is_odd) {
            return Err(SnapshotError::OtherShape);
        }
        let (expected, found) = (self.saved_bytes(&extent).unwrap_or(usize::MAX), bytes.len());
        if found != expected {
            return Err(SnapshotError::Length { expected, found });
        }
        let (body, checksum) = bytes.split_at(expected - CHECKSUM_BYTES);
        let mut hash = Hash64::new();
        hash.write(body);
        if checksum != hash.finish().to_le_bytes() {
            return Err(SnapshotError::Checksum);
        }
        Ok((extent, &body[HEADER_BYTES..]))
    }
}

impl GroupConfig {
    /// Every (position, layer, head) in the order of a snapshot.
    fn cells(
        &self,
        positions: Range<usize>,
    ) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let (n_layer, n_head_kv) = (self.n_layer, self.n_head_kv);
        let first = positions.start;
        (0..positions.len() * n_layer * n_head_kv).map(move |i| {
            (
                first + i / n_head_kv / n_layer,
                i / n_head_kv % n_layer,
                i % n_head_kv,
            )
        })
    }
}

impl State<'_> {
    fn extent(&self, sequence: u32) -> Extent {
        let mut firsts = [0; GROUPS_MAX];
        for (first, group) in firsts.iter_mut().zip(&self.groups) {
            *first = group.first(sequence as usize) * PAGE_TOKENS;
        }
        Extent {
            n_tokens: self.len(sequence),
            firsts,
        }
    }

    /// Bytes that [`Self::save`] writes for a sequence; 0 for one that does not exist.
    pub fn saved_bytes(&self, sequence: u32) -> usize {
        if self.check(sequence).is_err() {
            return 0;
        }
        let bytes = self.config.saved_bytes(&self.extent(sequence));
        bytes.unwrap_or(usize::MAX)
    }

    /// Saves a sequence, which was computed with the weights `identity`, into `out`; returns the bytes written.
    ///
    /// # Errors
    /// An unknown sequence, or `out` too small.
    pub fn save(
        &self,
        sequence: u32,
        identity: &Identity,
        out: &mut [u8],
    ) -> Result<usize, StateError> {
        let s = self.check(sequence)?;
        let needed = self.saved_bytes(sequence);
        let small = StateError::Snapshot(SnapshotError::TooSmall { needed });
        let out = out.get_mut(..needed).ok_or(small)?;
        let extent = self.extent(sequence);
        let (body, checksum) = out.split_at_mut(needed - CHECKSUM_BYTES);
        let (header, mut rest) = body.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&self.config.header(identity, &extent));
        for (group, first) in self.groups.iter().zip(extent.firsts) {
            let (layout, view) = (group.config.layout, group.view());
            let bytes = (extent.n_tokens - first) * group.config.token_bytes();
            let (rows, behind) = rest.split_at_mut(bytes);
            rest = behind;
            let rows = rows.chunks_exact_mut(layout.k_row_bytes() + layout.v_row_bytes());
            let cells = group.config.cells(first..extent.n_tokens);
            for ((position, layer, head), row) in cells.zip(rows) {
                // SAFETY: `&self` outside of a step: a step borrows the state exclusively.
                let block = unsafe { view.block(s, position / PAGE_TOKENS, layer, head) };
                let (key, value) = row.split_at_mut(layout.k_row_bytes());
                layout.key_row(block, position % PAGE_TOKENS, key);
                layout.value_row(block, position % PAGE_TOKENS, value);
            }
        }
        if let Some(kept) = self.slots.kept(s).next().filter(|_| !rest.is_empty()) {
            for (bytes, x) in rest.chunks_exact_mut(4).zip(self.slots.read(kept)) {
                bytes.copy_from_slice(&x.to_le_bytes());
            }
        }
        let mut hash = Hash64::new();
        hash.write(body);
        checksum.copy_from_slice(&hash.finish().to_le_bytes());
        Ok(needed)
    }

    /// Restores a saved sequence, computed with the weights `identity`, into the empty `sequence`.
    ///
    /// # Errors
    /// A sequence that is unknown or not empty, too few free pages, or bytes that were not
    /// saved from this model and shape or are damaged. The state is unchanged then.
    pub fn restore(
        &mut self,
        sequence: u32,
        identity: &Identity,
        bytes: &[u8],
    ) -> Result<(), StateError> {
        let s = self.check(sequence)?;
        if self.lens[s] != 0 {
            return Err(StateError::NotEmpty { sequence });
        }
        let verified = self.config.verify(identity, bytes);
        let (extent, mut rest) = verified.map_err(StateError::Snapshot)?;
        let n_tokens = extent.n_tokens;
        self.reserve_pages(s, n_tokens, &extent.firsts)?;
        for (group, first) in self.groups.iter().zip(extent.firsts) {
            let (layout, view) = (group.config.layout, group.view());
            let (rows, behind) = rest.split_at((n_tokens - first) * group.config.token_bytes());
            rest = behind;
            let rows = rows.chunks_exact(layout.k_row_bytes() + layout.v_row_bytes());
            for ((position, layer, head), row) in group.config.cells(first..n_tokens).zip(rows) {
                let (key, value) = row.split_at(layout.k_row_bytes());
                let block = view.pointer(s, position / PAGE_TOKENS, layer, head);
                // SAFETY: the page was reserved for this sequence alone; `&mut self`: no worker runs.
                unsafe { layout.put_key_row(block, position % PAGE_TOKENS, key) };
                // SAFETY: as above.
                unsafe { layout.put_value_row(block, position % PAGE_TOKENS, value) };
            }
        }
        if !rest.is_empty() {
            self.slots.restore(s, n_tokens, |state| {
                for (x, bytes) in state.iter_mut().zip(rest.as_chunks().0) {
                    *x = f32::from_le_bytes(*bytes);
                }
            });
        }
        self.set_len(s, n_tokens);
        Ok(())
    }

    /// Takes the pages of a saved sequence, from each group's first position on.
    fn reserve_pages(
        &mut self,
        s: usize,
        n_tokens: usize,
        firsts: &[usize],
    ) -> Result<(), StateError> {
        let pages = n_tokens.div_ceil(PAGE_TOKENS);
        if pages > self.config.n_table {
            let free = self.free_pages();
            return Err(StateError::Full {
                needed: pages,
                free,
            });
        }
        for (group, first) in self.groups.iter().zip(firsts) {
            let first = first / PAGE_TOKENS;
            if !group.sees_from(first, n_tokens) {
                return Err(StateError::Snapshot(SnapshotError::OtherShape));
            }
            let (needed, free) = (pages - first, group.n_free());
            if needed > free {
                return Err(StateError::Full { needed, free });
            }
        }
        for (group, first) in self.groups.iter_mut().zip(firsts) {
            group.skip(s, first / PAGE_TOKENS);
            group.reserve(s, *first, n_tokens - first);
        }
        Ok(())
    }
}
