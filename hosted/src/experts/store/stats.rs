//! Statistics of a store.
#![forbid(unsafe_code)]

use core::time::Duration;

/// Counts since a store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertStats {
    /// Slots of memory, each for one expert.
    pub n_slots: usize,
    /// Bytes of a slot.
    pub slot_bytes: usize,
    /// Experts of all layers.
    pub n_experts: usize,
    /// How often a layer of a step needed an expert.
    pub needed: u64,
    /// Needed experts that were in memory.
    pub hits: u64,
    /// Needed experts that were still being read because they had been guessed.
    pub late: u64,
    /// Evicted experts.
    pub evictions: u64,
    /// Experts that were read by a guess.
    pub guessed: u64,
    /// Guessed experts that were needed.
    pub guessed_needed: u64,
    /// Completed reads.
    pub reads: u64,
    /// Bytes of all reads.
    pub read_bytes: u64,
    /// Bytes of reads by guesses.
    pub guessed_bytes: u64,
    /// Reads that failed and were retried.
    pub retries: u64,
    /// Experts that could not be read.
    pub failures: u64,
    /// Reads under way.
    pub n_reading: usize,
    /// Calls of `io_uring_enter`; 0 for other ways to read.
    pub enters: u64,
    /// Time that workers waited for experts, summed over all workers.
    pub stall: Duration,
    /// Time of the reads that a layer waited for, summed.
    pub read_time: Duration,
    /// These reads by their time: each up to the limit in [`READ_TIMES`] of that index, the last longer than all.
    pub read_times: [u64; READ_TIMES.len() + 1],
}

impl ExpertStats {
    /// Hits as a share of needed experts, 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
    pub fn hit_rate(&self) -> f64 {
        match self.needed {
            0 => 0.0,
            n => self.hits as f64 / n as f64,
        }
    }

    /// The difference from `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut read_times = self.read_times;
        for (count, before) in read_times.iter_mut().zip(before.read_times) {
            *count -= before;
        }
        Self {
            needed: self.needed - before.needed,
            hits: self.hits - before.hits,
            late: self.late - before.late,
            evictions: self.evictions - before.evictions,
            guessed: self.guessed - before.guessed,
            guessed_needed: self.guessed_needed - before.guessed_needed,
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            guessed_bytes: self.guessed_bytes - before.guessed_bytes,
            retries: self.retries - before.retries,
            failures: self.failures - before.failures,
            enters: self.enters - before.enters,
            stall: self.stall - before.stall,
            read_time: self.read_time - before.read_time,
            read_times,
            ..*self
        }
    }

    /// The time within which a share of the reads (such as half) was done: the limit of its bucket.
    #[must_use]
    pub fn read_time_at(&self, share: f64) -> Option<Duration> {
        let n: u64 = self.read_times.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
        let wanted = share * n as f64;
        let mut sum = 0;
        for (count, limit) in self.read_times.iter().zip(READ_TIMES) {
            sum += count;
            #[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
            if n > 0 && sum as f64 >= wanted {
                return Some(limit);
            }
        }
        None
    }

    pub(super) fn note_read_time(&mut self, time: Duration) {
        self.read_time += time;
        let bucket = READ_TIMES.iter().position(|limit| time <= *limit);
        self.read_times[bucket.unwrap_or(READ_TIMES.len())] += 1;
    }
}

/// Limits of the buckets that reads are counted in by their time: half a power of two apart, from 0.1 ms to 3.3 s.
pub const READ_TIMES: [Duration; 31] = {
    let mut limits = [Duration::ZERO; 31];
    let mut i = 0;
    while i < limits.len() {
        let whole = 100 << (i / 2);
        // The root of two, in thousandths.
        let micros = if i % 2 == 0 {
            whole
        } else {
            whole * 1414 / 1000
        };
        limits[i] = Duration::from_micros(micros);
        i += 1;
    }
    limits
};
