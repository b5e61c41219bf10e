//! A bucket of tokens: it fills at a constant rate, and what is overdrawn is paid first.

use core::time::Duration;
use std::time::Instant;

/// A budget of tokens a minute. A request is let in while there is anything in the bucket, and then ends whole. What
/// it is expected to use is taken at once, so that requests that come together see each other.
#[derive(Debug)]
pub(super) struct Budget {
    per_second: f64,
    /// Negative: debt.
    level: f64,
    at: Instant,
}

impl Budget {
    pub(super) fn new(per_minute: u32, now: Instant) -> Self {
        let per_second = f64::from(per_minute) / 60.0;
        Self {
            per_second,
            level: per_second * BURST_SECONDS,
            at: now,
        }
    }

    /// Sets another rate. Debt stays.
    pub(super) fn set_rate(&mut self, per_minute: u32, now: Instant) {
        self.fill(now);
        self.per_second = f64::from(per_minute) / 60.0;
        self.fill(now);
    }

    /// Lets a request in, or returns the time until the next one is.
    pub(super) fn check(&mut self, now: Instant) -> Result<(), Duration> {
        self.fill(now);
        if self.level > 0.0 {
            return Ok(());
        }
        let seconds = -self.level / self.per_second;
        // A moment more, because the bucket must not be empty then.
        let wait = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        Err(wait.saturating_add(Duration::from_millis(1)))
    }

    /// Takes tokens.
    pub(super) fn take(&mut self, n: u64, now: Instant) {
        self.fill(now);
        self.level -= float(n);
    }

    /// Puts tokens back that were taken and not used.
    pub(super) fn put(&mut self, n: u64, now: Instant) {
        self.level += float(n);
        self.fill(now);
    }

    pub(super) fn level(&mut self, now: Instant) -> f64 {
        self.fill(now);
        self.level
    }

    fn fill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.at).as_secs_f64();
        self.at = self.at.max(now);
        let full = self.per_second * BURST_SECONDS;
        self.level = (self.level + seconds * self.per_second).min(full);
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
const fn float(n: u64) -> f64 {
    n as f64
}

/// What a key saves up while it is idle. It is 1% of ten minutes, so that this much is the most that any ten minutes
/// can have in excess of the rate, in addition to a request.
const BURST_SECONDS: f64 = 6.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debt_is_paid_before_the_next_request() {
        let start = Instant::now();
        let mut budget = Budget::new(600, start);
        budget.check(start).unwrap();
        budget.take(160, start);
        let wait = budget.check(start).unwrap_err();
        assert_eq!(wait, Duration::from_millis(10_001));
        budget.check(start + Duration::from_secs(10)).unwrap_err();
        budget.check(start + wait).unwrap();
    }

    #[test]
    fn nothing_is_saved_beyond_six_seconds() {
        let start = Instant::now();
        let mut budget = Budget::new(600, start);
        let later = start + Duration::from_secs(3600);
        budget.take(60, later);
        budget.check(later).unwrap_err();
        budget.put(1000, later);
        budget.take(60, later);
        budget.check(later).unwrap_err();
    }

    #[test]
    fn another_rate_keeps_the_debt() {
        let start = Instant::now();
        let mut budget = Budget::new(600, start);
        budget.take(660, start);
        budget.set_rate(6000, start);
        assert_eq!(budget.check(start), Err(Duration::from_millis(6001)));
        budget.set_rate(60, start + Duration::from_secs(100));
        budget.take(6, start + Duration::from_secs(100));
        budget.check(start + Duration::from_secs(100)).unwrap_err();
    }
}
