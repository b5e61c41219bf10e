//! Errors of sessions.

use crate::encode::EncodeError;
use crate::experts::{ExpertError, ExpertStore};
use crate::host::isa::IsaError;
use crate::host::memory::OutOfMemory;
use crate::host::workers::WorkerPanicked;
use crate::sequence::{ChoiceError, OtherAdapters};
use core::error::Error;
use core::fmt;
use sluice_core::engine::EngineError;
use sluice_core::sampler::SampleError;
use sluice_core::team::Stop;
use sluice_core::tokenizer::TokenizerError;

/// Why a session could not be made.
#[derive(Debug)]
#[non_exhaustive]
pub enum SessionError {
    /// Not enough memory for the context.
    Memory {
        /// Tokens of the context.
        n_ctx: usize,
        /// How much was requested, and the kernel's error.
        error: OutOfMemory,
    },
    /// A limit is out of its range, or the model cannot be run.
    Engine(EngineError),
    /// The requested kernels are not available.
    Isa(IsaError),
    /// The threads could not be started.
    Threads(std::io::Error),
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { n_ctx, error } => {
                write!(
                    f,
                    "not enough memory for a context of {n_ctx} tokens: {error}"
                )
            }
            Self::Engine(error) => error.fmt(f),
            Self::Isa(error) => error.fmt(f),
            Self::Threads(error) => write!(f, "cannot start threads: {error}"),
        }
    }
}

impl Error for SessionError {}

impl From<EngineError> for SessionError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<IsaError> for SessionError {
    fn from(error: IsaError) -> Self {
        Self::Isa(error)
    }
}

/// Why a step gave no outputs. The KV cache is as before it.
#[derive(Debug)]
#[non_exhaustive]
pub enum StepError {
    /// The step was refused, or stopped.
    Engine(EngineError),
    /// An expert could not be read from disk.
    Experts(ExpertError),
    /// A worker panicked; the others have left the step.
    Panicked(WorkerPanicked),
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(error) => error.fmt(f),
            Self::Experts(error) => error.fmt(f),
            Self::Panicked(error) => error.fmt(f),
        }
    }
}

impl Error for StepError {}

impl StepError {
    /// Why a step has no outputs; its expert store may know the cause.
    pub(super) fn of(error: EngineError, experts: Option<&ExpertStore>) -> Self {
        let source = experts.filter(|_| error == EngineError::Stopped(Stop::SourceFailed));
        match source.and_then(ExpertStore::step_error) {
            Some(error) => Self::Experts(error),
            None => Self::Engine(error),
        }
    }

    /// Whether the stop flag was the reason.
    #[must_use]
    pub const fn is_cancelled(&self) -> bool {
        matches!(self, Self::Engine(EngineError::Stopped(Stop::Cancelled)))
    }
}

/// Why a text does not continue.
#[derive(Debug)]
#[non_exhaustive]
pub enum GenerateError {
    /// A step failed.
    Step(StepError),
    /// The KV cache refused.
    Engine(EngineError),
    /// The logits are broken, or everything is masked.
    Choice(ChoiceError),
    /// A setting of the sampler is out of range.
    Sampler(SampleError),
    /// A token cannot be shown.
    Token(TokenizerError),
    /// A text cannot be made into tokens.
    Encode(EncodeError),
    /// More tokens than fit into the context.
    TooLong {
        /// Tokens of the prompt.
        n_tokens: usize,
        /// Tokens that fit.
        n_ctx: usize,
    },
    /// The prompt is empty, and the model has no token to begin a text with.
    EmptyPrompt,
    /// All sequences are in use.
    NoSequence {
        /// Number of sequences.
        n_seq: usize,
    },
    /// The sequence belongs to another session.
    ForeignSequence,
    /// The tokens of a text were computed with other adapters.
    OtherAdapters(OtherAdapters),
}

impl fmt::Display for GenerateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(error) => error.fmt(f),
            Self::Engine(error) => error.fmt(f),
            Self::Choice(error) => write!(f, "no token could be chosen: {error}"),
            Self::Sampler(error) => error.fmt(f),
            Self::Token(error) => error.fmt(f),
            Self::Encode(error) => error.fmt(f),
            Self::TooLong { n_tokens, n_ctx } => {
                write!(f, "{n_tokens} tokens exceed the context of {n_ctx}")
            }
            Self::EmptyPrompt => {
                f.write_str("the prompt is empty, and the model has no beginning-of-sequence token")
            }
            Self::OtherAdapters(error) => error.fmt(f),
            Self::NoSequence { n_seq } => {
                write!(f, "all {n_seq} sequences of the session are in use")
            }
            Self::ForeignSequence => f.write_str("the sequence belongs to another session"),
        }
    }
}

impl Error for GenerateError {}

impl From<StepError> for GenerateError {
    fn from(error: StepError) -> Self {
        Self::Step(error)
    }
}

impl From<EngineError> for GenerateError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<ChoiceError> for GenerateError {
    fn from(error: ChoiceError) -> Self {
        Self::Choice(error)
    }
}

impl From<OtherAdapters> for GenerateError {
    fn from(error: OtherAdapters) -> Self {
        Self::OtherAdapters(error)
    }
}

impl From<SampleError> for GenerateError {
    fn from(error: SampleError) -> Self {
        Self::Sampler(error)
    }
}

impl From<EncodeError> for GenerateError {
    fn from(error: EncodeError) -> Self {
        Self::Encode(error)
    }
}

impl From<TokenizerError> for GenerateError {
    fn from(error: TokenizerError) -> Self {
        Self::Token(error)
    }
}
