//! A text that has left its session before its end, to be continued by a later sequence.

use super::Sequence;
use super::guard::Guarded;
use super::stop::StopStrings;
use super::{ChoiceContext, ChoiceError, Choose};
use core::fmt;
use sluice_core::tokenizer::Detokenizer;
use std::io;

/// What is needed besides the model to continue a text with the same tokens: all but the state in the KV cache.
pub struct UnfinishedText {
    tokens: Vec<u32>,
    sampler: Guarded,
    detokenizer: Detokenizer,
    stops: StopStrings,
    n_unstopped: usize,
    n_left: usize,
}

impl UnfinishedText {
    /// The tokens of the prompt and those chosen so far.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl Sequence {
    /// Takes what continues the text. `None` if it has ended, or if its context was shifted: the state of such a text
    /// cannot be computed again from its tokens.
    pub fn take_unfinished(&mut self) -> Option<UnfinishedText> {
        if self.ended.is_some() || self.n_shifted > 0 {
            return None;
        }
        let mut tokens = self.tokens.clone();
        tokens.extend_from_slice(&self.queue);
        Some(UnfinishedText {
            tokens,
            sampler: core::mem::replace(&mut self.sampler, Guarded::new(Box::new(Taken))),
            detokenizer: self.detokenizer.clone(),
            stops: self.stops.clone(),
            n_unstopped: self.n_unstopped,
            n_left: self.n_left,
        })
    }

    /// Continues a text, whose tokens are to be queued.
    pub fn continue_text(&mut self, text: UnfinishedText) {
        self.sampler = text.sampler;
        self.detokenizer = text.detokenizer;
        self.stops = text.stops;
        self.n_unstopped = text.n_unstopped;
        self.n_left = text.n_left;
    }
}

impl fmt::Debug for UnfinishedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnfinishedText")
            .field("n_tokens", &self.tokens.len())
            .field("n_left", &self.n_left)
            .finish_non_exhaustive()
    }
}

/// Stands for the sampler of a sequence whose text was taken.
struct Taken;

impl Choose for Taken {
    fn choose(&mut self, _: &[f32], _: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        Err(ChoiceError::new(io::Error::other("the text was taken out")))
    }
}
