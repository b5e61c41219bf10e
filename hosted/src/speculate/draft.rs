//! Sources of guesses that cost something.

use crate::sequence::Choose;
use core::fmt;
use sluice_core::speculate::Guess;

/// A source of guesses that takes time: a model.
pub trait Draft: fmt::Debug + Send {
    /// What it is, in a word: `draft-simple`, `draft-mtp`.
    fn name(&self) -> &'static str;

    /// Whether it could guess behind `text`, of the sequence with this number, after reading few tokens.
    fn can_guess(&self, slot: u32, text: &[u32]) -> bool;

    /// Nanoseconds that one more guess of each of `n_texts` texts will take; 0 while that is not known.
    fn expect(&self, n_texts: usize) -> f64;

    /// Whether it is to be told what the model computes of texts ([`Self::saw`]).
    fn reads_hidden(&self) -> bool {
        false
    }

    /// The model has read `tokens` of a text behind the first `n_before`. `hidden`: (tokens, n_embd), its final hidden
    /// states at them.
    fn saw(&mut self, slot: u32, n_before: usize, tokens: &[u32], hidden: &[f32]) {
        let _ = (slot, n_before, tokens, hidden);
    }

    /// Guesses what each asks for.
    ///
    /// # Errors
    /// Why it cannot, and will not.
    fn guess(&mut self, asks: &mut [Ask<'_>]) -> Result<(), Box<dyn core::error::Error>>;
}

/// A text that guesses are asked for.
pub struct Ask<'t> {
    /// Number of its sequence.
    pub slot: u32,
    /// All of its tokens.
    pub text: Vec<u32>,
    /// Tokens that context shifts have removed before them.
    pub n_shifted: usize,
    /// Number of the choice within its request.
    pub number: u32,
    /// Draws what the text's own sampler would draw; without one, the likeliest is guessed.
    pub sampler: Option<Box<dyn Choose + Send>>,
    /// Most guesses.
    pub n_max: usize,
    /// A guess of less probability is the last, and not made.
    pub p_min: f32,
    /// Whether to go on behind the guesses so far.
    pub goes_on: &'t (dyn Fn(&[Guess]) -> bool + 't),
    /// The guesses.
    pub guesses: Vec<Guess>,
}

impl fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask")
            .field("slot", &self.slot)
            .field("n_tokens", &self.text.len())
            .field("guesses", &self.guesses)
            .finish_non_exhaustive()
    }
}
