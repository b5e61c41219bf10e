//! Slots of memory for experts, and which expert is where: read by workers without a lock.

use super::super::places::Places;
use crate::host::memory::{AlignedMemory, OutOfMemory};
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use sluice_core::engine::{ExpertPart, ExpertWeights};

/// No slot, or no expert.
pub(super) const NONE: u32 = u32::MAX;

/// State of a part of an expert in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Progress {
    /// Not asked for.
    Empty = 0,
    /// Being read.
    Coming = 1,
    /// Readable.
    Ready = 2,
    /// The read failed.
    Failed = 3,
}

/// A slot.
#[derive(Debug)]
struct Slot {
    /// The expert in it, or [`NONE`].
    id: AtomicU32,
    /// How many workers have borrowed part of it.
    n_lent: AtomicU32,
    /// [`Progress`] of gate and up, and of down.
    parts: [AtomicU8; 2],
}

/// All slots.
#[derive(Debug)]
pub(super) struct Slots {
    memory: AlignedMemory,
    start: NonNull<u8>,
    slot_bytes: usize,
    slots: Box<[Slot]>,
    /// By expert, its slot or [`NONE`].
    table: Box<[AtomicU32]>,
}

// SAFETY: the memory is the value's own; a slot's progress decides who may write to it and who may read it.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

/// Maximum bytes of memory passed to a device as one piece.
const CHUNK_BYTES: usize = 1 << 30;

impl Slots {
    /// Slots for experts; of neurons, which have their places elsewhere, without memory.
    pub(super) fn new(
        places: &Places,
        n_slots: usize,
        has_memory: bool,
    ) -> Result<Self, OutOfMemory> {
        let bytes = if has_memory {
            n_slots * places.slot_bytes
        } else {
            0
        };
        let mut memory = AlignedMemory::zeroed(bytes)?;
        let start = NonNull::from(&mut *memory).cast::<u8>();
        let empty = || Slot {
            id: AtomicU32::new(NONE),
            n_lent: AtomicU32::new(0),
            parts: [const { AtomicU8::new(Progress::Empty as u8) }; 2],
        };
        Ok(Self {
            memory,
            start,
            slot_bytes: places.slot_bytes,
            slots: (0..n_slots).map(|_| empty()).collect(),
            table: (0..places.n_ids()).map(|_| AtomicU32::new(NONE)).collect(),
        })
    }

    pub(super) const fn len(&self) -> usize {
        self.slots.len()
    }

    /// All of the memory, for placement only: its bytes must not be read.
    pub(super) fn memory(&self) -> &[u8] {
        &self.memory
    }

    /// The memory, in pieces of whole slots.
    pub(super) fn chunks(&self) -> Vec<(NonNull<u8>, usize)> {
        let per_chunk = (CHUNK_BYTES / self.slot_bytes).max(1);
        let chunk = |first: usize| {
            let n = per_chunk.min(self.len() - first);
            (self.at(first, 0), n * self.slot_bytes)
        };
        let n_slots = self.memory.len() / self.slot_bytes;
        (0..n_slots).step_by(per_chunk).map(chunk).collect()
    }

    /// An address in a slot.
    pub(super) fn at(&self, slot: usize, offset: usize) -> NonNull<u8> {
        debug_assert!(slot < self.len() && offset < self.slot_bytes && !self.memory.is_empty());
        // SAFETY: inside the memory, which is `len` slots.
        unsafe { self.start.add(slot * self.slot_bytes + offset) }
    }

    /// The slot of an expert.
    pub(super) fn of(&self, id: u32) -> Option<usize> {
        let slot = self.table[id as usize].load(Ordering::Acquire);
        (slot != NONE).then_some(slot as usize)
    }

    /// The expert of a slot.
    pub(super) fn id(&self, slot: usize) -> Option<u32> {
        let id = self.slots[slot].id.load(Ordering::Acquire);
        (id != NONE).then_some(id)
    }

    pub(super) fn progress(&self, slot: usize, part: ExpertPart) -> Progress {
        match self.slots[slot].parts[part as usize].load(Ordering::Acquire) {
            0 => Progress::Empty,
            1 => Progress::Coming,
            2 => Progress::Ready,
            _ => Progress::Failed,
        }
    }

    pub(super) fn set_progress(&self, slot: usize, part: ExpertPart, progress: Progress) {
        self.slots[slot].parts[part as usize].store(progress as u8, Ordering::Release);
    }

    pub(super) fn is_lent(&self, slot: usize) -> bool {
        self.slots[slot].n_lent.load(Ordering::SeqCst) > 0
    }

    /// Lends a part of an expert if it is ready; else returns its progress.
    pub(super) fn lend(&self, id: u32, part: ExpertPart) -> Result<usize, Progress> {
        let Some(slot) = self.of(id) else {
            return Err(Progress::Empty);
        };
        // SeqCst here and in `evict`: either the evicting thread sees the worker, or the worker sees the eviction.
        self.slots[slot].n_lent.fetch_add(1, Ordering::SeqCst);
        let is_here = self.slots[slot].id.load(Ordering::SeqCst) == id;
        let progress = self.progress(slot, part);
        if is_here && progress == Progress::Ready {
            return Ok(slot);
        }
        self.slots[slot].n_lent.fetch_sub(1, Ordering::SeqCst);
        Err(if is_here { progress } else { Progress::Empty })
    }

    pub(super) fn give_back(&self, slot: usize) {
        self.slots[slot].n_lent.fetch_sub(1, Ordering::SeqCst);
    }

    /// Empties a slot, unless a worker has borrowed from it. Under the store's lock.
    pub(super) fn evict(&self, slot: usize) -> bool {
        let Some(id) = self.id(slot) else {
            return true;
        };
        self.slots[slot].id.store(NONE, Ordering::SeqCst);
        if self.is_lent(slot) {
            self.slots[slot].id.store(id, Ordering::SeqCst);
            return false;
        }
        self.table[id as usize].store(NONE, Ordering::Release);
        true
    }

    /// Gives an empty slot to an expert. Under the store's lock.
    pub(super) fn take(&self, slot: usize, id: u32) {
        self.set_progress(slot, ExpertPart::GateUp, Progress::Empty);
        self.set_progress(slot, ExpertPart::Down, Progress::Empty);
        self.slots[slot].id.store(id, Ordering::SeqCst);
        let index = u32::try_from(slot).unwrap_or(NONE);
        self.table[id as usize].store(index, Ordering::Release);
    }

    /// The weights in a slot.
    ///
    /// # Safety
    /// The parts that the caller reads are ready, and stay lent to it while it reads.
    pub(super) unsafe fn weights(
        &self,
        slot: usize,
        matrices: &[Range<usize>; 3],
        part: ExpertPart,
    ) -> ExpertWeights<'_> {
        let bytes = |range: &Range<usize>| match range.is_empty() {
            true => &[][..],
            // SAFETY: inside the slot; written before it was ready, and not again while it is lent.
            false => unsafe {
                let start = self.at(slot, range.start);
                core::slice::from_raw_parts(start.as_ptr(), range.len())
            },
        };
        let [gate, up, down] = matrices;
        match part {
            ExpertPart::GateUp => ExpertWeights {
                gate: bytes(gate),
                up: bytes(up),
                down: &[],
            },
            ExpertPart::Down => ExpertWeights {
                gate: &[],
                up: &[],
                down: bytes(down),
            },
        }
    }
}
