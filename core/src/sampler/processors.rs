//! Processors that change the logits of single tokens: penalties, biases, masks.
//!
//! Definitions follow llama.cpp's samplers of the same names (`src/llama-sampler.cpp`), so
//! that settings carry over.

use super::candidates::find_by_id;
use super::{Candidate, Candidates, LogitsProcessor, SampleContext};

/// Makes tokens of the recent history less likely.
///
/// A token that occurs in the last `repeat_last_n` tokens of the history has its logit divided
/// by `repeat_penalty` where positive, multiplied by it otherwise; then `frequency_penalty`
/// times its number of occurrences and once `presence_penalty` are subtracted. These two may count fewer tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RepetitionPenalty {
    /// Number of the latest tokens that count, 0 for none; `u32::MAX` reaches the whole history.
    pub repeat_last_n: u32,
    /// Number of the latest of these tokens whose occurrences the frequency and presence penalties count: those that
    /// were written, without the prompt. `u32::MAX` counts all of them.
    pub count_last_n: u32,
    /// Factor above 0; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Subtracted per occurrence; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Subtracted once; 0 changes nothing.
    pub presence_penalty: f32,
}

impl RepetitionPenalty {
    /// Whether these settings change nothing.
    #[must_use]
    #[expect(
        clippy::float_cmp,
        reason = "only the exact neutral values change nothing"
    )]
    pub fn is_neutral(&self) -> bool {
        self.repeat_last_n == 0
            || (self.repeat_penalty == 1.0
                && self.frequency_penalty == 0.0
                && self.presence_penalty == 0.0)
    }

    fn scaled(&self, logit: f32) -> f32 {
        if logit > 0.0 {
            logit / self.repeat_penalty
        } else {
            logit * self.repeat_penalty
        }
    }

    fn penalised(&self, logit: f32, count: f32) -> f32 {
        logit - (count * self.frequency_penalty + self.presence_penalty)
    }
}

impl LogitsProcessor for RepetitionPenalty {
    fn apply(&mut self, candidates: &mut Candidates<'_>, context: &SampleContext<'_>) {
        let window = latest(context.history, self.repeat_last_n);
        if self.is_neutral() || window.is_empty() {
            return;
        }
        let by_id = candidates.by_id_mut();
        count(by_id, window);
        for candidate in by_id.iter_mut().filter(|candidate| candidate.p > 0.0) {
            candidate.logit = self.scaled(candidate.logit);
        }
        let counted = latest(window, self.count_last_n);
        if counted.len() < window.len() {
            count(by_id, counted);
        }
        for candidate in by_id.iter_mut().filter(|candidate| candidate.p > 0.0) {
            candidate.logit = self.penalised(candidate.logit, candidate.p);
        }
    }
}

/// The last `n` tokens.
fn latest(tokens: &[u32], n: u32) -> &[u32] {
    let n = usize::try_from(n).unwrap_or(usize::MAX);
    &tokens[tokens.len().saturating_sub(n)..]
}

/// Counts occurrences in `p`: one pass over each of the two lists, however long.
fn count(by_id: &mut [Candidate], tokens: &[u32]) {
    for candidate in by_id.iter_mut() {
        candidate.p = 0.0;
    }
    for &id in tokens {
        if let Some(index) = find_by_id(by_id, id) {
            by_id[index].p += 1.0;
        }
    }
}

/// Adds a constant to the logits of some tokens; ids outside the vocabulary are ignored.
#[derive(Clone, Copy, Debug)]
pub struct LogitBiases<'b>(
    /// The biases, in any order. A token named twice gets both.
    pub &'b [LogitBias],
);

/// One entry of [`LogitBiases`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitBias {
    /// Token id.
    pub id: u32,
    /// Added to its logit. Minus infinity forbids the token, plus infinity forces it.
    pub bias: f32,
}

impl LogitsProcessor for LogitBiases<'_> {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _context: &SampleContext<'_>) {
        for &LogitBias { id, bias } in self.0 {
            candidates.add_bias(id, bias);
        }
    }
}

/// Removes every token whose bit is clear: the form of the masks of grammars and schemas.
#[derive(Clone, Copy, Debug)]
pub struct VocabMask<'m> {
    /// Token `id` is allowed where bit `id % 64` of word `id / 64` is set. Tokens beyond the
    /// last word are not allowed.
    pub words: &'m [u64],
}

impl VocabMask<'_> {
    /// Whether token `id` may be chosen.
    #[must_use]
    pub fn allows(&self, id: u32) -> bool {
        let word = usize::try_from(id / 64)
            .ok()
            .and_then(|index| self.words.get(index));
        word.is_some_and(|word| (word >> (id % 64)) & 1 == 1)
    }
}

impl LogitsProcessor for VocabMask<'_> {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _context: &SampleContext<'_>) {
        candidates.retain(|candidate| self.allows(candidate.id));
    }
}
