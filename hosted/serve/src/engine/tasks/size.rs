//! The number of tokens per step of a task.

use core::time::Duration;
use std::time::Instant;

/// Minimum number of tokens in a step.
const STEP_TOKENS_MIN: usize = 16;

/// Estimates the number of tokens that fit into a turn from the times of earlier steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepSize {
    turn: Duration,
    n_tokens: usize,
    n_max: usize,
}

impl StepSize {
    /// Starts with `n_tokens`, and never exceeds `n_max`.
    pub(super) const fn new(turn: Duration, n_tokens: usize, n_max: usize) -> Self {
        Self {
            turn,
            n_tokens,
            n_max,
        }
    }

    pub(super) const fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Learns from a step of `n` tokens that began at `start`. A step with fewer tokens than allowed is ignored, unless
    /// it took too long.
    pub(super) fn note(&mut self, n: usize, start: Instant) {
        let time = start.elapsed();
        if n != self.n_tokens && time <= self.turn {
            return;
        }
        let fitting = n as u128 * self.turn.as_micros() / time.as_micros().max(1);
        let most = (2 * n).min(self.n_max).max(STEP_TOKENS_MIN);
        self.n_tokens = usize::try_from(fitting)
            .unwrap_or(most)
            .clamp(STEP_TOKENS_MIN, most);
    }
}
