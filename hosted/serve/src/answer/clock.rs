//! The timings of a choice while it is being generated.

use crate::engine::Timings;
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
        }
    }

    pub(super) fn start(&mut self, cached: usize) {
        self.cached = cached;
        self.started = Some(Instant::now());
    }

    pub(super) fn token(&mut self) {
        self.n_predicted += 1;
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
            prompt: first.duration_since(started),
            n_predicted: self.n_predicted,
            predict: first.elapsed(),
            queued: started.duration_since(self.arrived),
            // Values that only the engine knows are in the end event.
            ..Timings::default()
        }
    }
}
