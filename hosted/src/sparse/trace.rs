//! Recorded activations, and the best that any cache could do with them.

use super::error::{SparseInferenceError, SparseResult};
use sluice_core::sparse::SparsityError;
use std::collections::{BTreeSet, HashMap};

/// The active neurons of vector after vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeuronTrace {
    model: String,
    n_neurons: usize,
    rows: Vec<Vec<usize>>,
}

impl NeuronTrace {
    /// An empty trace of a model, by its fingerprint or another name.
    #[must_use]
    pub fn new(model: &str, n_neurons: usize) -> Self {
        Self {
            model: model.to_owned(),
            n_neurons,
            rows: Vec::new(),
        }
    }

    /// Adds a vector's active neurons.
    ///
    /// # Errors
    /// A neuron that does not exist.
    pub fn push(&mut self, active: &[usize]) -> SparseResult<()> {
        if let Some(index) = active.iter().position(|i| *i >= self.n_neurons) {
            return Err(SparsityError::Neuron {
                index,
                neuron: active[index],
                n_neurons: self.n_neurons,
            }
            .into());
        }
        self.rows.push(active.to_vec());
        Ok(())
    }

    /// The vectors.
    #[must_use]
    pub fn rows(&self) -> &[Vec<usize>] {
        &self.rows
    }

    /// Whether it is of this model.
    pub(super) fn check(&self, model: &str, n_neurons: usize) -> SparseResult<()> {
        if self.model != model {
            return Err(SparseInferenceError::Cache(format!(
                "the trace is of model {}: expected {model}",
                self.model
            )));
        }
        if self.n_neurons != n_neurons {
            return Err(SparseInferenceError::Cache(format!(
                "the trace has {} neurons: the cache has {n_neurons}",
                self.n_neurons
            )));
        }
        Ok(())
    }

    /// The most hits of a cache of `room` neurons that knows the future: what is used last leaves first (Belády 1966).
    ///
    /// # Errors
    /// An empty trace.
    pub fn best_hits(&self, room: usize) -> SparseResult<u64> {
        if self.rows.is_empty() {
            return Err(SparsityError::EmptyHistory { what: "trace" }.into());
        }
        let uses: Vec<usize> = self.rows.iter().flatten().copied().collect();
        let mut next = vec![usize::MAX; uses.len()];
        let mut seen = HashMap::new();
        for (i, neuron) in uses.iter().enumerate().rev() {
            next[i] = seen.insert(*neuron, i).unwrap_or(usize::MAX);
        }
        // By the next use, the latest last.
        let (mut order, mut at) = (BTreeSet::new(), HashMap::new());
        let mut hits = 0;
        for (neuron, next) in uses.into_iter().zip(next) {
            if let Some(old) = at.remove(&neuron) {
                order.remove(&(old, neuron));
                hits += 1;
            }
            at.insert(neuron, next);
            order.insert((next, neuron));
            if order.len() > room
                && let Some((_, out)) = order.pop_last()
            {
                at.remove(&out);
            }
        }
        Ok(hits)
    }
}
