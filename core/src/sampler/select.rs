//! Choosing one token: the best, or a random one by probability.

use super::candidates::rank_key;
use super::{Candidate, Candidates, SampleContext, SampleError, uniform};

/// The token of the highest logit; among equals the lowest id.
///
/// `logits: (n_vocab)`.
///
/// # Errors
/// [`SampleError::NotANumber`] naming the first NaN; [`SampleError::NoCandidate`] when `logits`
/// is empty or holds only minus infinity.
pub fn greedy(logits: &[f32]) -> Result<u32, SampleError> {
    let best = (0u32..)
        .zip(logits)
        .min_by_key(|&(id, &logit)| rank_key(logit, id));
    match best {
        Some((id, logit)) if logit.is_nan() => Err(SampleError::NotANumber { id }),
        Some((id, &logit)) if logit > f32::NEG_INFINITY => Ok(id),
        _ => Err(SampleError::NoCandidate),
    }
}

/// Draws one of the candidates with the probabilities of a softmax over their logits.
///
/// A pure function of the candidates (their order counts) and of the context's seed, sequence
/// and position. Afterwards `p` of every candidate is its probability.
///
/// # Errors
/// As [`Candidates::softmax`].
pub fn sample(
    candidates: &mut Candidates<'_>,
    context: &SampleContext<'_>,
) -> Result<u32, SampleError> {
    Ok(draw(candidates, context)?.id)
}

/// [`sample`], with the probability of the token drawn.
pub(super) fn draw(
    candidates: &mut Candidates<'_>,
    context: &SampleContext<'_>,
) -> Result<Candidate, SampleError> {
    candidates.softmax()?;
    let u = uniform(context.seed, context.sequence, context.position, 0);
    // The p are rounded, so they add up to 1 only nearly: the draw is scaled to their sum.
    let sum: f64 = candidates
        .as_slice()
        .iter()
        .map(|candidate| f64::from(candidate.p))
        .sum();
    let target = u * sum;
    let mut reached = 0.0;
    let mut chosen = None;
    for candidate in candidates.as_slice() {
        if candidate.p > 0.0 {
            chosen = Some(*candidate);
            reached += f64::from(candidate.p);
            if reached > target {
                break;
            }
        }
    }
    chosen.ok_or(SampleError::NoCandidate)
}
