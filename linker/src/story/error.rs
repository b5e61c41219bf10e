//! Why the run ends early.

use super::turns::KNOWN;
use core::fmt;
use sluice_core::engine::EngineError;
use sluice_core::gguf::GgufError;
use sluice_core::model::ModelError;
use sluice_core::sampler::SampleError;
use sluice_core::slc::SlcError;
use sluice_core::tokenizer::TokenizerError;

/// Why the run ends early.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoryError {
    /// The module is not a GGUF file, or is damaged.
    Gguf(GgufError),
    /// The module is a damaged `.slc` file.
    Slc(SlcError),
    /// The model cannot be loaded.
    Model(ModelError),
    /// The vocabulary cannot be used.
    Tokenizer(TokenizerError),
    /// The engine returned an error.
    Engine(EngineError),
    /// A sampler setting is invalid, or the logits cannot be drawn from.
    Sample(SampleError),
    /// There is not enough memory.
    Memory {
        /// What the memory is for.
        what: &'static str,
        /// Bytes required.
        needed_bytes: usize,
        /// Bytes left.
        free_bytes: usize,
    },
    /// A size exceeds the address space.
    TooLarge,
    /// The CPU has no AVX2, FMA and F16C.
    NoVectors,
    /// The kernel table does not exist, does not run on this CPU, or is the scalar one.
    Isa,
    /// More threads than cores.
    Threads {
        /// Number of cores.
        n_cores: usize,
    },
    /// The model has no chat template.
    NoTemplate,
    /// The model's chat template is not a known one.
    Template,
    /// The prompt has more tokens than the context.
    PromptTooLong {
        /// Tokens of the prompt.
        n_tokens: usize,
        /// Tokens of the context.
        n_ctx: usize,
    },
}

impl fmt::Display for StoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gguf(error) => {
                write!(f, "the model is not a readable GGUF file: {error}")
            }
            Self::Slc(error) => write!(f, "the model is not a valid .slc file: {error}"),
            Self::Model(error) => write!(f, "cannot load the model: {error}"),
            Self::Tokenizer(error) => write!(f, "cannot use the model's vocabulary: {error}"),
            Self::Engine(error) => write!(f, "cannot run the model: {error}"),
            Self::Sample(error) => write!(f, "cannot choose a token: {error}"),
            Self::Memory {
                what,
                needed_bytes,
                free_bytes,
            } => write!(
                f,
                "not enough memory: {what} takes {} KiB, but only {} KiB are free",
                needed_bytes.div_ceil(1024),
                free_bytes / 1024
            ),
            Self::TooLarge => f.write_str("a size exceeds the address space"),
            Self::NoVectors => {
                f.write_str("the CPU lacks AVX2, FMA or F16C, which the image requires")
            }
            Self::Isa => {
                f.write_str("isa= does not name a kernel table of the image that this CPU supports")
            }
            Self::Threads { n_cores } => {
                write!(f, "threads= exceeds the {n_cores} available cores")
            }
            Self::NoTemplate => f.write_str(
                "chat: the model has no chat template: use `prompts`, which continues lines as they are",
            ),
            Self::Template => write!(
                f,
                "chat: the model's chat template is not a known form of {KNOWN}: use `prompts`, which continues \
                 lines as they are"
            ),
            Self::PromptTooLong { n_tokens, n_ctx } => write!(
                f,
                "the prompt has {n_tokens} tokens, more than the context of {n_ctx} (ctx=)"
            ),
        }
    }
}

impl core::error::Error for StoryError {}

macro_rules! from {
    ($($error:ty => $variant:ident),*) => {$(
        impl From<$error> for StoryError {
            fn from(error: $error) -> Self {
                Self::$variant(error)
            }
        }
    )*};
}
from!(GgufError => Gguf, SlcError => Slc, ModelError => Model, TokenizerError => Tokenizer,
    EngineError => Engine, SampleError => Sample);
