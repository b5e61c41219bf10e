//! The event ring: what each worker did and when, in memory of fixed size.
//!
//! Free when off (no ring, no clock read). Core has no clock: the caller supplies one, in
//! ticks of its choice.

use crate::memory::Shared;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use static_assertions::assert_impl_all;

/// A worker's activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Phase {
    /// Reading embedding rows, rotary angles.
    Embedding,
    /// Norm and quantisation before attention.
    AttentionNorm,
    /// Q, K and V projections, rotation, storing into the KV cache.
    Qkv,
    /// Scores, softmax, weighted values.
    Attention,
    /// Convolutions and recurrent states.
    Recurrence,
    /// Quantisation of the attention output.
    AttentionQuantize,
    /// Attention output projection.
    AttentionOutput,
    /// Norm and quantisation before the feed-forward network.
    FfnNorm,
    /// Router, choice of experts, rows sorted by expert.
    FfnRouter,
    /// Gate and up projections, SwiGLU.
    FfnGateUp,
    /// Down projection.
    FfnDown,
    /// Final norm and quantisation.
    OutputNorm,
    /// Output projection to logits.
    Output,
    /// Waiting for the other workers.
    Barrier,
}

impl Phase {
    /// All phases, in the order of a forward pass.
    pub const ALL: [Self; 14] = [
        Self::Embedding,
        Self::AttentionNorm,
        Self::Qkv,
        Self::Attention,
        Self::Recurrence,
        Self::AttentionQuantize,
        Self::AttentionOutput,
        Self::FfnNorm,
        Self::FfnRouter,
        Self::FfnGateUp,
        Self::FfnDown,
        Self::OutputNorm,
        Self::Output,
        Self::Barrier,
    ];

    /// A short name for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::AttentionNorm => "attn_norm",
            Self::Qkv => "attn_qkv",
            Self::Attention => "attention",
            Self::Recurrence => "recurrence",
            Self::AttentionQuantize => "attn_quantize",
            Self::AttentionOutput => "attn_output",
            Self::FfnNorm => "ffn_norm",
            Self::FfnRouter => "ffn_router",
            Self::FfnGateUp => "ffn_gate_up",
            Self::FfnDown => "ffn_down",
            Self::OutputNorm => "output_norm",
            Self::Output => "output",
            Self::Barrier => "barrier",
        }
    }
}

/// One activity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// The activity.
    pub phase: Phase,
    /// The worker.
    pub rank: u8,
    /// The layer; 0 outside of layers.
    pub layer: u16,
    /// Start, in ticks of the caller's clock.
    pub start_ticks: u64,
    /// End, in ticks.
    pub end_ticks: u64,
    /// Weight and KV bytes it read.
    pub bytes: u64,
}

impl TraceEvent {
    /// An empty event, to fill a ring's memory with.
    pub const EMPTY: Self = Self {
        phase: Phase::Embedding,
        rank: 0,
        layer: 0,
        start_ticks: 0,
        end_ticks: 0,
        bytes: 0,
    };
}

/// Rings of events, one per worker, each writing only its own. The newest events are kept.
/// One step at a time records into them.
pub struct EventRing<'m> {
    clock: &'m (dyn Fn() -> u64 + Sync),
    events: Shared<'m, TraceEvent>,
    written: [AtomicUsize; crate::team::WORKERS_MAX],
    n_workers: usize,
    /// Whether a step records into the rings: the workers of two would share them.
    taken: AtomicBool,
}

impl fmt::Debug for EventRing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventRing")
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

impl<'m> EventRing<'m> {
    /// Rings for `n_workers`, which share `memory` in equal parts.
    ///
    /// # Panics
    /// If `n_workers` is not `1..=256`.
    pub fn new(
        memory: &'m mut [TraceEvent],
        n_workers: usize,
        clock: &'m (dyn Fn() -> u64 + Sync),
    ) -> Self {
        assert!((1..=crate::team::WORKERS_MAX).contains(&n_workers));
        Self {
            clock,
            events: Shared::new(memory),
            written: [const { AtomicUsize::new(0) }; crate::team::WORKERS_MAX],
            n_workers,
            taken: AtomicBool::new(false),
        }
    }

    /// Events kept per worker.
    pub const fn capacity(&self) -> usize {
        self.events.len() / self.n_workers
    }

    /// Passes every kept event to `each`, oldest first per worker, and empties the rings.
    /// Returns the number of overwritten events. Exclusive: no step is running.
    pub fn drain(&mut self, mut each: impl FnMut(TraceEvent)) -> usize {
        // A step that was leaked never returned the rings.
        *self.taken.get_mut() = false;
        let capacity = self.capacity();
        let mut lost = 0;
        for rank in 0..self.n_workers {
            let written = core::mem::take(self.written[rank].get_mut());
            let kept = written.min(capacity);
            lost += written - kept;
            // SAFETY: `&mut self`: no worker writes.
            let events = unsafe { self.events.read(rank * capacity..(rank + 1) * capacity) };
            for i in written - kept..written {
                each(events[i % capacity]);
            }
        }
        lost
    }

    pub(crate) const fn n_workers(&self) -> usize {
        self.n_workers
    }

    /// Takes the rings for a step; false if another step has them.
    pub(crate) fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::Acquire)
    }

    /// Returns the rings.
    pub(crate) fn give_back(&self) {
        self.taken.store(false, Ordering::Release);
    }

    pub(crate) fn now(&self) -> u64 {
        (self.clock)()
    }

    /// Adds an event.
    ///
    /// # Safety
    /// - The caller's step has taken the rings ([`Self::take`]), and the caller is the only one
    ///   of the step with this rank.
    pub(crate) unsafe fn push(&self, event: TraceEvent) {
        let (rank, capacity) = (usize::from(event.rank), self.capacity());
        if capacity == 0 {
            return;
        }
        let written = self.written[rank].load(Ordering::Relaxed);
        let at = rank * capacity + written % capacity;
        // SAFETY: only this rank writes its part of the memory, and readers are exclusive.
        unsafe { self.events.write(at..at + 1)[0] = event };
        self.written[rank].store(written + 1, Ordering::Relaxed);
    }
}

assert_impl_all!(EventRing<'static>: Send, Sync);

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;

    #[test]
    fn the_newest_events_are_kept_and_losses_counted() {
        let mut memory = [TraceEvent::EMPTY; 8];
        let clock = || 0;
        let mut ring = EventRing::new(&mut memory, 2, &clock);
        for i in 0..6u16 {
            // SAFETY: a single thread.
            unsafe {
                ring.push(TraceEvent {
                    layer: i,
                    rank: 1,
                    ..TraceEvent::EMPTY
                })
            };
        }
        let mut layers = std::vec::Vec::new();
        assert_eq!(ring.drain(|event| layers.push(event.layer)), 2);
        assert_eq!(layers, [2, 3, 4, 5]);
        assert_eq!(ring.drain(|_| panic!("drained")), 0);
    }
}
