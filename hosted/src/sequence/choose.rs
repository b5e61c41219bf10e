//! From logits to a token.

use core::error::Error;
use core::fmt;
use sluice_core::sampler::TokenLogProbability;

/// What a choice may depend on besides the logits.
#[derive(Clone, Copy, Debug)]
pub struct ChoiceContext<'h> {
    /// Tokens of the text so far, oldest first.
    pub history: &'h [u32],
    /// Tokens that went before this one, counting those that a context shift has removed: part
    /// of the random counter.
    pub position: u32,
    /// Number of the choice within its request: another one draws another text with the same seed.
    pub number: u32,
    /// The final hidden state (n_embd) that the logits were computed from, where the session gives those.
    pub hidden: Option<&'h [f32]>,
}

/// Chooses tokens.
pub trait Choose {
    /// A new text begins behind a prompt: what was remembered of the last one is forgotten.
    fn begin(&mut self) {}

    /// Chooses the next token from `logits: (n_vocab)`. It counts as taken.
    ///
    /// # Errors
    /// Nothing can be chosen.
    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError>;

    /// Whether nothing may follow the token chosen last: a grammar has come to its end.
    fn is_complete(&self) -> bool {
        false
    }

    /// Tokens that may only come next, whatever the logits: what a grammar leaves no choice about. They are draft
    /// tokens like others ([`crate::speculate`]), so they need not be cut as the model would cut them.
    fn forced(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// How many of `tokens` may be chosen next, one after the other. Draft tokens beyond them are not verified.
    fn n_allowed(&mut self, tokens: &[u32]) -> usize {
        tokens.len()
    }

    /// Another that chooses as this one would from here on: drafts of a smaller model are drawn with it. `None`
    /// where there cannot be one; the likeliest tokens are drafted then.
    fn copy(&self) -> Option<Box<dyn Choose + Send>> {
        None
    }

    /// How likely the token chosen last was, if that is recorded.
    fn report(&self) -> Option<&TokenReport> {
        None
    }
}

/// How likely the model found a token and others in its place: natural logarithms of the softmax
/// over all logits, before any sampler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenReport {
    /// The token that was chosen.
    pub chosen: TokenLogProbability,
    /// The likeliest tokens, best first.
    pub top: Vec<TokenLogProbability>,
}

/// Why no token was chosen: the logits are broken, everything is masked, or a grammar cannot go on.
#[derive(Debug)]
pub struct ChoiceError(Box<dyn Error + Send + Sync>);

impl ChoiceError {
    /// What a chooser says.
    pub fn new(reason: impl Error + Send + Sync + 'static) -> Self {
        Self(Box::new(reason))
    }
}

impl fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for ChoiceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
