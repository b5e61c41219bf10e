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
    #[error("there is no token {id} to bias: the vocabulary has {n_vocab}")]
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
    #[error("cannot write the mark {text:?} in tokens")]
    Mark {
        /// The text.
        text: String,
        /// The tokenizer's error.
        #[source]
        source: Box<TokenizerError>,
    },
    /// A sequence breaker has characters that the vocabulary cannot encode.
    #[error("cannot write the sequence breaker {text:?} in tokens")]
    Breaker {
        /// The text.
        text: String,
        /// The tokenizer's error.
        #[source]
        source: Box<TokenizerError>,
    },
}
