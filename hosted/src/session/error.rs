//! Errors of sessions.

use crate::encode::EncodeError;
use crate::experts::{ExpertError, ExpertStore};
use crate::host::isa::IsaError;
use crate::host::memory::OutOfMemory;
use crate::host::workers::WorkerPanicked;
use crate::sequence::{ChoiceError, OtherAdapters};
use crate::sparse_modes::SparseMode;
use sluice_core::engine::EngineError;
use sluice_core::sampler::SampleError;
use sluice_core::team::Stop;
use sluice_core::tokenizer::TokenizerError;

/// Why a session could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Not enough memory for the context.
    #[error("not enough memory for a context of {n_ctx} tokens: {error}")]
    Memory {
        /// Tokens of the context.
        n_ctx: usize,
        /// How much was requested, and the kernel's error.
        error: OutOfMemory,
    },
    /// A limit is out of its range, or the model cannot be run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The requested kernels are not available.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// Neurons are to be left unread, but the file does not store them one by one.
    #[error(
        "sparse exact: the model is not stored by neuron: use sluice pack --ffn neuron first, or leave sparse out"
    )]
    NotByNeuron,
    /// Neurons are to be left out by a mode that the model was not opened with.
    #[error("sparse {0}: the model was opened without this mode")]
    OtherMode(SparseMode),
    /// The threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
}

/// Why a step gave no outputs. The KV cache is as before it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The step was refused, or stopped.
    #[error(transparent)]
    Engine(EngineError),
    /// An expert could not be read from disk.
    #[error(transparent)]
    Experts(ExpertError),
    /// A worker panicked; the others have left the step.
    #[error(transparent)]
    Panicked(WorkerPanicked),
}

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
    Choice(ChoiceError),
    /// A setting of the sampler is out of range.
    #[error(transparent)]
    Sampler(#[from] SampleError),
    /// A token cannot be shown.
    #[error(transparent)]
    Token(#[from] TokenizerError),
    /// A text cannot be made into tokens.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// More tokens than fit into the context.
    #[error("{n_tokens} tokens exceed the context of {n_ctx}")]
    TooLong {
        /// Tokens of the prompt.
        n_tokens: usize,
        /// Tokens that fit.
        n_ctx: usize,
    },
    /// The prompt is empty, and the model has no token to begin a text with.
    #[error("the prompt is empty, and the model has no beginning-of-sequence token")]
    EmptyPrompt,
    /// All sequences are in use.
    #[error("all {n_seq} sequences of the session are in use")]
    NoSequence {
        /// Number of sequences.
        n_seq: usize,
    },
    /// The sequence belongs to another session.
    #[error("the sequence belongs to another session")]
    ForeignSequence,
    /// The tokens of a text were computed with other adapters.
    #[error(transparent)]
    OtherAdapters(#[from] OtherAdapters),
}

impl From<ChoiceError> for GenerateError {
    fn from(error: ChoiceError) -> Self {
        Self::Choice(error)
    }
}
