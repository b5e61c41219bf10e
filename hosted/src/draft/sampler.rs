//! The sampler of a draft model's text.

use crate::model::Model;
use crate::sequence::{ChoiceContext, ChoiceError, Choose, TokenReport};
use core::fmt;
use sluice_core::sampler::{TokenLogProbability, greedy};

/// Draws a draft token and reports how likely the model found it.
pub(super) struct DraftSampler {
    sampler: Option<Box<dyn Choose + Send>>,
    /// Tokens of the vocabulary that the sampler knows.
    n_vocab: usize,
    /// The model whose output layer scores the likeliest tokens again.
    exact: Option<Model>,
    logits: Vec<f32>,
    report: TokenReport,
}

impl DraftSampler {
    /// Without a sampler the likeliest token is drafted.
    pub(super) fn new(
        sampler: Option<Box<dyn Choose + Send>>,
        n_vocab: usize,
        exact: Option<Model>,
    ) -> Self {
        Self {
            sampler,
            n_vocab,
            exact,
            logits: Vec::new(),
            report: TokenReport::default(),
        }
    }

    /// The logits as the sampler needs them, in `self.logits`; false if the model's own can be used as they are.
    fn prepare(&mut self, logits: &[f32], hidden: Option<&[f32]>) -> bool {
        let exact = self.exact.as_ref().zip(hidden);
        if exact.is_none() && logits.len() == self.n_vocab {
            return false;
        }
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        // Vocabularies that are alike may be padded differently.
        self.logits.resize(self.n_vocab, f32::NEG_INFINITY);
        if let Some((model, hidden)) = exact {
            let mut row = vec![0.0; hidden.len()];
            for id in likeliest(logits) {
                self.logits[id as usize] = model.weights().logit(id, hidden, &mut row);
            }
        }
        true
    }
}

/// Maximum number of tokens scored again. Source: QCSD, whose draft scans a low-bit output layer and scores its best
/// exactly.
const RESCORED: usize = 64;
/// Tokens whose logits are further below the largest are not: a few bits less do not move them that far.
const REACH: f32 = 6.0;
/// Logits further below the largest add nothing to a probability.
const NEGLIGIBLE: f32 = 20.0;

/// The tokens of the largest logits, in no order.
fn likeliest(logits: &[f32]) -> Vec<u32> {
    let largest = largest(logits);
    let near = (0u32..).zip(logits);
    let mut near: Vec<_> = near
        .filter(|(_, logit)| **logit > largest - REACH)
        .collect();
    if near.len() > RESCORED {
        near.select_nth_unstable_by(RESCORED, |a, b| b.1.total_cmp(a.1));
        near.truncate(RESCORED);
    }
    near.into_iter().map(|(id, _)| id).collect()
}

fn largest(logits: &[f32]) -> f32 {
    logits
        .iter()
        .fold(f32::NEG_INFINITY, |most, logit| most.max(*logit))
}

/// The approximate probability of `id`, to sort draft tokens by: fast, as it is computed for each of them.
pub(super) fn probability(logits: &[f32], id: u32) -> f32 {
    let largest = largest(logits);
    let share = |logit: &f32| (logit - largest).exp();
    let near = logits.iter().filter(|logit| **logit > largest - NEGLIGIBLE);
    let own = logits.get(id as usize).map_or(0.0, share);
    own / near.map(share).sum::<f32>().max(1.0)
}

impl Choose for DraftSampler {
    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        let logits = match self.prepare(logits, choice.hidden) {
            true => &self.logits,
            false => logits,
        };
        let id = match &mut self.sampler {
            Some(sampler) => sampler.choose(logits, choice)?,
            None => greedy(logits).map_err(ChoiceError::new)?,
        };
        let log_probability = probability(logits, id).ln();
        self.report.chosen = TokenLogProbability {
            id,
            log_probability,
        };
        Ok(id)
    }

    fn report(&self) -> Option<&TokenReport> {
        Some(&self.report)
    }
}

impl fmt::Debug for DraftSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DraftSampler").finish_non_exhaustive()
    }
}
