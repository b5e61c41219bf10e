//! Sources of draft tokens that cost something.

use crate::sequence::Choose;
use core::fmt;
use sluice_core::speculate::DraftToken;

/// A source of draft tokens that takes time: a model.
pub trait Drafter: fmt::Debug + Send {
    /// What it is, in a word: `draft-simple`, `draft-mtp`.
    fn name(&self) -> &'static str;

    /// Whether it could draft behind `text`, of the sequence with this number, after reading few tokens.
    fn can_draft(&self, slot: u32, text: &[u32]) -> bool;

    /// Nanoseconds that one more draft of each of `n_texts` texts will take; 0 while that is not known.
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

    /// Drafts what each asks for.
    ///
    /// # Errors
    /// Why it cannot, and will not.
    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<(), Box<dyn core::error::Error>>;
}

/// A text that drafts are asked for.
pub struct Ask<'t> {
    /// Number of its sequence.
    pub slot: u32,
    /// All of its tokens.
    pub text: &'t [u32],
    /// Tokens that context shifts have removed before them.
    pub n_shifted: usize,
    /// Number of the choice within its request.
    pub number: u32,
    /// Draws what the text's own sampler would draw; without one, the likeliest is drafted.
    pub sampler: Option<Box<dyn Choose + Send>>,
    /// Most draft tokens.
    pub n_max: usize,
    /// A draft token of less probability is the last, and not made.
    pub p_min: f32,
    /// Whether to go on behind the draft tokens so far.
    pub goes_on: &'t (dyn Fn(&[DraftToken]) -> bool + 't),
    /// The draft tokens.
    pub drafts: Vec<DraftToken>,
}

impl fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask")
            .field("slot", &self.slot)
            .field("n_tokens", &self.text.len())
            .field("drafts", &self.drafts)
            .finish_non_exhaustive()
    }
}
