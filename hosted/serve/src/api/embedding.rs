//! Requests for vectors of texts.

use super::{ModelChoice, PromptPart};
use core::time::Duration;
use sluice::embed::Normalization;

/// A request for vectors of texts.
#[derive(Clone, Debug)]
pub struct EmbeddingRequest {
    /// The model.
    pub model: ModelChoice,
    /// The parts of each text, which are concatenated; at least one text. Names of control tokens in them are text.
    pub input: Vec<Vec<PromptPart>>,
    /// What the vectors are computed for.
    pub kind: VectorKind,
    /// Length to which vectors are cut, 1 to n_embd; `None` for no cut.
    pub dimensions: Option<usize>,
    /// How vectors are scaled after they are cut. Scores are not scaled.
    pub normalization: Normalization,
    /// Whether the end of a text that is longer than the context is cut off; by default it is an error.
    pub truncates: bool,
    /// Whether no texts are no error: the model is loaded.
    pub may_be_empty: bool,
    /// The context that the client counts on, in tokens; a shorter one is logged.
    pub wants_ctx: Option<usize>,
    /// What of the request has no effect, for the log.
    pub left_out: Vec<String>,
}

/// What vectors are computed for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VectorKind {
    /// One for each text.
    #[default]
    Texts,
    /// One for each token of all texts, without pooling.
    Tokens,
    /// Scores of text pairs, as rerankers read them: vectors of length 1.
    Scores,
}

/// Vectors of the same length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vectors {
    /// The concatenated vectors, in the order of the texts and of their tokens.
    pub floats: Vec<f32>,
    /// The length of each vector.
    pub length: usize,
    /// The name of the model.
    pub model: String,
    /// The number of tokens of all texts.
    pub n_tokens: usize,
    /// The number of texts whose end was cut off.
    pub n_cut: usize,
    /// Time from the arrival of the request until its model was in memory.
    pub load_time: Duration,
    /// The number of tokens of the context.
    pub n_ctx: usize,
}

impl EmbeddingRequest {
    /// A request for one vector per text, with a norm of 1.
    #[must_use]
    pub fn new(input: Vec<Vec<PromptPart>>) -> Self {
        Self {
            model: ModelChoice::default(),
            input,
            kind: VectorKind::Texts,
            dimensions: None,
            normalization: Normalization::PNorm(2),
            truncates: false,
            may_be_empty: false,
            wants_ctx: None,
            left_out: Vec::new(),
        }
    }
}
