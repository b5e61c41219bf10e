//! How a generator comes from logits to a token.

use sluice_core::sampler::{
    Candidate, LogitBias, LogitBiases, LogitsProcessor, SampleError, SamplerChain,
};

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

/// Chooses tokens.
pub trait Choose {
    /// A new text begins behind a prompt: what was remembered of the last one is forgotten.
    fn begin(&mut self) {}

    /// Chooses the next token from `logits: (n_vocab)`.
    ///
    /// # Errors
    /// Nothing can be chosen.
    fn choose(&mut self, logits: &[f32], choice: &Choice<'_>) -> Result<u32, SampleError>;
}

/// A [`SamplerChain`] with room to work in.
#[derive(Debug)]
pub struct ChainChooser {
    /// The settings.
    pub chain: SamplerChain,
    /// Added to logits first.
    pub biases: Vec<LogitBias>,
    /// One per token of the vocabulary.
    candidates: Vec<Candidate>,
}

impl ChainChooser {
    /// For a vocabulary of `n_vocab` tokens.
    #[must_use]
    pub fn new(chain: SamplerChain, biases: Vec<LogitBias>, n_vocab: usize) -> Self {
        Self {
            chain,
            biases,
            candidates: vec![Candidate::default(); n_vocab],
        }
    }
}

impl Choose for ChainChooser {
    fn choose(&mut self, logits: &[f32], choice: &Choice<'_>) -> Result<u32, SampleError> {
        let context = self
            .chain
            .context(choice.history, choice.stream, choice.position);
        let mut biases = LogitBiases(&self.biases);
        let mut first: [&mut dyn LogitsProcessor; 1] = [&mut biases];
        let n_first = usize::from(!self.biases.is_empty());
        let first = &mut first[..n_first];
        self.chain
            .sample(logits, &mut self.candidates, first, &context)
    }
}
