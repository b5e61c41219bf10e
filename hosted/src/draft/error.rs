//! Errors of draft models.

use crate::model::{LoadError, OpenError};
use crate::session::SessionError;
use core::fmt;

/// Why a model cannot draft for another.
#[derive(Debug)]
#[non_exhaustive]
pub enum DraftError {
    /// A token stands for a different text in it.
    Vocabulary {
        /// The token.
        token: u32,
    },
    /// One vocabulary is much longer.
    VocabularyLength {
        /// Tokens of the draft model.
        draft: usize,
        /// Tokens of the model it drafts for.
        target: usize,
    },
    /// It is an encoder.
    Encoder,
    /// No session could be made over it.
    Session(SessionError),
    /// Its file is not a model's.
    Open(OpenError),
    /// Its weights cannot be loaded.
    Load(LoadError),
    /// Its threads could not be started.
    Threads(std::io::Error),
}

impl fmt::Display for DraftError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vocabulary { token } => write!(
                f,
                "token {token} stands for another text in the draft model: both models need the same vocabulary"
            ),
            Self::VocabularyLength { draft, target } => write!(
                f,
                "the draft model has {draft} tokens, but the model {target}: both models need the same vocabulary"
            ),
            Self::Encoder => {
                f.write_str("the draft model is an encoder, which does not generate text")
            }
            Self::Session(error) => write!(f, "draft model: {error}"),
            Self::Open(error) => error.fmt(f),
            Self::Load(error) => error.fmt(f),
            Self::Threads(error) => write!(f, "cannot start threads: {error}"),
        }
    }
}

impl DraftError {
    /// Whether memory was short.
    #[must_use]
    pub const fn is_memory(&self) -> bool {
        matches!(
            self,
            Self::Load(LoadError::Memory { .. }) | Self::Session(SessionError::Memory { .. })
        )
    }
}

impl core::error::Error for DraftError {}

impl From<SessionError> for DraftError {
    fn from(error: SessionError) -> Self {
        Self::Session(error)
    }
}
