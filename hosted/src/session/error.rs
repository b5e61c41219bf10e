//! What can go wrong.

use crate::host::isa::IsaError;
use crate::host::memory::OutOfMemory;
use crate::host::workers::WorkerPanicked;
use crate::sequence::ChoiceError;
use sluice_core::engine::EngineError;
use sluice_core::sampler::SampleError;
use sluice_core::team::Stop;
use sluice_core::tokenizer::TokenizerError;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// There is no memory for the context.
    #[error("no memory for a context of {n_ctx} tokens: {error}")]
    Memory {
        /// Tokens of the context.
        n_ctx: usize,
        /// How much, and why not.
        error: OutOfMemory,
    },
    /// A limit is out of its range, or the model cannot be run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The kernels asked for cannot be had.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// The threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

/// Why a step gave no outputs. The KV cache is as before it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// It was refused, or stopped.
    #[error(transparent)]
    Engine(EngineError),
    /// A worker panicked; the others have left the step.
    #[error(transparent)]
    Panicked(WorkerPanicked),
}

impl StepError {
    /// Whether the stop flag was the reason.
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Stopped(Stop::Cancelled)))
    }
}

/// Why a text does not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The KV cache refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The logits are broken, or everything is masked.
    #[error("no token could be chosen: {0}")]
    Choice(#[from] ChoiceError),
    /// A setting of the sampler is out of range.
    #[error(transparent)]
    Sampler(#[from] SampleError),
    /// A text cannot be made into tokens, or a token not be shown.
    #[error(transparent)]
    Token(#[from] TokenizerError),
    /// More tokens than the context has.
    #[error("{n_tokens} tokens are more than the context of {n_ctx}")]
    TooLong {
        /// Tokens of the prompt.
        n_tokens: usize,
        /// Tokens that fit.
        n_ctx: usize,
    },
    /// The prompt is empty, and the model has no token to begin a text with.
    #[error("the prompt is empty, and the model has no token to begin a text with")]
    EmptyPrompt,
    /// All sequences are in use.
    #[error("all {n_seq} sequences of the session are in use")]
    NoSequence {
        /// How many there are.
        n_seq: usize,
    },
    /// The sequence is another session's.
    #[error("the sequence belongs to another session")]
    ForeignSequence,
}
