//! What can go wrong with a sampler.
#![forbid(unsafe_code)]

use crate::grammar::GrammarError;
use sluice_core::sampler::SampleError;
use sluice_core::tokenizer::TokenizerError;

/// Why a sampler could not be made, or no token be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// Core's samplers refuse.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A bias for a token that does not exist.
    #[error("there is no token {id} to bias: the vocabulary has {n_vocab}")]
    UnknownToken {
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: u32,
    },
    /// The grammar cannot go on.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The vocabulary cannot write a mark.
    #[error("cannot write the mark {text:?} in tokens")]
    Mark {
        /// The text.
        text: String,
        /// What the tokenizer says.
        #[source]
        source: Box<TokenizerError>,
    },
    /// A sequence breaker has characters that the vocabulary cannot write.
    #[error("cannot write the sequence breaker {text:?} in tokens")]
    Breaker {
        /// The text.
        text: String,
        /// What the tokenizer says.
        #[source]
        source: Box<TokenizerError>,
    },
}
