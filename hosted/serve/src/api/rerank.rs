//! Requests to rank documents.

use super::ModelChoice;

/// A request to rank documents by relevance to a query.
#[derive(Clone, Debug, Default)]
pub struct RerankRequest {
    /// The model, which needs a ranking head.
    pub model: ModelChoice,
    /// The query.
    pub query: String,
    /// The documents, at least one.
    pub documents: Vec<String>,
}

/// The scores of documents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranking {
    /// The score of each document.
    pub scores: Vec<f32>,
    /// The name of the model.
    pub model: String,
    /// Tokens of all pairs of query and document.
    pub n_tokens: usize,
}

impl Ranking {
    /// The indices of the best `n` documents, best first; equal scores keep the order of the request.
    #[must_use]
    pub fn best(&self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.scores.len()).collect();
        order.sort_by(|&a, &b| self.scores[b].total_cmp(&self.scores[a]));
        order.truncate(n);
        order
    }
}
