//! Mirostat: draws that keep the surprise of the text near a target.
//!
//! <https://arxiv.org/abs/2007.14966>, with the details of llama.cpp's two samplers
//! (`src/llama-sampler.cpp`). It narrows the choice, draws, and learns from what was drawn.

use super::select::draw;
use super::{Candidates, SampleContext, SampleError, math};

/// Which of the two algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MirostatVersion {
    /// None: the chain's own samplers.
    #[default]
    Off,
    /// Estimates the exponent of Zipf's law and from it how many tokens to keep.
    V1,
    /// Keeps the tokens whose surprise is at most the current limit.
    V2,
}

/// Mirostat's settings and the one number that it learns.
///
/// Unlike every other part of a chain it has a state: the draw at a position depends on those
/// before it in the same text, by way of [`Self::mu`]. The same text with the same seed repeats
/// all the same; a caller that forks or rewinds a sequence keeps the number too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// Which algorithm; with [`MirostatVersion::Off`] a draw is a plain one.
    pub version: MirostatVersion,
    /// The surprise to aim at, in bits, llama.cpp's default 5.
    pub tau: f32,
    /// How quickly it learns, default 0.1.
    pub eta: f32,
    /// The present limit of surprise, in bits; begins at twice `tau`.
    pub mu: f32,
}

impl Mirostat {
    /// At the beginning of a text.
    #[must_use]
    pub fn new(version: MirostatVersion, tau: f32, eta: f32) -> Self {
        Self {
            version,
            tau,
            eta,
            mu: 2.0 * tau,
        }
    }

    /// Narrows `candidates`, draws one of those that are left, and learns from it.
    ///
    /// `n_vocab` is the size of the vocabulary, masked tokens included.
    ///
    /// # Errors
    /// As [`Candidates::softmax`]; nothing is learnt then.
    pub fn sample(
        &mut self,
        candidates: &mut Candidates<'_>,
        n_vocab: usize,
        context: &SampleContext<'_>,
    ) -> Result<u32, SampleError> {
        match self.version {
            MirostatVersion::Off => return Ok(draw(candidates, context)?.id),
            MirostatVersion::V1 => self.keep_by_zipf(candidates, n_vocab),
            MirostatVersion::V2 => self.keep_by_surprise(candidates)?,
        }
        let chosen = draw(candidates, context)?;
        let observed = -math::log2(f64::from(chosen.p));
        let error = math::round_to_f32(observed) - self.tau;
        self.mu -= self.eta * error;
        Ok(chosen.id)
    }

    fn keep_by_zipf(&self, candidates: &mut Candidates<'_>, n_vocab: usize) {
        candidates.sort();
        let sorted = candidates.as_slice();
        let (mut sum_tb, mut sum_tt) = (0.0, 0.0);
        for (rank, pair) in (1u32..).zip(sorted.windows(2)).take(ZIPF_PAIRS) {
            let t = math::ln(f64::from(rank + 1) / f64::from(rank));
            // The logarithm of the ratio of two probabilities.
            let b = f64::from(pair[0].logit) - f64::from(pair[1].logit);
            if !b.is_finite() {
                break;
            }
            sum_tb += t * b;
            sum_tt += t * t;
        }
        let exponent = sum_tb / sum_tt;
        let excess = exponent - 1.0;
        #[expect(
            clippy::cast_precision_loss,
            reason = "vocabularies are far below 2^53"
        )]
        let n_vocab = n_vocab as f64;
        let ratio =
            excess * math::pow(2.0, f64::from(self.mu)) / (1.0 - math::pow(n_vocab, -excess));
        // Not a number becomes 0, as a single candidate makes it: one token is kept.
        let k = math::to_u32(math::pow(ratio, 1.0 / exponent)).max(1);
        candidates.keep_top(usize::try_from(k).unwrap_or(usize::MAX));
    }

    fn keep_by_surprise(&self, candidates: &mut Candidates<'_>) -> Result<(), SampleError> {
        candidates.softmax()?;
        let least = math::pow(2.0, -f64::from(self.mu));
        let passes = |p: f32| f64::from(p) >= least;
        if candidates
            .as_slice()
            .iter()
            .any(|candidate| passes(candidate.p))
        {
            candidates.retain(|candidate| passes(candidate.p));
        } else {
            candidates.keep_top(1);
        }
        Ok(())
    }
}

/// Number of the likeliest tokens that Zipf's exponent is estimated from, less one (llama.cpp's m = 100).
const ZIPF_PAIRS: usize = 99;
