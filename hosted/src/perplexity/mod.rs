//! How well a model foresees a text, alone ([`Surprise`]) and against another model's
//! probabilities of the same text ([`Divergence`], [`BaseFile`]): llama-perplexity's figures.
//!
//! The text is cut into chunks of one length that are read from an empty context. The tokens behind
//! a chunk's first half count, so that each has some context.
#![forbid(unsafe_code)]

mod base;
mod divergence;

pub use base::{BaseError, BaseFile, BaseRow, BaseShape, BaseWriter};
pub use divergence::Divergence;

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

/// Sums of numbers and of their squares.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    n: u32,
    sum: f64,
    squares: f64,
}

impl Sums {
    fn add(&mut self, x: f64) {
        self.n += 1;
        self.sum += x;
        self.squares += x * x;
    }

    fn mean(&self) -> Estimate {
        let n = f64::from(self.n);
        if self.n == 0 {
            return Estimate::default();
        }
        let value = self.sum / n;
        let variance = (self.squares / n - value * value).max(0.0);
        // As llama.cpp: of so few numbers it says nothing.
        let error = if self.n > 10 {
            (variance / (n - 1.0)).sqrt()
        } else {
            0.0
        };
        Estimate { value, error }
    }
}

/// What a model paid for the tokens it read, in nats.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surprise(Sums);

impl Surprise {
    /// Adds a token of this probability's negative logarithm.
    pub fn add(&mut self, nats: f64) {
        self.0.add(nats);
    }

    /// Tokens so far.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.0.n
    }

    /// Nats per token.
    #[must_use]
    pub fn mean(&self) -> Estimate {
        self.0.mean()
    }

    /// The exponential of the mean.
    #[must_use]
    pub fn perplexity(&self) -> Estimate {
        exponential(self.mean())
    }
}

/// The estimate of exp(x).
fn exponential(x: Estimate) -> Estimate {
    let value = x.value.exp();
    Estimate {
        value,
        error: value * x.error,
    }
}
