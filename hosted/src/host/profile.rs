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
    layers: Vec<Sum>,
    lost: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    ns: u64,
    bytes: u64,
}

impl Sum {
    fn add(&mut self, event: &TraceEvent) {
        self.count += 1;
        self.ns += event.end_ticks.saturating_sub(event.start_ticks);
        self.bytes += event.bytes;
    }
}

/// The phases of feed-forward networks.
const NETWORK: [Phase; 4] = [
    Phase::FfnNorm,
    Phase::FfnRouter,
    Phase::FfnGateUp,
    Phase::FfnDown,
];

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
            layers: vec![Sum::default(); n_layer],
            lost: 0,
        }
    }

    /// The ring that steps record into.
    #[must_use]
    pub fn ring(&self) -> &EventRing<'_> {
        self.ring.get()
    }

    /// The mean time over the workers of the feed-forward network of each layer (norm, predictor or router, all of its
    /// matrices, without waiting for each other), and the bytes of these matrices.
    pub fn networks(&self) -> impl Iterator<Item = (Duration, u64)> {
        let mean = |ns| Duration::from_nanos(ns / self.n_workers as u64);
        self.layers.iter().map(move |sum| (mean(sum.ns), sum.bytes))
    }

    /// Adds the records of the last step.
    pub fn collect(&mut self) {
        let (sums, layers) = (&mut self.sums, &mut self.layers);
        let mut add = |event: TraceEvent| {
            sums[event.phase as usize].add(&event);
            let layer = layers.get_mut(usize::from(event.layer));
            if let Some(sum) = layer.filter(|_| NETWORK.contains(&event.phase)) {
                sum.add(&event);
            }
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
