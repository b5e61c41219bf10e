//! Draft tokens: guesses of the next tokens, and which of them are worth a row of the next step.
//!
//! A step over several positions of a text reads the weights once. Drafted tokens are therefore entered after
//! the last one, and each is kept if it equals what the sampler draws from the row before it. A draw depends only on
//! the seed, the choice and the position, so the text is the one without draft tokens, bit for bit.
//!
//! - [`Ngrams`] finds earlier occurrences of the end of a text; what followed them is the draft.
//! - [`NgramTable`] learns from all texts of a session which token follows a few tokens.
//! - [`Acceptance`] tracks the rate of right draft tokens per [`Class`].
//! - [`worth`] chooses how many rows pay, from that rate and from [`crate::costs::Costs`].
//!
//! Nothing is allocated: the caller brings memory, a vector or a slice. Verifying draft tokens in one pass is
//! from Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023); there a draft token
//! is accepted by chance and drawn again, here by equality.

mod acceptance;
mod ngram;
mod table;
mod worth;

pub use acceptance::{Acceptance, Class};
pub use ngram::Ngrams;
pub use table::NgramTable;
pub use worth::{GAIN_MIN, worth};

/// Maximum draft tokens of a text in a step.
pub const POSITIONS_MAX: usize = 16;

/// Default maximum of draft tokens of a text in a step; lower for a recurrent model, whose states after each
/// token take memory and time.
pub const fn n_draft(is_recurrent: bool) -> usize {
    if is_recurrent { 4 } else { 8 }
}

/// A drafted token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftToken {
    /// The token.
    pub token: u32,
    /// The class that its acceptance is tracked by.
    pub class: Class,
}

impl DraftToken {
    /// A placeholder that no source drafts, to fill a list with.
    pub const NONE: Self = Self {
        token: u32::MAX,
        class: Class::FORCED,
    };
}

#[cfg(test)]
mod tests;
