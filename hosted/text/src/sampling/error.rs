//! Errors of samplers.
#![forbid(unsafe_code)]

use crate::grammar::GrammarError;
use sluice_core::sampler::SampleError;
use sluice_core::tokenizer::TokenizerError;

/// Why a sampler could not be made, or a token not be sampled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// An error of core's samplers.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A bias for a token that does not exist.
    #[error("cannot bias token {id}: the vocabulary has {n_vocab} tokens")]
    UnknownToken {
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: u32,
    },
    /// The grammar cannot continue.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The vocabulary cannot encode a mark.
    #[error("cannot tokenize the mark {text:?}")]
    Mark {
        /// The text.
        text: String,
        /// The tokenizer's error.
        #[source]
        source: Box<TokenizerError>,
    },
    /// A sequence breaker has characters that the vocabulary cannot encode.
    #[error("cannot tokenize the sequence breaker {text:?}")]
    Breaker {
        /// The text.
        text: String,
        /// The tokenizer's error.
        #[source]
        source: Box<TokenizerError>,
    },
}
