//! Time per operator, added up from the event ring.
#![forbid(unsafe_code)]

use core::fmt;
use core::time::Duration;
use sluice_core::trace::{Event, EventRing, Phase};

/// Sums of events by phase. Its `Display` is a table; times in it are means over the workers.
#[derive(Debug)]
pub struct Profile<'m> {
    ring: EventRing<'m>,
    n_workers: usize,
    sums: [Sum; Phase::ALL.len()],
    lost: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    ns: u64,
    bytes: u64,
}

/// Events that a step of `n_layer` layers makes at most, in all its workers.
#[must_use]
pub const fn events_per_step(n_layer: usize, n_workers: usize) -> usize {
    // A layer has 9 phases and as many barriers.
    (n_layer * 18 + 16) * n_workers
}

impl<'m> Profile<'m> {
    /// Over memory for the events of one step ([`events_per_step`]); `clock` counts nanoseconds.
    #[must_use]
    pub fn new(
        memory: &'m mut [Event],
        n_workers: usize,
        clock: &'m (dyn Fn() -> u64 + Sync),
    ) -> Self {
        Self {
            ring: EventRing::new(memory, n_workers, clock),
            n_workers,
            sums: [Sum::default(); Phase::ALL.len()],
            lost: 0,
        }
    }

    /// What steps record into.
    #[must_use]
    pub const fn ring(&self) -> &EventRing<'m> {
        &self.ring
    }

    /// Adds up what the last step recorded.
    pub fn collect(&mut self) {
        let sums = &mut self.sums;
        self.lost += self.ring.drain(|event| {
            let sum = &mut sums[event.phase as usize];
            sum.count += 1;
            sum.ns += event.end_ticks.saturating_sub(event.start_ticks);
            sum.bytes += event.bytes;
        });
    }
}

impl fmt::Display for Profile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total_ns: u64 = self.sums.iter().map(|sum| sum.ns).sum();
        write!(
            f,
            "{:<14} {:>9} {:>12} {:>7} {:>8}",
            "operator", "calls", "ms/worker", "share", "GB/s"
        )?;
        #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
        for (phase, sum) in Phase::ALL.iter().zip(&self.sums) {
            let workers = self.n_workers as u64;
            let time = Duration::from_nanos(sum.ns / workers);
            let share = 100.0 * sum.ns as f64 / total_ns.max(1) as f64;
            let gb_per_s = sum.bytes as f64 / (sum.ns / workers).max(1) as f64;
            write!(
                f,
                "\n{:<14} {:>9} {:>12.2} {:>6.1}% {:>8.2}",
                phase.name(),
                sum.count,
                1e3 * time.as_secs_f64(),
                share,
                gb_per_s
            )?;
        }
        if self.lost > 0 {
            write!(f, "\n({} events were lost)", self.lost)?;
        }
        Ok(())
    }
}
