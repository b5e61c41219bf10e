//! Draft tokens: guesses of the next tokens, and which of them are worth a row of the next step.
//!
//! A step over several positions of a text reads the weights once. So tokens that are drafted are handed in behind
//! the last one, and each is kept if it is what the sampler draws from the row before it. A draw depends on the
//! seed, the choice and the position alone, so the text is the one without draft tokens, bit for bit.
//!
//! - [`Ngrams`] finds where the end of a text stood in it before; what followed then is the draft.
//! - [`NgramTable`] learns from all texts of a session what follows a few tokens.
//! - [`Acceptance`] knows how often draft tokens of a [`Class`] were right.
//! - [`worth`] says how many rows pay, from that and from [`crate::costs::Costs`].
//!
//! Nothing is allocated: the caller brings memory, a vector or a slice. The idea of verifying draft tokens in one pass
//! is that of Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023); there a draft token
//! is accepted by chance and drawn again, here by equality.

mod acceptance;
mod ngram;
mod table;
mod worth;

pub use acceptance::{Acceptance, Class};
pub use ngram::Ngrams;
pub use table::NgramTable;
pub use worth::{GAIN_MIN, worth};

/// Most draft tokens of a text in a step.
pub const POSITIONS_MAX: usize = 16;

/// Most draft tokens of a text in a step where nothing else is asked for; fewer of a recurrent model, whose states
/// behind each take room and time.
pub const fn n_draft(is_recurrent: bool) -> usize {
    if is_recurrent { 4 } else { 8 }
}

/// A drafted token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftToken {
    /// The token.
    pub token: u32,
    /// What is known of draft tokens like this one.
    pub class: Class,
}

impl DraftToken {
    /// What no source drafts, to fill a list with.
    pub const NONE: Self = Self {
        token: u32::MAX,
        class: Class::FORCED,
    };
}

#[cfg(test)]
mod tests;
