//! Counters of a stream, in frames, that add up at every reading.
//!
//! `pushed = processed + queued + dropped`, and skipped frames are part of the processed ones.
//! Each counter is updated where the event happens; `queued` is read from the ring's indices.
//!
//! For the sum to hold while both sides continue, counters and indices must be of the same moment. Each
//! side therefore writes a `Ledger` record (its counters and the matching index)
//! *before* it publishes the index in the ring. A reader reads the index from the ring, looks up
//! the record of that index, and has consistent numbers; the consumer's side is read
//! first, so that popped never exceeds pushed. Writers never wait. A reader retries
//! only if a writer overtook it by three records meanwhile.

use crate::ring::Gauge;
use crate::sync::{AtomicUsize, Ordering, fence};

/// Records kept: the newest, one that may be in progress, and two to be overtaken by.
const RECORDS: usize = 4;

/// The counters of one side, with the matching ring index.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Ledger {
    /// Records written so far; the newest is `version % RECORDS`.
    version: AtomicUsize,
    records: [Record; RECORDS],
}

#[derive(Debug, Default)]
struct Record {
    index: AtomicUsize,
    counts: [Count; 3],
}

/// A count of 64 bits on every CPU, in as many words as that takes. Torn words are detected
/// by the record's version, as torn counts are.
#[derive(Debug, Default)]
struct Count([AtomicUsize; COUNT_WORDS]);

const COUNT_WORDS: usize = size_of::<u64>() / size_of::<usize>();

impl Count {
    fn store(&self, count: u64) {
        for (i, word) in self.0.iter().enumerate() {
            #[expect(clippy::cast_possible_truncation, reason = "a word of it")]
            let part = (count >> (usize::BITS as usize * i)) as usize;
            word.store(part, Ordering::Relaxed);
        }
    }

    fn load(&self) -> u64 {
        let words = self.0.iter().enumerate();
        let part = |(i, word): (usize, &AtomicUsize)| {
            (word.load(Ordering::Relaxed) as u64) << (usize::BITS as usize * i)
        };
        words.map(part).sum()
    }
}

impl Ledger {
    /// Writes a record. One thread at a time.
    fn write(&self, index: usize, counts: [u64; 3]) {
        let version = self.version.load(Ordering::Relaxed).wrapping_add(1);
        // A reader that sees any of the stores below also sees this value of `version`.
        fence(Ordering::Release);
        let record = &self.records[version % RECORDS];
        record.index.store(index, Ordering::Relaxed);
        for (cell, count) in record.counts.iter().zip(counts) {
            cell.store(count);
        }
        self.version.store(version, Ordering::Release);
    }

    /// The newest record with this index; `None` if writers were faster.
    fn read(&self, index: usize) -> Option<[u64; 3]> {
        let newest = self.version.load(Ordering::Acquire);
        for back in 0..RECORDS - 1 {
            let version = newest.wrapping_sub(back);
            let record = &self.records[version % RECORDS];
            let found = record.index.load(Ordering::Relaxed);
            let counts = [0, 1, 2].map(|i| record.counts[i].load());
            fence(Ordering::Acquire);
            let now = self.version.load(Ordering::Relaxed);
            // Record `version` is overwritten as `version + RECORDS`, which begins once
            // `version + RECORDS - 1` is complete.
            if now.wrapping_sub(version) >= RECORDS - 1 {
                return None;
            }
            if found == index {
                return Some(counts);
            }
        }
        None
    }
}

/// Counters of one stream, shared by its producer, its consumer and any observer.
#[derive(Debug, Default)]
pub struct Meter {
    /// By tail: frames pushed, frames dropped on arrival.
    input: Ledger,
    /// By head: frames processed, skipped, dropped from the ring.
    output: Ledger,
}

/// The counters at one moment, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// Offered and not returned; a partial frame at the end counts.
    pub pushed: u64,
    /// Processed: a decision was made.
    pub processed: u64,
    /// Processed and found silent.
    pub skipped: u64,
    /// Lost: the ring was full and the stream's overflow policy drops.
    pub dropped: u64,
    /// In the ring; a partial frame at the end counts.
    pub queued: u64,
    /// Samples in the ring.
    pub queued_samples: usize,
}

impl Telemetry {
    /// Whether every lost frame is counted.
    pub const fn adds_up(&self) -> bool {
        self.pushed == self.processed + self.queued + self.dropped && self.skipped <= self.processed
    }

    /// Percentage of processed frames that were silent; 0 without processed frames.
    pub fn sparsity_pct(&self) -> f64 {
        if self.processed == 0 {
            return 0.0;
        }
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        let share = self.skipped as f64 / self.processed as f64;
        100.0 * share
    }

    /// The counters since `start`. Frames queued then count as pushed since.
    #[must_use]
    pub const fn since(&self, start: &Self) -> Self {
        Self {
            pushed: self.pushed - start.processed - start.dropped,
            processed: self.processed - start.processed,
            skipped: self.skipped - start.skipped,
            dropped: self.dropped - start.dropped,
            ..*self
        }
    }
}

impl Meter {
    /// All counters 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The producer's record of a tail that it is about to publish.
    pub(super) fn input(&self, tail: usize, pushed: u64, dropped: u64) {
        self.input.write(tail, [pushed, dropped, 0]);
    }

    /// The consumer's record of a head that it is about to publish.
    pub(super) fn output(&self, head: usize, processed: u64, skipped: u64, dropped: u64) {
        self.output.write(head, [processed, skipped, dropped]);
    }

    /// The counters of a stream of frames of `frame_len` samples in the ring of `gauge`. May be called from any
    /// thread at any time.
    pub fn read(&self, gauge: Gauge<'_>, frame_len: usize) -> Telemetry {
        loop {
            let head = gauge.head();
            let Some([processed, skipped, dropped_old]) = self.output.read(head) else {
                continue;
            };
            let tail = gauge.tail();
            let Some([pushed, dropped_new, _]) = self.input.read(tail) else {
                continue;
            };
            let queued_samples = tail.wrapping_sub(head);
            return Telemetry {
                pushed,
                processed,
                skipped,
                dropped: dropped_old + dropped_new,
                queued: queued_samples.div_ceil(frame_len) as u64,
                queued_samples,
            };
        }
    }
}
