//! Choosing the next token from logits, reproducibly.
//!
//! Logits are copied into a [`Candidates`] list over the caller's storage, pass a slice of
//! [`LogitsProcessor`]s in the caller's order, and [`sample`] draws one of those that are left.
//! [`SamplerChain`] is that pipeline with llama.cpp's order and defaults; [`greedy`] is the short
//! way where only the best token is wanted, and [`log_probability`] and [`top_log_probabilities`]
//! return how likely tokens were.
//!
//! ```
//! use sluice_core::sampler::{Candidate, SamplerChain, SamplerConfig};
//!
//! let logits = [0.1f32, 2.5, -1.0, 2.4];
//! let mut storage = [Candidate::default(); 4];
//! let mut chain = SamplerChain::new(SamplerConfig { seed: 42, ..SamplerConfig::default() })?;
//! let context = chain.context(&[], 0, 0);
//! let id = chain.sample(&logits, &mut storage, &mut [], &context)?;
//! assert!(id == 1 || id == 3);
//! # Ok::<(), sluice_core::sampler::SampleError>(())
//! ```
//!
//! **The same bits everywhere.** A draw is a pure function of the logits, the processors and
//! (seed, sequence, position): its random number comes from a counter ([`philox4x32`]), so
//! neither the batch a sequence ran in nor what was drawn before matters ([`Mirostat`], which
//! learns from its draws, takes what it has learnt as an argument). Exponentials are our
//! own, sums run in candidate order, and equal logits are always ordered by token id, lower
//! first.
//!
//! **Bad numbers are errors.** A NaN is reported with its token id, from any source; no
//! processor of this module drops one. Minus infinity means "masked". Plus infinity is allowed
//! (a forced token): the candidates that have it share the probability.
#![forbid(unsafe_code)]

mod candidates;
mod chain;
mod dry;
mod filters;
mod log_probability;
mod math;
mod mirostat;
mod order;
mod philox;
mod processors;
mod select;
mod temperature;
#[cfg(test)]
mod tests;

use core::fmt;

pub use candidates::{Candidate, CandidateOrder, Candidates};
pub use chain::{SamplerChain, SamplerConfig};
pub use dry::{Dry, DryBreaker, DryBreakers, DryConfig};
pub use filters::{MinP, TopK, TopNSigma, TopP, TypicalP, Xtc};
pub use log_probability::{TokenLogProbability, log_probability, top_log_probabilities};
pub use mirostat::{Mirostat, MirostatVersion};
pub use order::{SamplerKind, SamplerOrder, SamplerOrderError};
pub use philox::{philox4x32, uniform};
pub use processors::{LogitBias, LogitBiases, RepetitionPenalty, VocabMask};
pub use select::{greedy, sample};
pub use temperature::{DynamicTemperature, Temperature};

/// The context that a processor or a draw may depend on, in addition to the logits.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampleContext<'h> {
    /// Tokens of this sequence so far, oldest first. May be only the recent ones: processors
    /// look no further back.
    pub history: &'h [u32],
    /// The sequence the token is for; part of the random counter.
    pub sequence: u32,
    /// The position the sampled token will take in its sequence; part of the random counter.
    pub position: u32,
    /// Key of the random numbers.
    pub seed: u64,
}

/// One step between the model's logits and the draw: rewrites logits or removes candidates.
pub trait LogitsProcessor {
    /// Changes `candidates` in place.
    ///
    /// An implementation keeps NaN logits (the draw reports them) and, where it only narrows
    /// the choice, leaves at least one candidate.
    fn apply(&mut self, candidates: &mut Candidates<'_>, context: &SampleContext<'_>);
}

/// Why no token could be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SampleError {
    /// A logit is NaN: the model's output (or a processor's) is broken.
    NotANumber {
        /// The token whose logit is NaN.
        id: u32,
    },
    /// There is nothing to choose from: no logits, or every token is masked.
    NoCandidate,
    /// The caller's candidate storage holds fewer entries than there are logits.
    StorageTooSmall {
        /// Entries needed, one per logit.
        needed: usize,
        /// Entries given.
        available: usize,
    },
    /// The words handed to [`SamplerChain::with_dry`] are too few for the history.
    DryWorkspaceTooSmall {
        /// Words needed.
        needed: usize,
        /// Words given.
        available: usize,
    },
    /// A token id outside the vocabulary.
    UnknownToken {
        /// The id asked for.
        id: u32,
        /// Number of logits.
        n_vocab: usize,
    },
    /// A setting is outside its range.
    Setting {
        /// Name of the [`SamplerConfig`] field; DRY's with `dry_` before it.
        name: &'static str,
    },
}

impl fmt::Display for SampleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NotANumber { id } => write!(f, "the logit of token {id} is not a number"),
            Self::NoCandidate => f.write_str("no token is left to choose from"),
            Self::StorageTooSmall { needed, available } => {
                write!(
                    f,
                    "candidate storage holds {available} entries, {needed} are needed"
                )
            }
            Self::DryWorkspaceTooSmall { needed, available } => {
                write!(
                    f,
                    "DRY's workspace has {available} words, {needed} are needed"
                )
            }
            Self::UnknownToken { id, n_vocab } => {
                write!(f, "token {id} is outside the vocabulary of {n_vocab}")
            }
            Self::Setting { name } => write!(f, "sampler setting {name} is out of range"),
        }
    }
}

impl core::error::Error for SampleError {}
