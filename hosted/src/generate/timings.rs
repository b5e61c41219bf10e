//! Times of a generator's work.

use core::time::Duration;

/// Times so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct GeneratorTimings {
    /// From the program's start to the model being ready; the caller's to fill in.
    pub load: Duration,
    /// Steps over prompts, per token.
    pub prompt: Span,
    /// Steps over generated tokens, per token, including the time of drafting.
    pub eval: Span,
    /// Draws.
    pub sampling: Span,
    /// Prompt tokens that were in the KV cache already.
    pub reused: usize,
    /// From the start of reading the last prompt to its first token.
    pub first_token: Option<Duration>,
    /// From the program's start to the end of the text; the caller's to fill in.
    pub total: Duration,
}

/// A number of things and their total time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// Number of things.
    pub count: usize,
    /// Nanoseconds.
    pub ns: u128,
}

impl Span {
    /// Adds `count` items that took `ns`.
    pub const fn add(&mut self, count: usize, ns: u128) {
        self.count += count;
        self.ns += ns;
    }

    /// Milliseconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    pub fn ms(&self) -> f64 {
        self.ns as f64 / 1e6
    }

    /// Things per second; 0 for none.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    pub fn per_second(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        1e3 * self.count as f64 / self.ms().max(1e-6)
    }
}
