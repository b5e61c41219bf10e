//! One model's probabilities compared with another's.

use super::base::BaseRow;
use super::figures::{Estimate, Sums, exponential};

/// Statistics over the tokens of a text: how far a model's probabilities (Q) are from a base
/// model's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Divergence {
    nats: Sums,
    nats_base: Sums,
    products: f64,
    kld: Sums,
    p_diff: Sums,
    p_diff_squares: Sums,
    n_same_top: u32,
    /// Values of every token, sorted by [`Self::sort`].
    klds: Vec<f64>,
    p_diffs: Vec<f64>,
}

impl Divergence {
    /// Adds a position: the log-probabilities of the model and of the base, and the token that
    /// follows in the text.
    ///
    /// # Panics
    /// If the vocabularies differ in length, or do not contain the token.
    pub(crate) fn add(&mut self, log_p: &[f64], base: &BaseRow<'_>, next: u32) {
        let next = next as usize;
        let (mut kld, mut nats_base, mut count) = (0.0, f64::NAN, 0);
        let (mut top, mut top_base) = ((0, f64::NEG_INFINITY), (0, f64::NEG_INFINITY));
        for (id, (&q, p)) in log_p.iter().zip(base.log_probabilities()).enumerate() {
            let p = f64::from(p);
            if q > top.1 {
                top = (id, q);
            }
            if p > top_base.1 {
                top_base = (id, p);
            }
            // Values that the file does not tell apart are skipped, as in llama.cpp.
            if p > -16.0 {
                kld += p.exp() * (p - q);
            }
            if id == next {
                nats_base = -p;
            }
            count += 1;
        }
        assert_eq!(count, log_p.len());
        assert!(next < count);
        let nats = -log_p[next];
        let p_diff = (-nats).exp() - (-nats_base).exp();
        self.nats.add(nats);
        self.nats_base.add(nats_base);
        self.products += nats * nats_base;
        self.kld.add(kld);
        self.p_diff.add(p_diff);
        self.p_diff_squares.add(p_diff * p_diff);
        self.n_same_top += u32::from(top.0 == top_base.0);
        self.klds.push(kld);
        self.p_diffs.push(p_diff);
    }

    /// Number of tokens so far.
    #[must_use]
    pub(crate) const fn count(&self) -> u32 {
        self.nats.n
    }

    /// Perplexity of the model.
    #[must_use]
    pub(crate) fn perplexity(&self) -> Estimate {
        exponential(self.nats.mean())
    }

    /// Perplexity of the base.
    #[must_use]
    pub(crate) fn perplexity_base(&self) -> Estimate {
        exponential(self.nats_base.mean())
    }

    /// ln(PPL(Q) / PPL(base)).
    #[must_use]
    pub(crate) fn ln_ratio(&self) -> Estimate {
        let (q, base) = (self.nats.mean(), self.nats_base.mean());
        let variance = q.error * q.error + base.error * base.error - 2.0 * self.covariance();
        Estimate {
            value: q.value - base.value,
            error: variance.max(0.0).sqrt(),
        }
    }

    /// PPL(Q) / PPL(base).
    #[must_use]
    pub(crate) fn ratio(&self) -> Estimate {
        exponential(self.ln_ratio())
    }

    /// PPL(Q) − PPL(base).
    #[must_use]
    pub(crate) fn difference(&self) -> Estimate {
        let (q, base) = (self.perplexity(), self.perplexity_base());
        let covariance = q.value * base.value * self.covariance();
        let variance = q.error * q.error + base.error * base.error - 2.0 * covariance;
        Estimate {
            value: q.value - base.value,
            error: variance.max(0.0).sqrt(),
        }
    }

    /// Correlation of the two models' log-probabilities of the text's tokens.
    #[must_use]
    pub(crate) fn correlation(&self) -> f64 {
        self.covariance() / (self.nats.mean().error * self.nats_base.mean().error)
    }

    /// KL divergence of the model from the base, in nats per token.
    #[must_use]
    pub(crate) fn kld(&self) -> Estimate {
        self.kld.mean()
    }

    /// Change of the probability of the text's own tokens.
    #[must_use]
    pub(crate) fn p_diff(&self) -> Estimate {
        self.p_diff.mean()
    }

    /// Root mean square of that change.
    #[must_use]
    pub(crate) fn p_diff_rms(&self) -> Estimate {
        let squares = self.p_diff_squares.mean();
        let value = squares.value.sqrt();
        let error = if value > 0.0 {
            0.5 / value * squares.error
        } else {
            0.0
        };
        Estimate { value, error }
    }

    /// Share of positions at which both models rank the same token first.
    #[must_use]
    pub(crate) fn same_top(&self) -> Estimate {
        let n = f64::from(self.count());
        let value = f64::from(self.n_same_top) / n;
        let error = (value * (1.0 - value) / (n - 1.0)).max(0.0).sqrt();
        Estimate { value, error }
    }

    /// Sorts the values that [`Self::kld_at`] and [`Self::p_diff_at`] look up.
    pub(crate) fn sort(&mut self) {
        self.klds.sort_by(f64::total_cmp);
        self.p_diffs.sort_by(f64::total_cmp);
    }

    /// The KL divergence at this quantile; call [`Self::sort`] first.
    #[must_use]
    pub(crate) fn kld_at(&self, share: f64) -> f64 {
        percentile(&self.klds, share)
    }

    /// The change of probability at this quantile; call [`Self::sort`] first.
    #[must_use]
    pub(crate) fn p_diff_at(&self, share: f64) -> f64 {
        percentile(&self.p_diffs, share)
    }

    /// Covariance of the two means.
    fn covariance(&self) -> f64 {
        let n = f64::from(self.count());
        if self.count() < 10 {
            return 0.0;
        }
        let mean = self.nats.sum / n * (self.nats_base.sum / n);
        (self.products / n - mean) / (n - 1.0)
    }
}

/// Linear interpolation between the two nearest values; NaN if there are none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "an index within the slice"
)]
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = share.clamp(0.0, 1.0) * last as f64;
    let index = at as usize;
    let part = at - index as f64;
    (1.0 - part) * sorted[index] + part * sorted[(index + 1).min(last)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_neighbours() {
        let values = [0.0, 1.0, 2.0, 10.0];
        for (share, expected) in [(0.0, 0.0), (0.5, 1.5), (1.0, 10.0), (0.9, 7.6)] {
            assert!((percentile(&values, share) - expected).abs() < 1e-12);
        }
        assert!(percentile(&[], 0.5).is_nan());
    }
}
