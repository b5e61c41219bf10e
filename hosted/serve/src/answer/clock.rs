//! The timings of a choice while it is being generated.

use crate::engine::Timings;
use core::time::Duration;
use std::time::Instant;

/// Measures the times between the events of one choice.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    arrived: Instant,
    n_prompt: usize,
    cached: usize,
    started: Option<Instant>,
    first: Option<Instant>,
    n_predicted: usize,
    again_since: Option<Instant>,
    /// Time of reading the text again.
    again: Duration,
}

impl Clock {
    pub(super) const fn new(arrived: Instant, n_prompt: usize) -> Self {
        Self {
            arrived,
            n_prompt,
            cached: 0,
            started: None,
            first: None,
            n_predicted: 0,
            again_since: None,
            again: Duration::ZERO,
        }
    }

    /// It was started after it had waited for `queued`.
    pub(super) fn start(&mut self, cached: usize, queued: Duration) {
        self.cached = cached;
        self.started = Some(self.arrived + queued);
    }

    /// The text is read again until the next token, `n_tokens` in all.
    pub(super) fn read_again(&mut self, n_tokens: usize) {
        self.n_prompt += n_tokens;
        self.again_since = Some(Instant::now());
    }

    pub(super) fn token(&mut self) {
        self.n_predicted += 1;
        let since = self.again_since.take();
        self.again += since.map_or(Duration::ZERO, |since| since.elapsed());
        self.first.get_or_insert_with(Instant::now);
    }

    pub(super) const fn n_predicted(&self) -> usize {
        self.n_predicted
    }

    pub(super) fn timings(&self) -> Timings {
        let started = self.started.unwrap_or(self.arrived);
        let first = self.first.unwrap_or(started);
        Timings {
            cached: self.cached,
            n_prompt: self.n_prompt.saturating_sub(self.cached),
            prompt: first.duration_since(started) + self.again,
            n_predicted: self.n_predicted,
            predict: first.elapsed().saturating_sub(self.again),
            queued: started.duration_since(self.arrived),
            // Values that only the engine knows are in the end event.
            ..Timings::default()
        }
    }
}
