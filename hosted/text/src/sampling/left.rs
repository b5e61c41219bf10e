//! How likely a token was among those that the samplers left.

use sluice::sequence::TokenReport;
use sluice_core::sampler::{Candidate, Candidates, SampleError, TokenLogProbability};

/// The probability of `token` among the candidates, and the probabilities of the `n` likeliest that are possible at all.
pub(super) fn report(
    candidates: &mut Candidates<'_>,
    token: u32,
    n: usize,
) -> Result<TokenReport, SampleError> {
    candidates.softmax()?;
    candidates.sort();
    let all = candidates.as_slice();
    let logarithm = |candidate: &Candidate| TokenLogProbability {
        id: candidate.id,
        log_probability: candidate.p.ln(),
    };
    // A token that was forced need not be among them.
    let none = TokenLogProbability {
        id: token,
        log_probability: f32::NEG_INFINITY,
    };
    let chosen = all.iter().find(|candidate| candidate.id == token);
    let possible = all.iter().filter(|candidate| candidate.p > 0.0);
    Ok(TokenReport {
        chosen: chosen.map_or(none, logarithm),
        top: possible.take(n).map(logarithm).collect(),
    })
}
