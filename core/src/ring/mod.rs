//! A ring between one producer and one consumer, each on a core of its own.
//!
//! Of fixed size, without locks: [`Producer`] and [`Consumer`] each own one index and only read
//! the other's. Both move any number of items per publication, in place:
//! [`Producer::room`] hands out free slots to write, [`Consumer::items`] full ones to read.
//!
//! ```text
//! indices count all items ever pushed (tail) and popped (head); an index's slot is stored with
//! it, so any capacity works, no slot is wasted and no division is needed.
//!
//!   head ≤ tail ≤ head + capacity          queued = tail - head
//! ```
//!
//! Each index has two cache lines to itself, and each side remembers the other's index and reads
//! it again only when the ring seems full or empty: between two cores the line of an index then moves
//! once per round through the ring instead of once per item. heapless' queue has neither: right on
//! one core, slow between two (`cargo bench -p sluice-benches --bench ring` measures both and rtrb).
//!
//! Memory is the caller's slice ([`Ring::new`]) or the value itself ([`StaticRing`]).
//! `core/tests/ring_loom.rs` runs this file under loom.

#![allow(
    unexpected_cfgs,
    reason = "`loom` is set by hand, for tests/ring_loom.rs alone: its atomics are not made by const fn"
)]

use crate::sync::{Accesses, AtomicUsize, Ordering};
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use static_assertions::{assert_impl_all, assert_not_impl_any};

/// Two cache lines, so that neighbours and the adjacent-line prefetcher do not share.
#[repr(align(128))]
#[derive(Debug)]
struct Padded<T>(T);

/// What both halves share in addition to the slots.
#[derive(Debug)]
struct Indices {
    /// Items ever pushed. Written by the producer.
    tail: Padded<AtomicUsize>,
    /// Items ever popped. Written by the consumer.
    head: Padded<AtomicUsize>,
    accesses: Accesses,
}

impl Indices {
    #[cfg(not(loom))]
    const fn new(capacity: usize) -> Self {
        Self {
            tail: Padded(AtomicUsize::new(0)),
            head: Padded(AtomicUsize::new(0)),
            accesses: Accesses::new(capacity),
        }
    }

    #[cfg(loom)]
    fn new(capacity: usize) -> Self {
        Self {
            tail: Padded(AtomicUsize::new(0)),
            head: Padded(AtomicUsize::new(0)),
            accesses: Accesses::new(capacity),
        }
    }
}

/// A ring in the caller's memory.
#[derive(Debug)]
pub struct Ring<'m, T> {
    indices: Indices,
    slots: *mut T,
    capacity: usize,
    memory: PhantomData<&'m mut [MaybeUninit<T>]>,
}

// SAFETY: a ring owns its borrow of the slots; using it from another thread moves items there.
unsafe impl<T: Send> Send for Ring<'_, T> {}
// SAFETY: a shared ring gives no access to slots; halves come from `&mut`.
unsafe impl<T: Send> Sync for Ring<'_, T> {}

impl<'m, T: Copy + Send> Ring<'m, T> {
    /// A ring with the capacity of `slots`; with capacity 0, it is always both empty and full.
    pub fn new(slots: &'m mut [MaybeUninit<T>]) -> Self {
        Self {
            indices: Indices::new(slots.len()),
            capacity: slots.len(),
            slots: slots.as_mut_ptr().cast(),
            memory: PhantomData,
        }
    }

    /// The two halves, empty. Items that an earlier pair left in the ring are dropped.
    pub fn split(&mut self) -> (Producer<'_, T>, Consumer<'_, T>) {
        self.indices = Indices::new(self.capacity);
        halves(&self.indices, self.slots, self.capacity)
    }
}

/// A ring of `N` items that contains its own memory; can be part of a `static` or on the stack.
pub struct StaticRing<T, const N: usize> {
    indices: Indices,
    slots: [MaybeUninit<T>; N],
}

impl<T: Copy + Send, const N: usize> StaticRing<T, N> {
    /// An empty ring.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            indices: Indices::new(N),
            slots: [const { MaybeUninit::uninit() }; N],
        }
    }

    /// An empty ring.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            indices: Indices::new(N),
            slots: [const { MaybeUninit::uninit() }; N],
        }
    }

    /// The two halves, empty. Items that an earlier pair left in the ring are dropped.
    pub fn split(&mut self) -> (Producer<'_, T>, Consumer<'_, T>) {
        self.indices = Indices::new(N);
        halves(&self.indices, self.slots.as_mut_ptr().cast(), N)
    }
}

impl<T: Copy + Send, const N: usize> Default for StaticRing<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const N: usize> fmt::Debug for StaticRing<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StaticRing({N})")
    }
}

/// `slots` has `capacity` places that nothing else uses while the halves live.
fn halves<T: Copy>(
    indices: &Indices,
    slots: *mut T,
    capacity: usize,
) -> (Producer<'_, T>, Consumer<'_, T>) {
    let cursor = || Cursor {
        indices,
        slots,
        capacity,
        own: 0,
        slot: 0,
        other: 0,
    };
    (Producer(cursor()), Consumer(cursor()))
}

/// One side's view of the ring.
// Each half writes here in every operation: two adjacent halves must not share a line.
#[repr(align(128))]
#[derive(Debug)]
struct Cursor<'r, T> {
    indices: &'r Indices,
    slots: *mut T,
    capacity: usize,
    /// This side's index, as published.
    own: usize,
    /// Its slot, `0..capacity` (0 if the capacity is 0).
    slot: usize,
    /// The other side's index when last read. A stale value hides slots, which is safe.
    other: usize,
}

impl<T: Copy> Cursor<'_, T> {
    /// Advances by `n` slots, n ≤ capacity; the new index is to be published.
    #[inline(always)]
    fn advance(&mut self, n: usize) -> usize {
        self.own = self.own.wrapping_add(n);
        self.slot += n;
        if self.slot >= self.capacity {
            self.slot -= self.capacity;
        }
        self.own
    }

    /// The `n` slots from this side's index on, as two pieces: to the end of the memory, and from its
    /// start.
    #[inline(always)]
    fn pieces(&self, n: usize) -> [(*mut T, usize); 2] {
        debug_assert!(n <= self.capacity);
        let first = n.min(self.capacity - self.slot);
        [
            (self.slots.wrapping_add(self.slot), first),
            (self.slots, n - first),
        ]
    }
}

/// The half that pushes.
#[derive(Debug)]
pub struct Producer<'r, T>(Cursor<'r, T>);

// SAFETY: the slots between head + capacity and tail are the producer's alone, whichever thread
// it is on; indices are atomics.
unsafe impl<T: Send> Send for Producer<'_, T> {}

impl<'r, T: Copy + Send> Producer<'r, T> {
    /// Places in the ring.
    pub const fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Items pushed since the split, wrapping.
    pub const fn tail(&self) -> usize {
        self.0.own
    }

    /// Free slots at this moment: at least that many stay free until this half pushes.
    #[inline]
    pub fn free(&mut self) -> usize {
        self.0.other = self.0.indices.head.0.load(Ordering::Acquire);
        self.free_seen()
    }

    /// Free slots when last read.
    #[inline(always)]
    const fn free_seen(&self) -> usize {
        self.0.capacity - self.0.own.wrapping_sub(self.0.other)
    }

    /// Pushes one item, or returns it if the ring is full.
    ///
    /// # Errors
    /// The item.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.free_seen() == 0 && self.free() == 0 {
            return Err(item);
        }
        self.0.indices.accesses.write(self.0.slot, 1);
        // SAFETY: the slot is in the ring's memory and free: the consumer's index, which was read
        // with Acquire, has passed it, and the consumer does not touch it before it is published.
        unsafe { self.0.slots.wrapping_add(self.0.slot).write(item) };
        self.publish(1);
        Ok(())
    }

    /// Pushes the items that fit, from the first on, and returns their number.
    #[inline]
    pub fn push_slice(&mut self, items: &[T]) -> usize {
        let n = self.fill(items);
        if n > 0 {
            self.publish(n);
        }
        n
    }

    /// Writes the items that fit without publishing them; [`Self::publish`]
    /// does.
    #[inline]
    pub(crate) fn fill(&mut self, items: &[T]) -> usize {
        if self.free_seen() < items.len() {
            self.free();
        }
        let n = items.len().min(self.free_seen());
        self.0.indices.accesses.write(self.0.slot, n);
        let [(first, n_first), (second, n_second)] = self.0.pieces(n);
        // SAFETY: the slots are free, as in `push`, and `items` has n ≥ n_first elements.
        unsafe { first.copy_from_nonoverlapping(items.as_ptr(), n_first) };
        // SAFETY: as above; n_first + n_second = n.
        unsafe { second.copy_from_nonoverlapping(items.as_ptr().wrapping_add(n_first), n_second) };
        n
    }

    /// Up to `n` free slots to write in place, in two pieces; [`Room::commit`] pushes them.
    #[inline]
    pub fn room(&mut self, n: usize) -> Room<'_, 'r, T> {
        if self.free_seen() < n {
            self.free();
        }
        let n = n.min(self.free_seen());
        self.0.indices.accesses.write(self.0.slot, n);
        Room { producer: self, n }
    }

    /// Publishes the next `n` items to the consumer.
    #[inline(always)]
    pub(crate) fn publish(&mut self, n: usize) {
        debug_assert!(n <= self.free_seen());
        let tail = self.0.advance(n);
        self.0.indices.tail.0.store(tail, Ordering::Release);
    }
}

/// Free slots, borrowed for writing.
#[derive(Debug)]
pub struct Room<'p, 'r, T> {
    producer: &'p mut Producer<'r, T>,
    n: usize,
}

impl<T: Copy + Send> Room<'_, '_, T> {
    /// Slots borrowed; fewer than requested if the ring is nearly full.
    pub const fn len(&self) -> usize {
        self.n
    }

    /// Whether the ring is full.
    pub const fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// The slots, in order; the second piece is empty unless they wrap around.
    #[inline]
    pub fn slots(&mut self) -> [&mut [MaybeUninit<T>]; 2] {
        self.producer.0.pieces(self.n).map(|(start, n)| {
            // SAFETY: free slots (as in `push`) within the ring's memory, the two pieces disjoint;
            // borrowed from `self` exclusively. MaybeUninit requires nothing of their contents.
            unsafe { core::slice::from_raw_parts_mut(start.cast(), n) }
        })
    }

    /// Pushes the first `n` slots.
    ///
    /// # Safety
    /// - They have been written.
    ///
    /// # Panics
    /// If fewer were borrowed.
    #[inline]
    pub unsafe fn commit(self, n: usize) {
        assert!(n <= self.n, "more than was lent");
        self.producer.publish(n);
    }
}

/// The half that pops.
#[derive(Debug)]
pub struct Consumer<'r, T>(Cursor<'r, T>);

// SAFETY: the slots between head and tail are the consumer's alone, whichever thread it is on;
// indices are atomics.
unsafe impl<T: Send> Send for Consumer<'_, T> {}

impl<T: Copy + Send> Consumer<'_, T> {
    /// Places in the ring.
    pub const fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Items popped since the split, wrapping.
    pub const fn head(&self) -> usize {
        self.0.own
    }

    /// Items queued at this moment: at least that many stay until this half pops.
    #[inline]
    pub fn queued(&mut self) -> usize {
        self.0.other = self.0.indices.tail.0.load(Ordering::Acquire);
        self.queued_seen()
    }

    /// Items queued when last read.
    #[inline(always)]
    const fn queued_seen(&self) -> usize {
        self.0.other.wrapping_sub(self.0.own)
    }

    /// Pops the oldest item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.queued_seen() == 0 && self.queued() == 0 {
            return None;
        }
        self.0.indices.accesses.read(self.0.slot, 1);
        // SAFETY: the slot is in the ring's memory and was written before the producer's index,
        // read with Acquire, passed it; the producer does not touch it until it is released.
        let item = unsafe { self.0.slots.wrapping_add(self.0.slot).read() };
        self.release(1);
        Some(item)
    }

    /// Pops the items that fit into `out`, and returns their number.
    #[inline]
    pub fn pop_slice(&mut self, out: &mut [T]) -> usize {
        let [first, second] = self.items(out.len());
        let n = first.len() + second.len();
        out[..first.len()].copy_from_slice(first);
        out[first.len()..n].copy_from_slice(second);
        self.release(n);
        n
    }

    /// Up to `n` of the oldest items in place, in two pieces of which the second is empty
    /// unless they wrap around. [`Self::release`] pops them.
    #[inline]
    pub fn items(&mut self, n: usize) -> [&[T]; 2] {
        if self.queued_seen() < n {
            self.queued();
        }
        let n = n.min(self.queued_seen());
        self.0.indices.accesses.read(self.0.slot, n);
        self.0.pieces(n).map(|(start, n)| {
            // SAFETY: written slots (as in `pop`) within the ring's memory, borrowed from `self`:
            // they are not released meanwhile.
            unsafe { core::slice::from_raw_parts(start.cast_const(), n) }
        })
    }

    /// Pops `n` items; their slots are free for the producer again.
    ///
    /// # Panics
    /// If this half has not seen that many.
    #[inline]
    pub fn release(&mut self, n: usize) {
        assert!(n <= self.queued_seen(), "more than is queued");
        let head = self.0.advance(n);
        self.0.indices.head.0.store(head, Ordering::Release);
    }
}

/// Reads a ring's indices from outside: any number of gauges, on any thread.
#[derive(Clone, Copy, Debug)]
pub struct Gauge<'r>(&'r Indices);

impl<'r, T> Producer<'r, T> {
    /// A gauge of the ring's indices.
    pub const fn gauge(&self) -> Gauge<'r> {
        Gauge(self.0.indices)
    }
}

impl Gauge<'_> {
    /// Items pushed since the split, wrapping. At least what [`Self::head`] returned before.
    pub fn tail(&self) -> usize {
        self.0.tail.0.load(Ordering::Acquire)
    }

    /// Items popped since the split, wrapping.
    pub fn head(&self) -> usize {
        self.0.head.0.load(Ordering::Acquire)
    }
}

// A half belongs to one thread at a time, and is moved to it.
assert_impl_all!(Producer<'static, f32>: Send);
assert_not_impl_any!(Producer<'static, f32>: Sync, Clone);
assert_impl_all!(Consumer<'static, f32>: Send);
assert_not_impl_any!(Consumer<'static, f32>: Sync, Clone);
// Under loom, cells that are not `Sync` watch the slots.
#[cfg(not(loom))]
assert_impl_all!(Gauge<'static>: Send, Sync);

#[cfg(all(test, not(loom)))]
mod tests;
