//! Vectors of texts for a caller in this process: the buffer that the engine wrote, not numbers in an answer.

use std::sync::{Arc, Mutex, PoisonError};

/// Where the vectors of a request to `/v1/embeddings` go instead of into its answer, whose list of them is empty.
///
/// Clones are the same place. How many texts a request has is not limited then.
#[derive(Clone, Debug)]
pub struct VectorSlot {
    kind: VectorKind,
    found: Arc<Mutex<Option<Vectors>>>,
}

/// What the vectors are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VectorKind {
    /// Of each text one.
    Texts,
    /// Of each token of all texts one; without pooling.
    Tokens,
    /// Scores of pairs of texts, as rerankers read them: vectors of length 1.
    Scores,
}

/// Vectors of the same length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vectors {
    /// One behind the other, in the order of the texts and of their tokens.
    pub floats: Vec<f32>,
    /// Of each.
    pub length: usize,
}

impl VectorSlot {
    /// An empty one.
    #[must_use]
    pub fn new(kind: VectorKind) -> Self {
        let found = Arc::default();
        Self { kind, found }
    }

    /// What was put here, once; `None` before the answer has begun, or if it is an error.
    #[must_use]
    pub fn take(&self) -> Option<Vectors> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.take()
    }

    pub(crate) const fn kind(&self) -> VectorKind {
        self.kind
    }

    pub(crate) fn put(&self, vectors: Vectors) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(vectors);
    }
}
