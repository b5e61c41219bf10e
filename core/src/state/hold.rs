//! Pages and named recurrent states that a host holds without a sequence. Prefix caches are made of these.

use super::config::GROUPS_MAX;
use super::error::{SnapshotError, StateError};
use super::pages::{GIVEN_BACK, Pages};
use super::slots::Kept;
use super::{Identity, PAGE_TOKENS, State};
use crate::kernels::bytes::Pod;
use crate::memory::{Arena, MemoryError, MemoryPlan};
use core::borrow::Borrow;
use heapless::Vec;

/// Version of the layout of pages in bytes: they are read by the version that wrote them.
pub const PAGE_VERSION: u32 = 3;
const HEADER_BYTES: usize = 48;

/// A page of keys and values that a host holds: 64 positions in every group of layers. Give it back with
/// [`State::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a page that is not released stays taken"]
pub struct HeldPage {
    /// The page of each group.
    pages: Vec<u32, GROUPS_MAX>,
    /// The address of the state that holds it.
    owner: usize,
}

/// A named recurrent state.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Checkpoint {
    /// 1 where it is in use.
    used: u32,
    name: u32,
    /// The sequence that it was taken from, or [`NO_OWNER`].
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

    const fn new(name: u32, owner: u32, kept: Kept) -> Self {
        Self {
            used: 1,
            name,
            owner,
            len: kept.len,
            slot: kept.slot(),
        }
    }

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

    /// The state of a sequence after `len` tokens.
    pub(super) fn find(&self, sequence: u32, len: usize) -> Option<Kept> {
        let is_it = |entry: &&Checkpoint| {
            entry.used == 1 && entry.owner == sequence && entry.len as usize == len
        };
        self.entries.iter().find(is_it).map(Checkpoint::kept)
    }

    /// The lengths of a sequence's named states.
    pub(super) fn lens(&self, sequence: u32) -> impl Iterator<Item = usize> {
        let is_its = move |entry: &&Checkpoint| entry.used == 1 && entry.owner == sequence;
        let entries = self.entries.iter().filter(is_its);
        entries.map(|entry| entry.len as usize)
    }

    /// Detaches the named states beyond `len` from their sequence.
    pub(super) fn detach(&mut self, sequence: u32, len: usize) {
        for entry in self.entries.iter_mut() {
            if entry.owner == sequence && entry.len as usize > len {
                entry.owner = NO_OWNER;
            }
        }
    }

    /// Index of a free entry for a state of that name.
    fn unused(&self, name: u32) -> Result<usize, StateError> {
        if self.named(name).is_some() {
            return Err(StateError::NameTaken { name });
        }
        let n_checkpoints = self.entries.len();
        let mut entries = self.entries.iter();
        let free = entries.position(|entry| entry.used == 0);
        free.ok_or(StateError::NoCheckpoint { n_checkpoints })
    }

    fn named(&self, name: u32) -> Option<usize> {
        let mut entries = self.entries.iter();
        entries.position(|entry| entry.used == 1 && entry.name == name)
    }
}

impl State<'_> {
    /// Names the recurrent state at the end of a sequence, which is kept until [`Self::forget`]. Only this
    /// sequence can be rewound to it; others can begin with it ([`Self::attach`]). Does nothing in a model with
    /// attention only.
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
        let free = self.checkpoints.unused(name)?;
        self.checkpoints.entries[free] = Checkpoint::new(name, sequence, kept);
        self.slots.retain(kept);
        Ok(())
    }

    /// Removes a named state. Does nothing if the name is unknown.
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
        let is_gone = |group: &Pages<'_>| group.first(s) > index;
        if !is_full || !self.groups.is_empty() && self.groups.iter().all(is_gone) {
            return Err(StateError::NoPage { index });
        }
        let owner = self.owner();
        let groups = self.groups.iter_mut();
        Ok(HeldPage {
            pages: groups.map(|group| group.retain(s, index)).collect(),
            owner,
        })
    }

    /// Gives a held page back.
    ///
    /// # Panics
    /// If the page does not belong to this state.
    pub fn release(&mut self, page: HeldPage) {
        assert_eq!(page.owner, self.owner(), "the page is one of this state");
        for (group, page) in self.groups.iter_mut().zip(page.pages) {
            if page != GIVEN_BACK {
                group.drop_page(page);
            }
        }
    }

    /// Distinguishes this state's pages from the pages of other states: the address of its memory.
    fn owner(&self) -> usize {
        self.lens.as_ptr().addr()
    }

    fn check_owner(&self, page: &HeldPage) -> Result<(), StateError> {
        match page.owner == self.owner() {
            true => Ok(()),
            false => Err(StateError::ForeignPage),
        }
    }

    /// Makes the empty sequence begin with the tokens of held pages, in that order. A recurrent model continues
    /// from the named state, which has to be at their end.
    ///
    /// # Errors
    /// A sequence that is unknown or not empty, pages of another state, more pages than a sequence may have, a
    /// named state that is missing or is not at their end, or pages that a window has left and that would still
    /// be seen.
    pub fn attach(
        &mut self,
        sequence: u32,
        pages: &[impl Borrow<HeldPage>],
        state: Option<u32>,
    ) -> Result<(), StateError> {
        let s = self.check(sequence)?;
        if !self.is_empty(sequence) {
            return Err(StateError::NotEmpty { sequence });
        }
        let mut each = pages.iter();
        each.try_for_each(|page| self.check_owner(page.borrow()))?;
        let len = pages.len() * PAGE_TOKENS;
        if pages.len() > self.config.n_table {
            return Err(StateError::Full {
                needed: pages.len(),
                free: self.config.n_table,
            });
        }
        let kept = self.state_at(state, len)?;
        for (i, group) in self.groups.iter().enumerate() {
            let first = n_given_back(pages, i);
            if !group.sees_from(first, len) {
                return Err(StateError::NoPage { index: first });
            }
        }
        for (i, group) in self.groups.iter_mut().enumerate() {
            let first = n_given_back(pages, i);
            group.skip(s, first);
            for (index, page) in pages.iter().enumerate().skip(first) {
                group.attach(s, index, page.borrow().pages[i]);
            }
        }
        if let Some(kept) = kept {
            self.slots.put(s, kept);
        }
        self.set_len(s, len);
        Ok(())
    }

    /// The named state, which a recurrent model needs after `len` tokens.
    fn state_at(&self, state: Option<u32>, len: usize) -> Result<Option<Kept>, StateError> {
        if self.slots.is_empty() || len == 0 {
            return Ok(None);
        }
        let missing = StateError::NoState { len, name: state };
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

    /// Copies a held page to `out` ([`Self::page_bytes`]): version, model and shape in front, then the blocks of
    /// each group; groups that gave it back leave zeros. The bytes carry no checksum. `identity`
    /// stands for the weights that computed the page.
    ///
    /// # Errors
    /// A page of another state, or `out` of another length.
    pub fn read_page(
        &self,
        page: &HeldPage,
        identity: &Identity,
        out: &mut [u8],
    ) -> Result<(), StateError> {
        self.check_owner(page)?;
        check_len(self.page_bytes(), out)?;
        let (header, mut rest) = out.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&self.header(given_back(page), identity));
        for (group, &page) in self.groups.iter().zip(&page.pages) {
            let (bytes, behind) = rest.split_at_mut(group.config.page_bytes());
            rest = behind;
            match page {
                GIVEN_BACK => bytes.fill(0),
                page => group.read_page(page, bytes),
            }
        }
        Ok(())
    }

    /// Restores a held page from bytes that [`Self::read_page`] wrote.
    ///
    /// # Errors
    /// Bytes of another version, model, shape or length; no free page.
    pub fn write_page(
        &mut self,
        identity: &Identity,
        bytes: &[u8],
    ) -> Result<HeldPage, StateError> {
        check_len(self.page_bytes(), bytes)?;
        let (header, mut rest) = bytes.split_at(HEADER_BYTES);
        let gone = check_header(header, identity, self.config.fingerprint())?;
        let is_gone = |group: usize| gone >> group & 1 == 1;
        let mut taken = self.groups.iter().enumerate().filter(|(i, _)| !is_gone(*i));
        if taken.any(|(_, group)| group.n_free() == 0) {
            return Err(StateError::Full { needed: 1, free: 0 });
        }
        let owner = self.owner();
        let groups = self.groups.iter_mut().enumerate();
        let pages = groups.map(|(i, group)| {
            let (bytes, behind) = rest.split_at(group.config.page_bytes());
            rest = behind;
            let page = if is_gone(i) { None } else { group.take() };
            page.inspect(|page| group.write_page(*page, bytes))
                .unwrap_or(GIVEN_BACK)
        });
        Ok(HeldPage {
            pages: pages.collect(),
            owner,
        })
    }

    /// Bytes of a named state outside of the cache.
    pub fn state_bytes(&self) -> usize {
        HEADER_BYTES + size_of::<f32>() * self.config.state_len
    }

    /// Copies a named state to `out` ([`Self::state_bytes`]): version, number of tokens, model and shape, then
    /// its floats. The bytes carry no checksum.
    ///
    /// # Errors
    /// No state of that name, or `out` of another length.
    pub fn read_state(
        &self,
        name: u32,
        identity: &Identity,
        out: &mut [u8],
    ) -> Result<(), StateError> {
        let missing = StateError::NoState {
            len: 0,
            name: Some(name),
        };
        let index = self.checkpoints.named(name).ok_or(missing)?;
        let kept = self.checkpoints.entries[index].kept();
        check_len(self.state_bytes(), out)?;
        let (header, floats) = out.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&self.header(kept.len, identity));
        let (floats, _) = floats.as_chunks_mut();
        for (bytes, value) in floats.iter_mut().zip(self.slots.read(kept)) {
            *bytes = value.to_le_bytes();
        }
        Ok(())
    }

    /// Restores a named state from bytes that [`Self::read_state`] wrote; returns its number of tokens. It
    /// belongs to no sequence until one begins with it ([`Self::attach`]).
    ///
    /// # Errors
    /// Bytes of another version, model, shape or length; a name that is taken; no room for another checkpoint.
    pub fn write_state(
        &mut self,
        name: u32,
        identity: &Identity,
        bytes: &[u8],
    ) -> Result<usize, StateError> {
        check_len(self.state_bytes(), bytes)?;
        let (header, floats) = bytes.split_at(HEADER_BYTES);
        let len = check_header(header, identity, self.config.fingerprint())?;
        if self.slots.is_empty() || len == 0 {
            return Err(StateError::Snapshot(SnapshotError::OtherShape));
        }
        let free = self.checkpoints.unused(name)?;
        let kept = self.slots.hold(len, |state| {
            let (floats, _) = floats.as_chunks();
            for (value, bytes) in state.iter_mut().zip(floats) {
                *value = f32::from_le_bytes(*bytes);
            }
        });
        self.checkpoints.entries[free] = Checkpoint::new(name, NO_OWNER, kept);
        Ok(len as usize)
    }

    /// A header whose second word is `word`.
    fn header(&self, word: u32, identity: &Identity) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&PAGE_VERSION.to_le_bytes());
        header[4..8].copy_from_slice(&word.to_le_bytes());
        header[8..40].copy_from_slice(&identity.0);
        header[40..].copy_from_slice(&self.config.fingerprint().to_le_bytes());
        header
    }
}

/// Pages of a group, from the first one, that cannot be used: those up to the last that was given back.
fn n_given_back(pages: &[impl Borrow<HeldPage>], group: usize) -> usize {
    let last = pages
        .iter()
        .rposition(|page| page.borrow().pages[group] == GIVEN_BACK);
    last.map_or(0, |last| last + 1)
}

/// A bit for each group that gave a page back.
fn given_back(page: &HeldPage) -> u32 {
    let gone = page.pages.iter().enumerate();
    gone.fold(0, |bits, (i, page)| {
        bits | u32::from(*page == GIVEN_BACK) << i
    })
}

fn check_len(expected: usize, bytes: &[u8]) -> Result<(), StateError> {
    match bytes.len() {
        found if found == expected => Ok(()),
        found => Err(StateError::Snapshot(SnapshotError::Length {
            expected,
            found,
        })),
    }
}

/// Checks the header of a page's or a state's bytes; returns its second word.
fn check_header(header: &[u8], model: &Identity, shape: u64) -> Result<u32, StateError> {
    let word = |at: usize| {
        let word = header[at..].first_chunk();
        word.map_or(0, |word| u32::from_le_bytes(*word))
    };
    let error = if word(0) != PAGE_VERSION {
        SnapshotError::Version(word(0))
    } else if header[8..40] != model.0 {
        SnapshotError::OtherModel
    } else if header[40..48] != shape.to_le_bytes() {
        SnapshotError::OtherShape
    } else {
        return Ok(word(4));
    };
    Err(StateError::Snapshot(error))
}
