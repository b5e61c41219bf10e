//! How likely the model found a token: natural logarithms of the softmax over all logits.

use crate::kernels::contract::double;

use super::candidates::select_top;
use super::{SampleError, greedy, math};

/// A token and the logarithm of its probability.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenLogProbability {
    /// Token id.
    pub id: u32,
    /// Natural logarithm of its probability, at most 0; minus infinity for a masked token.
    pub log_probability: f32,
}

/// Natural logarithm of the probability of token `id` under `logits: (n_vocab)`.
///
/// # Errors
/// [`SampleError::UnknownToken`] for an id outside the logits; otherwise as [`greedy`].
pub fn log_probability(logits: &[f32], id: u32) -> Result<f32, SampleError> {
    let logit = usize::try_from(id).ok().and_then(|index| logits.get(index));
    let &logit = logit.ok_or(SampleError::UnknownToken {
        id,
        n_vocab: logits.len(),
    })?;
    Ok(Normaliser::of(logits)?.log_probability(logit))
}

/// Fills `top` with the most likely tokens, best first, and returns how many there are.
///
/// That is the shorter of `top` and `logits: (n_vocab)`; equal ones are ordered by id.
///
/// # Errors
/// As [`greedy`].
pub fn top_log_probabilities(
    logits: &[f32],
    top: &mut [TokenLogProbability],
) -> Result<usize, SampleError> {
    let normaliser = Normaliser::of(logits)?;
    let count = top.len().min(logits.len());
    let top = &mut top[..count];
    // Selected by logit, not by its logarithm, in which rounding may make new ties.
    let mut entries = (0u32..)
        .zip(logits)
        .map(|(id, &log_probability)| TokenLogProbability {
            id,
            log_probability,
        });
    for (slot, entry) in top.iter_mut().zip(&mut entries) {
        *slot = entry;
    }
    select_top(top, entries, |entry| (entry.log_probability, entry.id));
    for entry in top {
        entry.log_probability = normaliser.log_probability(entry.log_probability);
    }
    Ok(count)
}

/// The terms that turn the logits of one row into log-probabilities.
struct Normaliser {
    max: f32,
    /// Logarithm of the sum of `exp(logit - max)`.
    ln_sum: f64,
}

impl Normaliser {
    fn of(logits: &[f32]) -> Result<Self, SampleError> {
        let best = greedy(logits)?;
        let max = logits[usize::try_from(best).expect("an index of the slice")];
        let sum = logits
            .iter()
            .map(|&logit| f64::from(math::weight(logit, max)))
            .sum();
        Ok(Self {
            max,
            ln_sum: double::ln(sum),
        })
    }

    fn log_probability(&self, logit: f32) -> f32 {
        #[expect(clippy::float_cmp, reason = "infinity minus itself is not zero")]
        let difference = if logit == self.max {
            0.0
        } else {
            f64::from(logit) - f64::from(self.max)
        };
        math::round_to_f32(difference - self.ln_sum)
    }
}
