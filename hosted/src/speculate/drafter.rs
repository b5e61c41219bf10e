//! Sources of draft tokens that take time.

use crate::sequence::Choose;
use core::fmt;
use sluice_core::speculate::DraftToken;

/// A source of draft tokens that takes time: a model.
pub trait Drafter: fmt::Debug + Send {
    /// A short name: `draft-simple`, `draft-mtp`.
    fn name(&self) -> &'static str;

    /// Whether it could draft after `text`, of the sequence with this number, after reading few tokens.
    fn can_draft(&self, slot: u32, text: &[u32]) -> bool;

    /// Nanoseconds that drafting one more token for each of these sequences will take; 0 while that is not known.
    fn expect(&self, slots: &[u32]) -> f64;

    /// Whether it needs the hidden states that the model computes ([`Self::saw`]).
    fn reads_hidden(&self) -> bool {
        false
    }

    /// Reports that the model has read `tokens` of a text after the first `n_before`. `hidden`: (tokens, n_embd), its
    /// final hidden states at them.
    fn saw(&mut self, slot: u32, n_before: usize, tokens: &[u32], hidden: &[f32]) {
        let _ = (slot, n_before, tokens, hidden);
    }

    /// Drafts for each ask.
    ///
    /// # Errors
    /// Drafting failed; it is not called again.
    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<(), Box<dyn core::error::Error>>;
}

/// A text that needs drafts.
pub struct Ask<'t> {
    /// Number of its sequence.
    pub slot: u32,
    /// See [`crate::Settings::domain`].
    pub domain: u64,
    /// All of its tokens.
    pub text: &'t [u32],
    /// Tokens that context shifts have removed before them.
    pub n_shifted: usize,
    /// Number of the choice within its request.
    pub number: u32,
    /// Draws what the text's own sampler would draw; without one, the likeliest is drafted.
    pub sampler: Option<Box<dyn Choose + Send>>,
    /// Maximum draft tokens.
    pub n_max: usize,
    /// A draft token with a lower probability is dropped and ends drafting.
    pub p_min: f32,
    /// Whether to continue after the draft tokens so far.
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
