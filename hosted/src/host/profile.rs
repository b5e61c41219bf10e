//! Time per operator, summed from the event ring.
#![forbid(unsafe_code)]

use crate::owned::{Borrower, Owned};
use core::fmt;
use core::time::Duration;
use sluice_core::trace::{EventRing, Phase, TraceEvent};
use std::time::Instant;

/// Sums of events by phase. Its `Display` is a table; times in it are means over the workers.
#[derive(Debug)]
pub struct Profile {
    ring: Owned<Rings, (Vec<TraceEvent>, Box<Clock>)>,
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

/// Counts nanoseconds.
type Clock = dyn Fn() -> u64 + Send + Sync;

impl Profile {
    /// For steps of a model of `n_layer` layers by `n_workers` workers.
    #[must_use]
    pub fn new(n_layer: usize, n_workers: usize) -> Self {
        // A layer has 9 phases and as many barriers.
        let events = vec![TraceEvent::EMPTY; (n_layer * 18 + 16) * n_workers];
        let start = Instant::now();
        let clock = move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let memory: (_, Box<Clock>) = (events, Box::new(clock));
        let ring = Owned::new(memory, |(events, clock)| {
            Ok::<_, core::convert::Infallible>(EventRing::new(events, n_workers, clock))
        });
        let Ok(ring) = ring;
        Self {
            ring,
            n_workers,
            sums: [Sum::default(); Phase::ALL.len()],
            lost: 0,
        }
    }

    /// The ring that steps record into.
    #[must_use]
    pub fn ring(&self) -> &EventRing<'_> {
        self.ring.get()
    }

    /// Adds the records of the last step.
    pub fn collect(&mut self) {
        let sums = &mut self.sums;
        let mut add = |event: TraceEvent| {
            let sum = &mut sums[event.phase as usize];
            sum.count += 1;
            sum.ns += event.end_ticks.saturating_sub(event.start_ticks);
            sum.bytes += event.bytes;
        };
        self.lost += self.ring.with_mut(|ring| ring.drain(&mut add));
    }
}

impl fmt::Display for Profile {
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

/// TraceEvent rings.
struct Rings;

impl Borrower for Rings {
    type Of<'a> = EventRing<'a>;

    fn shorten<'s, 'a: 's>(value: &'s EventRing<'a>) -> &'s EventRing<'s> {
        value
    }
}
