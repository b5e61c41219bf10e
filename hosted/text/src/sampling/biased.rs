//! What is added to logits before anything else.
#![forbid(unsafe_code)]

use sluice_core::sampler::{Candidates, LogitBias, LogitBiases, LogitsProcessor, SampleContext};

/// Biases of tokens, and sequences of tokens that are never completed.
#[derive(Debug)]
pub(super) struct Biased<'s> {
    pub(super) biases: &'s [LogitBias],
    /// As [`SamplingSettings::bad_words`](super::SamplingSettings::bad_words).
    pub(super) bad_words: &'s [Vec<u32>],
    /// The tokens of the text, without its prompt.
    pub(super) written: &'s [u32],
}

impl Biased<'_> {
    /// Whether no text is changed.
    pub(super) fn is_neutral(&self) -> bool {
        self.biases.is_empty() && self.bad_words.is_empty()
    }
}

impl LogitsProcessor for Biased<'_> {
    fn apply(&mut self, candidates: &mut Candidates<'_>, context: &SampleContext<'_>) {
        LogitBiases(self.biases).apply(candidates, context);
        let words = self.bad_words.iter().filter_map(|word| word.split_last());
        for (&last, _) in words.filter(|(_, before)| self.written.ends_with(before)) {
            candidates.add_bias(last, f32::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_core::sampler::Candidate;

    #[test]
    fn the_last_token_of_a_word_is_excluded_after_the_others() {
        let bad_words = [vec![1], vec![5, 2], vec![4, 5, 3], vec![0, 5, 4]];
        let excluded = |written: &[u32]| {
            let mut storage = vec![Candidate::default(); 6];
            let logits = [0.0; 6];
            let mut candidates = Candidates::from_logits(&mut storage, &logits).expect("room");
            let mut biased = Biased {
                biases: &[LogitBias { id: 0, bias: 1.0 }],
                bad_words: &bad_words,
                written,
            };
            let context = SampleContext {
                history: &[],
                sequence: 0,
                position: 0,
                seed: 0,
            };
            biased.apply(&mut candidates, &context);
            let all = candidates.as_slice().iter();
            let excluded = all.filter(|candidate| candidate.logit == f32::NEG_INFINITY);
            excluded.map(|candidate| candidate.id).collect::<Vec<_>>()
        };
        assert_eq!(excluded(&[]), [1]);
        assert_eq!(excluded(&[5]), [1, 2]);
        assert_eq!(excluded(&[5, 0]), [1]);
        assert_eq!(excluded(&[0, 4, 5]), [1, 2, 3]);
        assert_eq!(excluded(&[0, 5]), [1, 2, 4]);
    }
}
