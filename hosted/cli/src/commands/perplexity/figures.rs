//! Means over tokens, and the figures derived from them.

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    /// The mean.
    pub(crate) value: f64,
    /// Its standard error.
    pub(crate) error: f64,
}

/// Sums of numbers and of their squares.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) n: u32,
    pub(super) sum: f64,
    pub(super) squares: f64,
}

impl Sums {
    pub(super) fn add(&mut self, x: f64) {
        self.n += 1;
        self.sum += x;
        self.squares += x * x;
    }

    pub(super) fn mean(&self) -> Estimate {
        let n = f64::from(self.n);
        if self.n == 0 {
            return Estimate::default();
        }
        let value = self.sum / n;
        let variance = (self.squares / n - value * value).max(0.0);
        // As in llama.cpp: too few numbers for an error.
        let error = if self.n > 10 {
            (variance / (n - 1.0)).sqrt()
        } else {
            0.0
        };
        Estimate { value, error }
    }
}

/// The negative log-likelihood of a text's tokens, in nats.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Surprise(Sums);

impl Surprise {
    /// Adds a token's negative log-likelihood.
    pub(crate) fn add(&mut self, nats: f64) {
        self.0.add(nats);
    }

    /// Number of tokens so far.
    #[must_use]
    pub(crate) const fn count(&self) -> u32 {
        self.0.n
    }

    /// Nats per token.
    #[must_use]
    pub(crate) fn mean(&self) -> Estimate {
        self.0.mean()
    }

    /// The exponential of the mean.
    #[must_use]
    pub(crate) fn perplexity(&self) -> Estimate {
        exponential(self.mean())
    }
}

/// The estimate of exp(x).
pub(super) fn exponential(x: Estimate) -> Estimate {
    let value = x.value.exp();
    Estimate {
        value,
        error: value * x.error,
    }
}
