//! What a host holds without a sequence: pages, and named recurrent states. Prefix caches are made of these.

use super::config::GROUPS_MAX;
use super::error::{SnapshotError, StateError};
use super::pages::GIVEN_BACK;
use super::slots::Kept;
use super::{PAGE_TOKENS, State};
use crate::kernels::bytes::Pod;
use crate::memory::{Arena, MemoryError, MemoryPlan};
use heapless::Vec;

/// Version of the layout of pages in bytes: they are read by the version that wrote them.
pub const PAGE_VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;

/// A page of keys and values that a host holds: 64 positions in every group of layers. To be given back by
/// [`State::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a page that is not released stays taken"]
pub struct HeldPage(Vec<u32, GROUPS_MAX>);

/// A named recurrent state.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Checkpoint {
    /// 1 where it is in use.
    used: u32,
    name: u32,
    /// The sequence that it was taken of, or [`NO_OWNER`].
    owner: u32,
    len: u32,
    slot: u32,
}

// SAFETY: repr(C) of `u32` alone.
unsafe impl Pod for Checkpoint {}

const NO_OWNER: u32 = u32::MAX;

impl Checkpoint {
    const UNUSED: Self = Self {
        used: 0,
        name: 0,
        owner: 0,
        len: 0,
        slot: 0,
    };

    const fn kept(&self) -> Kept {
        Kept::of(self.len, self.slot)
    }
}

/// Named recurrent states.
#[derive(Debug)]
pub(super) struct Checkpoints<'m> {
    entries: &'m mut [Checkpoint],
}

impl<'m> Checkpoints<'m> {
    pub(super) fn plan(n: usize, plan: &mut MemoryPlan) -> Result<(), MemoryError> {
        plan.slice::<Checkpoint>(n)
    }

    pub(super) fn new(n: usize, arena: &mut Arena<'m>) -> Result<Self, MemoryError> {
        let entries = arena.slice(n, Checkpoint::UNUSED)?;
        Ok(Self { entries })
    }

    /// The state of a sequence behind so many tokens.
    pub(super) fn find(&self, sequence: u32, len: usize) -> Option<Kept> {
        let is_it = |entry: &&Checkpoint| {
            entry.used == 1 && entry.owner == sequence && entry.len as usize == len
        };
        self.entries.iter().find(is_it).map(Checkpoint::kept)
    }

    /// Those of a sequence beyond `len` are no longer behind its end.
    pub(super) fn detach(&mut self, sequence: u32, len: usize) {
        for entry in self.entries.iter_mut() {
            if entry.owner == sequence && entry.len as usize > len {
                entry.owner = NO_OWNER;
            }
        }
    }

    fn named(&self, name: u32) -> Option<usize> {
        let mut entries = self.entries.iter();
        entries.position(|entry| entry.used == 1 && entry.name == name)
    }
}

impl State<'_> {
    /// Names the recurrent state at the end of a sequence, which stays until [`Self::forget`]. The sequence
    /// can be rewound to it, and others can go on from it ([`Self::attach`]). In a model of attention alone
    /// there is nothing to name, and nothing happens.
    ///
    /// # Errors
    /// An unknown or empty sequence, a name that is taken, or no room for another checkpoint.
    pub fn checkpoint(&mut self, sequence: u32, name: u32) -> Result<(), StateError> {
        let s = self.check(sequence)?;
        if self.slots.is_empty() {
            return Ok(());
        }
        let len = self.len(sequence);
        let kept = self.slots.kept(s).next();
        let kept = kept.ok_or(StateError::OutOfRange { end: 1, len })?;
        let n_checkpoints = self.checkpoints.entries.len();
        if self.checkpoints.named(name).is_some() {
            return Err(StateError::NoCheckpoint { n_checkpoints });
        }
        let mut entries = self.checkpoints.entries.iter_mut();
        let entry = entries.find(|entry| entry.used == 0);
        let entry = entry.ok_or(StateError::NoCheckpoint { n_checkpoints })?;
        *entry = Checkpoint {
            used: 1,
            name,
            owner: sequence,
            len: kept.len,
            slot: kept.slot(),
        };
        self.slots.retain(kept);
        Ok(())
    }

    /// Forgets a named state. Unknown names are none's.
    pub fn forget(&mut self, name: u32) {
        if let Some(index) = self.checkpoints.named(name) {
            let entry = &mut self.checkpoints.entries[index];
            let checkpoint = core::mem::replace(entry, Checkpoint::UNUSED);
            self.slots.release(checkpoint.kept());
        }
    }

    /// Holds a full page of a sequence, the `index`th, without it.
    ///
    /// # Errors
    /// An unknown sequence, or a page that is not full or was given back in every group.
    pub fn retain(&mut self, sequence: u32, index: usize) -> Result<HeldPage, StateError> {
        let s = self.check(sequence)?;
        let is_full = index < self.len(sequence) / PAGE_TOKENS;
        let is_held = self.groups.iter().any(|group| group.first(s) <= index);
        if !is_full || !is_held {
            return Err(StateError::NoPage { index });
        }
        let groups = self.groups.iter_mut();
        Ok(HeldPage(
            groups.map(|group| group.retain(s, index)).collect(),
        ))
    }

    /// Gives a held page back.
    pub fn release(&mut self, page: HeldPage) {
        for (group, page) in self.groups.iter_mut().zip(page.0) {
            if page != GIVEN_BACK {
                group.drop_page(page);
            }
        }
    }

    /// Makes the empty sequence begin with the tokens of held pages, in that order. A recurrent model goes on
    /// from the named state, which has to stand at their end.
    ///
    /// # Errors
    /// A sequence that is unknown or not empty, more pages than a sequence may have, a state that is missing
    /// or stands elsewhere, or pages that a window has left and that would still be seen.
    pub fn attach(
        &mut self,
        sequence: u32,
        pages: &[HeldPage],
        state: Option<u32>,
    ) -> Result<(), StateError> {
        let s = self.check(sequence)?;
        if !self.is_empty(sequence) {
            return Err(StateError::NotEmpty { sequence });
        }
        let len = pages.len() * PAGE_TOKENS;
        if pages.len() > self.config.n_table {
            return Err(StateError::Full {
                needed: pages.len(),
                free: self.config.n_table,
            });
        }
        let kept = self.state_at(state, len)?;
        for (i, group) in self.groups.iter().enumerate() {
            let n_gone = pages.iter().rposition(|page| page.0[i] == GIVEN_BACK);
            let first = n_gone.map_or(0, |last| last + 1);
            if !group.sees_from(first, len) {
                return Err(StateError::NoPage { index: first });
            }
        }
        for (index, page) in pages.iter().enumerate() {
            for (group, &page) in self.groups.iter_mut().zip(&page.0) {
                group.attach(s, index, page);
            }
        }
        if let Some(kept) = kept {
            self.slots.put(s, kept);
        }
        self.set_len(s, len);
        Ok(())
    }

    /// The named state, which a recurrent model needs behind `len` tokens.
    fn state_at(&self, state: Option<u32>, len: usize) -> Result<Option<Kept>, StateError> {
        if self.slots.is_empty() || len == 0 {
            return Ok(None);
        }
        let missing = StateError::UnknownCheckpoint {
            name: state.unwrap_or(u32::MAX),
        };
        let index = state.and_then(|name| self.checkpoints.named(name));
        let kept = self.checkpoints.entries[index.ok_or(missing)?].kept();
        match kept.len as usize == len {
            true => Ok(Some(kept)),
            false => Err(missing),
        }
    }

    /// Bytes of a page outside of the cache.
    pub fn page_bytes(&self) -> usize {
        let groups = self.groups.iter().map(|group| group.config.page_bytes());
        HEADER_BYTES + groups.sum::<usize>()
    }

    /// Copies a held page to `out` ([`Self::page_bytes`]), version and shape in front; groups that gave it
    /// back leave zeros. The bytes carry no checksum.
    ///
    /// # Errors
    /// `out` of another length.
    pub fn read_page(&self, page: &HeldPage, out: &mut [u8]) -> Result<(), StateError> {
        let needed = self.page_bytes();
        if out.len() != needed {
            return Err(StateError::Snapshot(SnapshotError::TooSmall { needed }));
        }
        let (header, mut rest) = out.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&self.page_header(page));
        for (group, &page) in self.groups.iter().zip(&page.0) {
            let (bytes, behind) = rest.split_at_mut(group.config.page_bytes());
            rest = behind;
            match page {
                GIVEN_BACK => bytes.fill(0),
                page => group.read_page(page, bytes),
            }
        }
        Ok(())
    }

    /// A held page from bytes that [`Self::read_page`] gave.
    ///
    /// # Errors
    /// Bytes of another version, shape or length; no free page.
    pub fn write_page(&mut self, bytes: &[u8]) -> Result<HeldPage, StateError> {
        let snapshot = |error| Err(StateError::Snapshot(error));
        let (expected, found) = (self.page_bytes(), bytes.len());
        if found != expected {
            return snapshot(SnapshotError::Length { expected, found });
        }
        let word = |at: usize| {
            bytes[at..]
                .first_chunk()
                .map_or(0, |word| u32::from_le_bytes(*word))
        };
        if word(0) != PAGE_VERSION {
            return snapshot(SnapshotError::Version(word(0)));
        }
        if bytes[8..16] != self.config.fingerprint().to_le_bytes() {
            return snapshot(SnapshotError::OtherShape);
        }
        let is_gone = |group: usize| word(4) >> group & 1 == 1;
        if self.free_pages() == 0 {
            return Err(StateError::Full { needed: 1, free: 0 });
        }
        let mut rest = &bytes[HEADER_BYTES..];
        let groups = self.groups.iter_mut().enumerate();
        let pages = groups.map(|(i, group)| {
            let (bytes, behind) = rest.split_at(group.config.page_bytes());
            rest = behind;
            let page = if is_gone(i) { None } else { group.take() };
            page.inspect(|page| group.write_page(*page, bytes))
                .unwrap_or(GIVEN_BACK)
        });
        Ok(HeldPage(pages.collect()))
    }

    fn page_header(&self, page: &HeldPage) -> [u8; HEADER_BYTES] {
        let gone = page.0.iter().enumerate();
        let gone = gone.fold(0u32, |bits, (i, page)| {
            bits | u32::from(*page == GIVEN_BACK) << i
        });
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&PAGE_VERSION.to_le_bytes());
        header[4..8].copy_from_slice(&gone.to_le_bytes());
        header[8..].copy_from_slice(&self.config.fingerprint().to_le_bytes());
        header
    }
}
