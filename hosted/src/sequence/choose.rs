//! From logits to a token.

use core::error::Error;
use core::fmt;
use sluice_core::sampler::TokenLogProbability;

/// Inputs of a choice in addition to the logits.
#[derive(Clone, Copy, Debug)]
pub struct ChoiceContext<'h> {
    /// Tokens of the text so far, oldest first.
    pub history: &'h [u32],
    /// Number of tokens before this one, including those that a context shift has removed: part
    /// of the random counter.
    pub position: u32,
    /// Number of the choice within its request: a different number gives a different text with the same seed.
    pub number: u32,
    /// The final hidden state (n_embd) that the logits were computed from, if the session provides it.
    pub hidden: Option<&'h [f32]>,
}

/// Chooses tokens.
pub trait Choose {
    /// A new text begins after a prompt: forgets the state of the last one.
    fn begin(&mut self) {}

    /// Chooses the next token from `logits: (n_vocab)`, and treats it as accepted.
    ///
    /// # Errors
    /// Nothing can be chosen.
    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError>;

    /// Whether nothing may follow the token chosen last: a grammar is complete.
    fn is_complete(&self) -> bool {
        false
    }

    /// Tokens that must come next, whatever the logits: a grammar allows no others. They are draft tokens like others
    /// ([`crate::speculate`]), so they need not be split as the model would split them.
    fn forced(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// How many of `tokens` may be chosen next, one after the other. Draft tokens beyond them are not verified.
    fn n_allowed(&mut self, tokens: &[u32]) -> usize {
        tokens.len()
    }

    /// A copy that chooses as this one would from here on, to draw a smaller model's drafts. `None` if it cannot be
    /// copied; the likeliest tokens are drafted then.
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

/// Why no token was chosen: the logits are broken, everything is masked, or a grammar cannot continue.
#[derive(Debug)]
pub struct ChoiceError(Box<dyn Error + Send + Sync>);

impl ChoiceError {
    /// Wraps a chooser's error.
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
