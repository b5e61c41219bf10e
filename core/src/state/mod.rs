//! The state of sequences: keys and values in pages of 64 positions, and slots for recurrent states.
//!
//! Layers whose pages are alike form a group, with a pool of pages of its own; a sequence is a list of pages
//! in each, a length, and the recurrent states at its end and a few tokens before it. A fork shares pages and
//! states of its origin; a page is copied when a sequence is about to write into it while another holder has it
//! too. A host may hold pages without a sequence ([`State::retain`]), and name states ([`State::checkpoint`]).
//!
//! Positions of a sequence are always `0..len`: removing a range moves the tokens after it down and rotates its keys
//! back (context shift). A sequence is rewound to where its state is still kept ([`State::rewind`]).

mod config;
mod error;
mod hold;
mod identity;
mod pages;
mod shift;
mod slots;
mod snapshot;

pub use config::{GroupConfig, HEAD_DIM_MAX, KvRotation, StateConfig, StateLimits};
pub use error::{SnapshotError, StateError};
pub use hold::{HeldPage, PAGE_VERSION};
pub use identity::Identity;

use crate::kernels::contract::{KV_BLOCK, KV_SPLIT};
use crate::kernels::kv::KV_ROW_BYTES_MAX;
use crate::memory::{Arena, MemoryError, MemoryPlan};
use config::{GROUPS_MAX, Place};
use heapless::Vec;
use hold::Checkpoints;
use pages::Pages;
pub(crate) use pages::PagesView;
pub(crate) use slots::SlotsView;
use slots::{SlotSizes, Slots};

/// Positions in a page.
pub const PAGE_TOKENS: usize = KV_BLOCK;
/// Pages whose blocks are adjacent: a split of attention. A larger number would touch memory earlier than
/// tokens need it.
const RUN_PAGES: usize = KV_SPLIT / KV_BLOCK;

/// The state of many sequences.
#[derive(Debug)]
pub struct State<'m> {
    config: StateConfig,
    groups: Vec<Pages<'m>, GROUPS_MAX>,
    slots: Slots<'m>,
    checkpoints: Checkpoints<'m>,
    /// Tokens of each sequence.
    lens: &'m mut [u32],
    /// 1 for each sequence whose keys are rotated with the long divisors of a longrope model.
    long: &'m mut [u8],
}

/// Room for a key and a value while they are moved.
pub(super) struct Scratch {
    key: [f32; HEAD_DIM_MAX],
    value: [f32; HEAD_DIM_MAX],
    value_row: [u8; KV_ROW_BYTES_MAX],
}

impl StateConfig {
    /// Memory for pages, states and tables.
    ///
    /// # Errors
    /// [`MemoryError::TooLarge`], also for heads above [`HEAD_DIM_MAX`].
    pub fn plan(&self) -> Result<MemoryPlan, MemoryError> {
        let mut plan = MemoryPlan::new();
        if u32::try_from(self.state_len).is_err() {
            return Err(MemoryError::TooLarge);
        }
        for group in &self.groups {
            Pages::plan(group, self.limits.n_seq, self.n_table, &mut plan)?;
        }
        Slots::plan(self.slot_sizes(), &mut plan)?;
        Checkpoints::plan(self.limits.n_checkpoints, &mut plan)?;
        plan.slice::<u32>(self.limits.n_seq)?;
        plan.slice::<u8>(self.limits.n_seq)?;
        Ok(plan)
    }

    const fn slot_sizes(&self) -> SlotSizes {
        SlotSizes {
            n_slots: self.n_slots(),
            state_len: self.state_len,
            n_seq: self.limits.n_seq,
            n_kept: self.limits.n_behind + 1,
        }
    }
}

impl<'m> State<'m> {
    /// No tokens yet, in `memory` ([`StateConfig::plan`]). The memory need not be zeroed.
    ///
    /// # Errors
    /// Memory that is misaligned or too small.
    pub fn new(config: StateConfig, memory: &'m mut [u8]) -> Result<Self, MemoryError> {
        let mut arena = Arena::new(memory)?;
        config.plan()?;
        let (n_seq, n_table) = (config.limits.n_seq, config.n_table);
        let groups = config.groups.iter();
        Ok(Self {
            groups: groups
                .map(|group| Pages::new(group, n_seq, n_table, &mut arena))
                .collect::<Result<_, _>>()?,
            slots: Slots::new(config.slot_sizes(), &mut arena)?,
            checkpoints: Checkpoints::new(config.limits.n_checkpoints, &mut arena)?,
            lens: arena.slice(config.limits.n_seq, 0u32)?,
            long: arena.slice(config.limits.n_seq, 0u8)?,
            config,
        })
    }

    /// The state's shape.
    pub const fn config(&self) -> &StateConfig {
        &self.config
    }

    /// Tokens in a sequence; 0 for one that does not exist.
    pub fn len(&self, sequence: u32) -> usize {
        self.lens
            .get(sequence as usize)
            .map_or(0, |&len| len as usize)
    }

    /// Whether a sequence has no tokens.
    pub fn is_empty(&self, sequence: u32) -> bool {
        self.len(sequence) == 0
    }

    /// Whether a sequence's keys are rotated with the long divisors of a longrope model; false for one that does not
    /// exist.
    pub fn is_long(&self, sequence: u32) -> bool {
        self.long.get(sequence as usize) == Some(&1)
    }

    /// Sets which divisors an empty sequence is computed with.
    ///
    /// # Errors
    /// An unknown sequence, or one that is not empty.
    pub fn set_long(&mut self, sequence: u32, is_long: bool) -> Result<(), StateError> {
        let s = self.check(sequence)?;
        if self.lens[s] != 0 {
            return Err(StateError::NotEmpty { sequence });
        }
        self.long[s] = u8::from(is_long);
        Ok(())
    }

    /// Free pages, in the group that has the fewest.
    pub fn free_pages(&self) -> usize {
        let free = self.groups.iter().map(Pages::n_free);
        free.min().unwrap_or(self.config.n_table)
    }

    /// Pages that `n` more tokens of a sequence take, in the group that needs most; 0 for one that does not exist.
    pub fn pages_needed(&self, sequence: u32, n: usize) -> usize {
        let Ok(s) = self.check(sequence) else {
            return 0;
        };
        let len = self.lens[s] as usize;
        let needed = self.groups.iter().map(|group| group.needed(s, len, n));
        needed.max().unwrap_or(0)
    }

    /// Removes all tokens of a sequence.
    ///
    /// # Errors
    /// [`StateError::UnknownSequence`].
    pub fn clear(&mut self, sequence: u32) -> Result<(), StateError> {
        self.rewind(sequence, 0)
    }

    /// Keeps the first `len` tokens of a sequence. Any length can be reached in a model of attention whose
    /// pages are all kept; recurrent states are kept for the last few tokens and at checkpoints.
    ///
    /// # Errors
    /// An unknown sequence, one shorter than `len`, or [`StateError::CannotRewind`] with the nearest length
    /// that can be reached.
    pub fn rewind(&mut self, sequence: u32, len: usize) -> Result<(), StateError> {
        let s = self.check(sequence)?;
        let old = self.lens[s] as usize;
        if len > old {
            return Err(StateError::OutOfRange { end: len, len: old });
        }
        if !self.is_kept(s, len) {
            let nearest = self.nearest_kept(s, len);
            return Err(StateError::CannotRewind { len, nearest });
        }
        if !self.slots.is_empty() && len < old {
            let is_behind = self.slots.kept(s).any(|kept| kept.len as usize == len);
            let named = self.checkpoints.find(sequence, len);
            self.slots.rewind(s, len);
            if let (false, Some(kept)) = (is_behind, named) {
                self.slots.put(s, kept);
            }
            self.checkpoints.detach(sequence, len);
        }
        for group in &mut self.groups {
            group.truncate(s, old, len);
        }
        self.set_len(s, len);
        Ok(())
    }

    /// Whether a sequence can continue after `len` of its tokens.
    fn is_kept(&self, s: usize, len: usize) -> bool {
        if len == 0 || len == self.lens[s] as usize {
            return true;
        }
        let sequence = u32::try_from(s).expect("checked");
        let has_state = self.slots.is_empty()
            || self.slots.kept(s).any(|kept| kept.len as usize == len)
            || self.checkpoints.find(sequence, len).is_some();
        has_state && self.groups.iter().all(|group| group.can_rewind(s, len))
    }

    /// The greatest length below `len` that a sequence can be rewound to. Without recurrent layers, only 0:
    /// the pages that a shorter text sees have been given back too.
    fn nearest_kept(&self, s: usize, len: usize) -> usize {
        let sequence = u32::try_from(s).expect("checked");
        let behind = self.slots.kept(s).map(|kept| kept.len as usize);
        let lens = behind.chain(self.checkpoints.lens(sequence));
        let reachable = lens.filter(|&other| other < len && self.is_kept(s, other));
        reachable.max().unwrap_or(0)
    }

    /// Makes the empty sequence `to` a copy of `from`. Costs no page until one of them grows.
    ///
    /// # Errors
    /// An unknown sequence, or a target that is not empty.
    pub fn fork(&mut self, from: u32, to: u32) -> Result<(), StateError> {
        let (s, t) = (self.check(from)?, self.check(to)?);
        if self.lens[t] != 0 {
            return Err(StateError::NotEmpty { sequence: to });
        }
        let len = self.lens[s];
        for group in &mut self.groups {
            group.fork(s, t, len as usize);
        }
        if !self.slots.is_empty() {
            self.slots.fork(s, t);
        }
        (self.lens[t], self.long[t]) = (len, self.long[s]);
        Ok(())
    }

    /// Makes room for `n` more tokens of `sequence`, which may be stored, and count once [`Self::commit`] is
    /// called. Otherwise the pages stay at the sequence's unused end, and are given back by
    /// [`Self::release_unused`].
    pub(crate) fn reserve(&mut self, sequence: u32, n: usize) -> Result<(), StateError> {
        let s = self.check(sequence)?;
        let len = self.lens[s] as usize;
        if (len + n).div_ceil(PAGE_TOKENS) > self.config.n_table {
            return Err(StateError::Full {
                needed: (len + n).div_ceil(PAGE_TOKENS) - len.div_ceil(PAGE_TOKENS),
                free: self.free_pages(),
            });
        }
        for group in &self.groups {
            let (needed, free) = (group.needed(s, len, n), group.n_free());
            if needed > free {
                return Err(StateError::Full { needed, free });
            }
        }
        for group in &mut self.groups {
            group.reserve(s, len, n);
        }
        if !self.slots.is_empty() {
            self.slots.reserve(s, n);
        }
        Ok(())
    }

    /// The `n` tokens reserved last now belong to the sequence.
    pub(crate) fn commit(&mut self, sequence: u32, n: usize) {
        let s = sequence as usize;
        let len = self.lens[s] as usize + n;
        self.set_len(s, len);
        if !self.slots.is_empty() {
            self.slots.commit(s, len, n);
        }
        // The tokens before the end that can be rewound to must see their keys.
        let oldest = len.saturating_sub(self.config.limits.n_behind);
        for group in &mut self.groups {
            if group.config.window.is_some() {
                group.give_back(s, oldest);
            }
        }
    }

    /// Gives back pages and slots that were reserved for `n` tokens and not committed.
    pub(crate) fn release_unused(&mut self, sequence: u32, n: usize) {
        let s = sequence as usize;
        let len = self.lens[s] as usize;
        for group in &mut self.groups {
            group.release_unused(s, len, n);
        }
        if !self.slots.is_empty() {
            self.slots.release_unused(s, n);
        }
    }

    /// How workers see the state during a step.
    pub(crate) fn view(&self) -> StateView<'_> {
        StateView {
            config: &self.config,
            groups: self.groups.iter().map(Pages::view).collect(),
            slots: self.slots.view(),
            lens: self.lens,
            long: self.long,
        }
    }

    fn check(&self, sequence: u32) -> Result<usize, StateError> {
        let n_seq = self.config.limits.n_seq;
        if (sequence as usize) < n_seq {
            Ok(sequence as usize)
        } else {
            Err(StateError::UnknownSequence { sequence, n_seq })
        }
    }

    fn set_len(&mut self, s: usize, len: usize) {
        self.lens[s] = u32::try_from(len).expect("positions are 32-bit, checked on entry");
    }
}

/// The memory of pages and states, for workers that read and write them.
#[derive(Clone, Debug)]
pub(crate) struct StateView<'a> {
    config: &'a StateConfig,
    groups: Vec<PagesView<'a>, GROUPS_MAX>,
    slots: SlotsView<'a>,
    lens: &'a [u32],
    long: &'a [u8],
}

impl<'a> StateView<'a> {
    /// Whether a sequence is rotated with the long divisors.
    pub(crate) fn is_long(&self, sequence: u32) -> bool {
        self.long[sequence as usize] == 1
    }

    /// Tokens of a sequence before the step.
    pub(crate) fn len(&self, sequence: u32) -> usize {
        self.lens[sequence as usize] as usize
    }

    /// The pages of a layer of attention, and its number in their group.
    pub(crate) fn pages(&self, layer: usize) -> (&PagesView<'a>, usize) {
        match self.config.places[layer] {
            Place::Keys { group, index } => (&self.groups[usize::from(group)], index.into()),
            Place::Recurrent { .. } => unreachable!("a layer of attention has pages"),
        }
    }

    /// The states of a recurrent layer, and the offset of its own state in the state of a sequence.
    pub(crate) fn states(&self, layer: usize) -> (&SlotsView<'a>, usize) {
        match self.config.places[layer] {
            Place::Recurrent { offset } => (&self.slots, offset as usize),
            Place::Keys { .. } => unreachable!("a recurrent layer has states"),
        }
    }
}

#[cfg(test)]
mod tests;
