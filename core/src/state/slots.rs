//! Recurrent states: a pool of slots, each the state of all recurrent layers after some token.
//!
//! A sequence keeps the states at its end and up to `n_behind` tokens before it. A step reads the state at
//! the end and writes new ones to other slots, so dropping the step leaves the sequence at its end; earlier
//! states may have been evicted by then. A fork and a checkpoint share slots by reference count.

use crate::memory::{Arena, MemoryError, MemoryPlan, Shared};
use core::ops::Range;

/// A kept state: the number of tokens that led to it, and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) len: u32,
    slot: u32,
}

impl Kept {
    pub(super) const fn of(len: u32, slot: u32) -> Self {
        Self { len, slot }
    }

    pub(super) const fn slot(self) -> u32 {
        self.slot
    }
}

/// The recurrent states of all sequences.
#[derive(Debug)]
pub(super) struct Slots<'m> {
    /// Floats of a state.
    state_len: usize,
    /// Number of states kept of a sequence: at its end, and before it.
    n_kept: usize,
    memory: Shared<'m, f32>,
    holders: &'m mut [u32],
    free: &'m mut [u32],
    n_free: usize,
    /// Pairs of length and slot, newest first, (n_seq, n_kept, 2).
    kept: &'m mut [u32],
    /// Number of valid pairs, (n_seq).
    n_of: &'m mut [u32],
    /// Slots that the current step writes, newest first, (n_seq, n_kept).
    written: &'m mut [u32],
}

/// The sizes that the memory of slots follows from.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotSizes {
    pub(super) n_slots: usize,
    /// Floats of a state.
    pub(super) state_len: usize,
    pub(super) n_seq: usize,
    /// States that a sequence keeps at its end.
    pub(super) n_kept: usize,
}

impl<'m> Slots<'m> {
    pub(super) fn plan(sizes: SlotSizes, plan: &mut MemoryPlan) -> Result<(), MemoryError> {
        let SlotSizes {
            n_slots,
            state_len,
            n_seq,
            n_kept,
        } = sizes;
        let times = |a: usize, b: usize| a.checked_mul(b).ok_or(MemoryError::TooLarge);
        plan.slice::<f32>(times(n_slots, state_len)?)?;
        plan.slice::<u32>(n_slots)?;
        plan.slice::<u32>(n_slots)?;
        let n_seq = if n_slots == 0 { 0 } else { n_seq };
        plan.slice::<u32>(times(n_seq, times(n_kept, 2)?)?)?;
        plan.slice::<u32>(n_seq)?;
        plan.slice::<u32>(times(n_seq, n_kept)?)
    }

    pub(super) fn new(sizes: SlotSizes, arena: &mut Arena<'m>) -> Result<Self, MemoryError> {
        let SlotSizes {
            n_slots,
            state_len,
            n_seq,
            n_kept,
        } = sizes;
        let memory = Shared::new(arena.slice(n_slots * state_len, 0f32)?);
        let holders = arena.slice(n_slots, 0u32)?;
        let free = arena.slice(n_slots, 0u32)?;
        for (slot, entry) in free.iter_mut().rev().enumerate() {
            *entry = u32::try_from(slot).map_err(|_| MemoryError::TooLarge)?;
        }
        let n_seq = if n_slots == 0 { 0 } else { n_seq };
        Ok(Self {
            state_len,
            n_kept,
            memory,
            holders,
            free,
            n_free: n_slots,
            kept: arena.slice(n_seq * n_kept * 2, 0u32)?,
            n_of: arena.slice(n_seq, 0u32)?,
            written: arena.slice(n_seq * n_kept, 0u32)?,
        })
    }

    /// Whether there are recurrent layers at all.
    pub(super) const fn is_empty(&self) -> bool {
        self.state_len == 0
    }

    fn n_of(&self, s: usize) -> usize {
        // Empty in a model with attention only.
        self.n_of.get(s).map_or(0, |&n| n as usize)
    }

    fn entry(&self, s: usize, i: usize) -> Kept {
        let at = 2 * (s * self.n_kept + i);
        Kept {
            len: self.kept[at],
            slot: self.kept[at + 1],
        }
    }

    fn set(&mut self, s: usize, i: usize, kept: Kept) {
        let at = 2 * (s * self.n_kept + i);
        (self.kept[at], self.kept[at + 1]) = (kept.len, kept.slot);
    }

    /// The kept states of a sequence, newest first; none before its first token.
    pub(super) fn kept(&self, s: usize) -> impl Iterator<Item = Kept> {
        (0..self.n_of(s)).map(move |i| self.entry(s, i))
    }

    pub(super) fn retain(&mut self, kept: Kept) {
        self.holders[kept.slot as usize] += 1;
    }

    pub(super) fn release(&mut self, kept: Kept) {
        let holders = &mut self.holders[kept.slot as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free[self.n_free] = kept.slot;
            self.n_free += 1;
        }
    }

    fn take(&mut self) -> u32 {
        self.n_free -= 1;
        let slot = self.free[self.n_free];
        self.holders[slot as usize] = 1;
        slot
    }

    /// Removes the states beyond `len`; the state at `len` must be kept, unless `len` is 0.
    pub(super) fn rewind(&mut self, s: usize, len: usize) {
        let beyond = self.kept(s).take_while(|kept| kept.len as usize > len);
        let n = beyond.count();
        for i in 0..n {
            let kept = self.entry(s, i);
            self.release(kept);
        }
        for i in n..self.n_of(s) {
            let kept = self.entry(s, i);
            self.set(s, i - n, kept);
        }
        self.n_of[s] -= u32::try_from(n).expect("few");
    }

    /// Puts a state at the end of a sequence that has none.
    pub(super) fn put(&mut self, s: usize, kept: Kept) {
        self.retain(kept);
        self.set(s, 0, kept);
        self.n_of[s] = 1;
    }

    /// Makes the empty sequence `t` share the states of `s`.
    pub(super) fn fork(&mut self, s: usize, t: usize) {
        for i in 0..self.n_of(s) {
            let kept = self.entry(s, i);
            self.retain(kept);
            self.set(t, i, kept);
        }
        self.n_of[t] = self.n_of[s];
    }

    /// Takes slots for the states after the last of `n` tokens that a step adds. Earlier states of the
    /// sequence are evicted, so that it never has more than one slot above the number of kept states.
    pub(super) fn reserve(&mut self, s: usize, n: usize) {
        let n_new = n.min(self.n_kept);
        self.keep_newest(s, self.n_kept + 1 - n_new);
        for i in 0..n_new {
            self.written[s * self.n_kept + i] = self.take();
        }
    }

    /// Removes all but the `n` newest states of a sequence.
    fn keep_newest(&mut self, s: usize, n: usize) {
        let old = self.n_of(s);
        for i in n..old {
            let kept = self.entry(s, i);
            self.release(kept);
        }
        self.n_of[s] = u32::try_from(old.min(n)).expect("few");
    }

    /// Adds the states of the `n` tokens reserved last to the sequence, which now has `len` tokens.
    pub(super) fn commit(&mut self, s: usize, len: usize, n: usize) {
        let new = n.min(self.n_kept);
        self.keep_newest(s, self.n_kept - new);
        let stays = self.n_of(s);
        for i in (0..stays).rev() {
            let kept = self.entry(s, i);
            self.set(s, i + new, kept);
        }
        for i in 0..new {
            let kept = Kept {
                len: u32::try_from(len - i).expect("positions are 32-bit"),
                slot: self.written[s * self.n_kept + i],
            };
            self.set(s, i, kept);
        }
        self.n_of[s] = u32::try_from(new + stays).expect("few");
    }

    /// Gives back the slots of `n` tokens that were reserved and not committed.
    pub(super) fn release_unused(&mut self, s: usize, n: usize) {
        for i in (0..n.min(self.n_kept)).rev() {
            let slot = self.written[s * self.n_kept + i];
            self.release(Kept { len: 0, slot });
        }
    }

    /// The floats of a kept state.
    pub(super) fn read(&self, kept: Kept) -> &[f32] {
        let start = kept.slot as usize * self.state_len;
        // SAFETY: outside of a step: a step borrows the state exclusively.
        unsafe { self.memory.read(start..start + self.state_len) }
    }

    /// Restores a state after `len` tokens from saved floats, at the end of a sequence that has none.
    pub(super) fn restore(&mut self, s: usize, len: usize, fill: impl FnOnce(&mut [f32])) {
        self.reserve(s, 1);
        let start = self.written[s * self.n_kept] as usize * self.state_len;
        // SAFETY: `&mut self`: no worker accesses the states.
        fill(unsafe { self.memory.write(start..start + self.state_len) });
        self.commit(s, len, 1);
    }

    /// Stores a state after `len` tokens that belongs to no sequence, held once. There must be a free slot.
    pub(super) fn hold(&mut self, len: u32, fill: impl FnOnce(&mut [f32])) -> Kept {
        let slot = self.take();
        let start = slot as usize * self.state_len;
        // SAFETY: `&mut self`: no worker accesses the states.
        fill(unsafe { self.memory.write(start..start + self.state_len) });
        Kept { len, slot }
    }

    /// How workers see the states during a step.
    pub(super) fn view(&self) -> SlotsView<'_> {
        SlotsView {
            state_len: self.state_len,
            n_kept: self.n_kept,
            memory: self.memory,
            kept: self.kept,
            n_of: self.n_of,
            written: self.written,
        }
    }
}

/// The memory of the states, for workers that read and write them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotsView<'a> {
    state_len: usize,
    n_kept: usize,
    memory: Shared<'a, f32>,
    kept: &'a [u32],
    n_of: &'a [u32],
    written: &'a [u32],
}

impl<'a> SlotsView<'a> {
    /// Maximum number of states that a step writes of a sequence: the states after its last tokens.
    pub(crate) const fn n_kept(&self) -> usize {
        self.n_kept
    }

    /// Some floats of a sequence's state before the step; `None` before its first token, when all are zero.
    pub(crate) fn before(&self, s: usize, range: Range<usize>) -> Option<&'a [f32]> {
        if self.n_of[s] == 0 {
            return None;
        }
        let slot = self.kept[2 * s * self.n_kept + 1] as usize;
        let start = slot * self.state_len;
        // SAFETY: a step writes to slots that no sequence keeps.
        Some(unsafe { self.memory.read(start + range.start..start + range.end) })
    }

    /// Some floats of the state that the step writes for `behind` tokens before its sequence's new end.
    ///
    /// # Safety
    /// - No other worker accesses them while the slice lives, nor does this worker by another path.
    pub(crate) unsafe fn after(
        &self,
        s: usize,
        behind: usize,
        range: Range<usize>,
    ) -> &'a mut [f32] {
        debug_assert!(behind < self.n_kept);
        let slot = self.written[s * self.n_kept + behind] as usize;
        let start = slot * self.state_len;
        // SAFETY: by the caller.
        unsafe { self.memory.write(start + range.start..start + range.end) }
    }
}
