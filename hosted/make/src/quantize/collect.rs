//! Collecting an importance matrix while a model reads.

use super::importance::{Importance, ImportanceMatrix};
use sluice_core::engine::{Observer, SiteInput};
use sluice_core::model::{Input, ModelConfig, Site};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Adds up the squares of the inputs of linear layers, and counts how often each neuron is not 0; changes no output.
///
/// Sums do not depend on the number of workers: a single worker processes all rows of a matrix, in token order. Each
/// expert has its own sums, over the tokens routed to it.
#[derive(Debug)]
pub struct Collector {
    config: ModelConfig,
    /// The sums of each matrix of a layer; stacks of experts have one entry per expert.
    layers: Vec<Mutex<[Vec<Sums>; IN_LAYER.len()]>>,
    output: Option<Mutex<Sums>>,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    squares: Vec<f64>,
    /// Rows in which a neuron was not 0; empty where the input is not of neurons.
    active: Vec<u32>,
    count: u64,
}

const IN_LAYER: [Site; Site::IN_LAYER.len()] = Site::IN_LAYER;

impl Collector {
    /// An empty collector for such a model; it includes the output layer if `output` is set.
    #[must_use]
    pub fn new(config: &ModelConfig, output: bool) -> Self {
        Self {
            config: config.clone(),
            layers: (0..config.n_layer()).map(|_| Mutex::default()).collect(),
            output: output.then(Mutex::default),
        }
    }

    /// Adds the collected sums to `matrix`.
    pub fn add_to(self, matrix: &mut ImportanceMatrix) {
        for (layer, sums) in self.layers.into_iter().enumerate() {
            let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
            let names = IN_LAYER.map(|site| site.tensor(&self.config, layer));
            let experts = self.config.kind(layer).experts();
            for (i, (name, sums)) in names.iter().zip(sums).enumerate() {
                // Matrices of a shared tensor have the same inputs, so they count once.
                if let Some(name) = name.filter(|_| !names[..i].contains(name)) {
                    let name = format!("blk.{layer}.{name}.weight");
                    let n_matrices = match experts {
                        Some(experts) if IN_LAYER[i].is_of_experts() => experts.n_expert,
                        _ => 1,
                    };
                    add(&mut matrix.weights, &name, n_matrices, &sums);
                }
            }
        }
        if let Some(sums) = self.output {
            let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
            add(&mut matrix.weights, "output.weight", 1, &[sums]);
        }
    }
}

/// Adds the sums of a tensor's matrices; an expert without tokens has none.
fn add(
    weights: &mut BTreeMap<String, Importance>,
    name: &str,
    n_matrices: usize,
    matrices: &[Sums],
) {
    let n_columns = matrices.iter().map(|sums| sums.squares.len()).max();
    let Some(n_columns) = n_columns.filter(|&n| n > 0) else {
        return;
    };
    let weight = weights.entry(name.into()).or_default();
    // Counts of this run alone would not fit the sums of all runs.
    let is_counted = weight.counts.is_empty() || !weight.active.is_empty();
    weight.sums.resize(n_matrices * n_columns, 0.0);
    weight.counts.resize(n_matrices, 0.0);
    if is_counted && matrices.iter().any(|sums| !sums.active.is_empty()) {
        weight.active.resize(n_matrices * n_columns, 0.0);
        let into = weight.active.chunks_exact_mut(n_columns);
        for (into, sums) in into.zip(matrices) {
            #[expect(clippy::cast_precision_loss, reason = "files hold f32")]
            let add = |(into, n): (&mut f32, &u32)| *into += *n as f32;
            into.iter_mut().zip(&sums.active).for_each(add);
        }
    }
    let into = weight.sums.chunks_exact_mut(n_columns);
    for ((sums, into), count) in matrices.iter().zip(into).zip(&mut weight.counts) {
        for (into, sum) in into.iter_mut().zip(&sums.squares) {
            #[expect(clippy::cast_possible_truncation, reason = "files hold f32")]
            let sum = (f64::from(*into) + sum) as f32;
            *into = sum;
        }
        #[expect(clippy::cast_precision_loss, reason = "files hold f32")]
        {
            *count += sums.count as f32;
        }
    }
}

impl Observer for Collector {
    fn sees_all(&self) -> bool {
        true
    }

    fn sees(&self, seen: SiteInput<'_>) {
        let input = seen.input;
        let square = |sums: &mut Sums| {
            sums.squares.resize(input.len(), 0.0);
            sums.count += 1;
            for (sum, x) in sums.squares.iter_mut().zip(input) {
                *sum += f64::from(*x) * f64::from(*x);
            }
            if seen.site.input() == Input::Neurons && seen.site != Site::LayerInputProj {
                sums.active.resize(input.len(), 0);
                for (n, x) in sums.active.iter_mut().zip(input) {
                    *n += u32::from(*x != 0.0);
                }
            }
        };
        if let Some(place) = IN_LAYER.iter().position(|site| *site == seen.site) {
            let layer = self.layers[seen.layer].lock();
            let matrices = &mut layer.unwrap_or_else(PoisonError::into_inner)[place];
            let index = seen.expert.map_or(0, |expert| expert as usize);
            if matrices.len() <= index {
                matrices.resize_with(index + 1, Sums::default);
            }
            square(&mut matrices[index]);
        } else if let Some(output) = &self.output {
            square(&mut output.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
