//! How a generator comes from logits to a token.

use crate::sampling::{SamplingError, TokenReport};

/// What a choice may depend on besides the logits.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'h> {
    /// Tokens of the text so far, oldest first.
    pub history: &'h [u32],
    /// Tokens that went before this one, counting those that a context shift has removed: part
    /// of the random counter.
    pub position: u32,
    /// Number of the random stream: another one draws another text with the same seed.
    pub stream: u32,
}

/// Chooses tokens. [`Sampler`](crate::sampling::Sampler) is what it usually is.
pub trait Choose {
    /// A new text begins behind a prompt: what was remembered of the last one is forgotten.
    fn begin(&mut self) {}

    /// Chooses the next token from `logits: (n_vocab)`. It counts as taken.
    ///
    /// # Errors
    /// Nothing can be chosen.
    fn choose(&mut self, logits: &[f32], choice: &Choice<'_>) -> Result<u32, SamplingError>;

    /// Whether nothing may follow the token chosen last: a grammar has come to its end.
    fn is_complete(&self) -> bool {
        false
    }

    /// How likely the token chosen last was, if that is recorded.
    fn report(&self) -> Option<&TokenReport> {
        None
    }
}
