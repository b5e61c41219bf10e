//! Counters and histograms over atomics.
//!
//! One thread writes and any thread may read: a reader may see a count before its sum, which monitoring tolerates.

use core::fmt::{self, Write as _};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// A number that only increases.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Raises it to `n`, unless it is larger already.
    pub(super) fn raise(&self, n: u64) {
        self.0.fetch_max(n, Ordering::Relaxed);
    }
}

/// A time that only increases.
#[derive(Debug, Default)]
pub(super) struct Seconds(Counter);

impl Seconds {
    pub(super) fn add(&self, time: Duration) {
        self.0.add(nanos(time));
    }

    pub(super) fn value(&self) -> f64 {
        Duration::from_nanos(self.0.value()).as_secs_f64()
    }
}

/// A number that is set.
#[derive(Debug, Default)]
pub(super) struct Gauge(AtomicU64);

impl Gauge {
    pub(super) fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    pub(super) fn value(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// The numbers of observations below each border.
#[derive(Debug)]
pub(super) struct Histogram {
    borders: &'static [f64],
    /// One for each border, and one for observations above them all.
    counts: Vec<Counter>,
    /// In nanoseconds for times, otherwise in the unit of the observations.
    sum: Counter,
    is_time: bool,
}

impl Histogram {
    /// A histogram of times, with borders in seconds.
    pub(super) fn of_time(borders: &'static [f64]) -> Self {
        Self::new(borders, true)
    }

    /// A histogram of integers.
    pub(super) fn of_numbers(borders: &'static [f64]) -> Self {
        Self::new(borders, false)
    }

    fn new(borders: &'static [f64], is_time: bool) -> Self {
        let counts = (0..=borders.len()).map(|_| Counter::default()).collect();
        Self {
            borders,
            counts,
            sum: Counter::default(),
            is_time,
        }
    }

    pub(super) fn observe_time(&self, time: Duration) {
        debug_assert!(self.is_time);
        self.observe(time.as_secs_f64(), nanos(time));
    }

    pub(super) fn observe_number(&self, n: usize) {
        debug_assert!(!self.is_time);
        self.observe(n as f64, n as u64);
    }

    fn observe(&self, value: f64, summand: u64) {
        let bucket = self.borders.partition_point(|&border| border < value);
        self.counts[bucket].add(1);
        self.sum.add(summand);
    }

    /// Writes its lines in Prometheus' text format, each with `labels`.
    pub(super) fn write(&self, text: &mut String, name: &str, labels: &str) -> fmt::Result {
        let mut total = 0;
        for (count, border) in self.counts.iter().zip(self.borders) {
            total += count.value();
            writeln!(text, "{name}_bucket{{{labels},le=\"{border:?}\"}} {total}")?;
        }
        total += self.counts[self.borders.len()].value();
        writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {total}")?;
        writeln!(text, "{name}_count{{{labels}}} {total}")?;
        let sum = if self.is_time {
            Duration::from_nanos(self.sum.value()).as_secs_f64()
        } else {
            self.sum.value() as f64
        };
        writeln!(text, "{name}_sum{{{labels}}} {sum:?}")
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_is_not_above_their_border() {
        let histogram = Histogram::of_numbers(&[1.0, 5.0]);
        for n in [0, 1, 2, 5, 6] {
            histogram.observe_number(n);
        }
        let mut text = String::new();
        histogram
            .write(&mut text, "x", "a=\"b\"")
            .expect("strings take all");
        let expected = "x_bucket{a=\"b\",le=\"1.0\"} 2\nx_bucket{a=\"b\",le=\"5.0\"} 4\n\
            x_bucket{a=\"b\",le=\"+Inf\"} 5\nx_count{a=\"b\"} 5\nx_sum{a=\"b\"} 14.0\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn time_is_summed_in_seconds() {
        let histogram = Histogram::of_time(&[0.5]);
        histogram.observe_time(Duration::from_millis(250));
        histogram.observe_time(Duration::from_millis(750));
        let mut text = String::new();
        histogram
            .write(&mut text, "t", "a=\"b\"")
            .expect("strings take all");
        assert!(text.contains("le=\"0.5\"} 1\n"), "{text}");
        assert!(text.ends_with("t_sum{a=\"b\"} 1.0\n"), "{text}");
    }
}
