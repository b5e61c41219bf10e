//! The sampler of a draft model's text.

use crate::model::Model;
use crate::sequence::{Choice, ChoiceError, Choose, TokenReport};
use core::fmt;
use sluice_core::sampler::{TokenLogProbability, greedy, log_probability, top_log_probabilities};

/// Draws a draft token and says how likely the model found it.
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

    /// The logits as the sampler is to see them, in `self.logits`; false where they are as the model gave them.
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
            let mut top = [TokenLogProbability::default(); RESCORED];
            let n = top_log_probabilities(logits, &mut top).unwrap_or(0);
            let mut row = vec![0.0; hidden.len()];
            for token in &top[..n] {
                let logit = model.weights().logit(token.id, hidden, &mut row);
                self.logits[token.id as usize] = logit;
            }
        }
        true
    }
}

/// Tokens that are scored again. Source: QCSD, whose draft scans a low-bit output layer and scores its best exactly.
const RESCORED: usize = 64;

impl Choose for DraftSampler {
    fn choose(&mut self, logits: &[f32], choice: &Choice<'_>) -> Result<u32, ChoiceError> {
        let logits = match self.prepare(logits, choice.hidden) {
            true => &self.logits,
            false => logits,
        };
        let id = match &mut self.sampler {
            Some(sampler) => sampler.choose(logits, choice)?,
            None => greedy(logits).map_err(ChoiceError::new)?,
        };
        let log_probability = log_probability(logits, id).unwrap_or(f32::NEG_INFINITY);
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
