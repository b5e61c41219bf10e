//! Errors of draft models.

use crate::model::{LoadError, OpenError};
use crate::session::SessionError;

/// Why a model cannot draft for another.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// A token stands for a different text in it.
    #[error(
        "token {token} stands for another text in the draft model: both models need the same vocabulary"
    )]
    Vocabulary {
        /// The token.
        token: u32,
    },
    /// One vocabulary is much longer.
    #[error(
        "the draft model has {draft} tokens, but the model {target}: both models need the same vocabulary"
    )]
    VocabularyLength {
        /// Tokens of the draft model.
        draft: usize,
        /// Tokens of the model it drafts for.
        target: usize,
    },
    /// It is an encoder.
    #[error("the draft model is an encoder, which does not generate text")]
    Encoder,
    /// No session could be made over it.
    #[error("draft model: {0}")]
    Session(SessionError),
    /// Its file is not a model's.
    #[error(transparent)]
    Open(OpenError),
    /// Its weights cannot be loaded.
    #[error(transparent)]
    Load(LoadError),
    /// Its threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(std::io::Error),
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

impl From<SessionError> for DraftError {
    fn from(error: SessionError) -> Self {
        Self::Session(error)
    }
}
