//! Vectors of texts for a caller in this process: the buffer that the engine wrote, not numbers in an answer.

use std::sync::{Arc, Mutex, PoisonError};

/// Where the vectors of a request to `/v1/embeddings` go instead of into its answer, whose list of them is empty.
///
/// Clones are the same place. How many texts a request has is not limited then, and without pooling each token has a
/// vector.
#[derive(Clone, Debug, Default)]
pub struct VectorSlot {
    /// Whether the score of the head that ranks is wanted, in place of a text's vector.
    scores: bool,
    found: Arc<Mutex<Option<Vectors>>>,
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
    /// For scores of pairs of texts, as rerankers read them: vectors of length 1.
    #[must_use]
    pub fn of_scores() -> Self {
        Self {
            scores: true,
            ..Self::default()
        }
    }

    /// What was put here, once; `None` before the answer has begun, or if it is an error.
    #[must_use]
    pub fn take(&self) -> Option<Vectors> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.take()
    }

    pub(crate) const fn takes_scores(&self) -> bool {
        self.scores
    }

    pub(crate) fn put(&self, vectors: Vectors) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(vectors);
    }
}
