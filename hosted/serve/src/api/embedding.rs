//! Requests for vectors of texts.

use super::ModelChoice;
use sluice::embed::Normalization;

/// A request for vectors of texts.
#[derive(Clone, Debug)]
pub struct EmbeddingRequest {
    /// The model.
    pub model: ModelChoice,
    /// The texts, at least one.
    pub input: Vec<EmbeddingInput>,
    /// What the vectors are of.
    pub kind: VectorKind,
    /// Numbers of each vector to keep, 1 to n_embd; `None` for all.
    pub dimensions: Option<usize>,
    /// How vectors are scaled, after they were cut. Scores are not.
    pub normalization: Normalization,
}

/// A text to be embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbeddingInput {
    /// Text.
    Text(String),
    /// Tokens of the model.
    Tokens(Vec<u32>),
}

/// What vectors are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VectorKind {
    /// One of each text.
    #[default]
    Texts,
    /// One of each token of all texts, without pooling.
    Tokens,
    /// Scores of pairs of texts, as rerankers read them: vectors of length 1.
    Scores,
}

/// Vectors of the same length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vectors {
    /// The vectors one after the other, in the order of the texts and of their tokens.
    pub floats: Vec<f32>,
    /// Numbers of each vector.
    pub length: usize,
    /// The name of the model.
    pub model: String,
    /// Tokens of all texts.
    pub n_tokens: usize,
}

impl EmbeddingRequest {
    /// Vectors of texts, of length 1.
    #[must_use]
    pub fn new(input: Vec<EmbeddingInput>) -> Self {
        Self {
            model: ModelChoice::default(),
            input,
            kind: VectorKind::Texts,
            dimensions: None,
            normalization: Normalization::PNorm(2),
        }
    }
}
