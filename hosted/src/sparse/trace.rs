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

    /// The most hits of a cache of `room` neurons that knows the future: what is used last is evicted first (Belády
    /// 1966). A use is a hit if the neuron was kept before the vector, as in [`super::NeuronCache`].
    ///
    /// # Errors
    /// An empty trace.
    pub fn best_hits(&self, room: usize) -> SparseResult<u64> {
        if self.rows.is_empty() {
            return Err(SparsityError::EmptyHistory { what: "trace" }.into());
        }
        // By the vector of the next use, the latest last.
        let (mut order, mut at) = (BTreeSet::new(), HashMap::new());
        let mut hits = 0;
        for (row, next) in self.rows.iter().zip(self.next_uses()) {
            hits += row.iter().filter(|i| at.contains_key(*i)).count() as u64;
            for (&neuron, next) in row.iter().zip(next) {
                if let Some(old) = at.insert(neuron, next) {
                    order.remove(&(old, neuron));
                }
                order.insert((next, neuron));
            }
            while order.len() > room
                && let Some((_, out)) = order.pop_last()
            {
                at.remove(&out);
            }
        }
        Ok(hits)
    }

    /// For each use the vector that uses its neuron next.
    fn next_uses(&self) -> Vec<Vec<usize>> {
        let mut seen = HashMap::new();
        let mut all: Vec<Vec<usize>> = Vec::with_capacity(self.rows.len());
        for (i, row) in self.rows.iter().enumerate().rev() {
            let next = row
                .iter()
                .map(|neuron| seen.get(neuron).copied().unwrap_or(usize::MAX));
            all.push(next.collect());
            seen.extend(row.iter().map(|neuron| (*neuron, i)));
        }
        all.reverse();
        all
    }
}
