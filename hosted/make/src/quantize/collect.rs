//! Collecting an importance matrix while a model reads.
#![forbid(unsafe_code)]

use super::importance::{Importance, ImportanceMatrix};
use core::ops::Range;
use sluice_core::engine::{LinearAdapter, LinearSite, Projection};
use sluice_core::model::ModelConfig;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Adds up the squares of the inputs of linear layers; changes no output.
///
/// Sums are the same for any number of workers: the first rows of a layer's output are one
/// worker's, who meets the tokens in order. Each expert has sums of its own, over the tokens that
/// went to it.
#[derive(Debug)]
pub struct Collector {
    config: ModelConfig,
    /// Experts of a layer, or 0.
    n_expert: usize,
    /// For each projection of a layer its sums, or those of each expert.
    layers: Vec<Mutex<[Vec<Sums>; IN_LAYER.len()]>>,
    output: Option<Mutex<Sums>>,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    squares: Vec<f64>,
    count: u64,
}

/// The projections of a decoder layer.
const IN_LAYER: [Projection; 7] = [
    Projection::AttnQ,
    Projection::AttnK,
    Projection::AttnV,
    Projection::AttnOutput,
    Projection::FfnGate,
    Projection::FfnUp,
    Projection::FfnDown,
];

impl Collector {
    /// Nothing yet, for such a model; with the output layer if `output`.
    #[must_use]
    pub fn new(config: &ModelConfig, output: bool) -> Self {
        Self {
            config: *config,
            n_expert: config.n_expert,
            layers: (0..config.n_layer).map(|_| Mutex::default()).collect(),
            output: output.then(Mutex::default),
        }
    }

    /// Adds what was collected to `matrix`.
    pub fn add_to(self, matrix: &mut ImportanceMatrix) {
        for (layer, sums) in self.layers.into_iter().enumerate() {
            let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
            let names = IN_LAYER.map(|projection| projection.tensor(&self.config));
            if let Some(router) = router(&sums, &self.config) {
                let name = format!("blk.{layer}.ffn_gate_inp.weight");
                add(&mut matrix.weights, &name, 1, &[router]);
            }
            for (i, (name, sums)) in names.iter().zip(sums).enumerate() {
                // Projections that share a tensor have the same inputs: they count once.
                if let Some(name) = name.filter(|_| !names[..i].contains(name)) {
                    let name = format!("blk.{layer}.{name}.weight");
                    let n_matrices = match projection_of_experts(IN_LAYER[i]) {
                        true => self.n_expert.max(1),
                        false => 1,
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

/// The router's sums: every token meets its input at as many experts as are used.
fn router(layer: &[Vec<Sums>; IN_LAYER.len()], config: &ModelConfig) -> Option<Sums> {
    let place = IN_LAYER.iter().position(|of| *of == Projection::FfnUp)?;
    let experts = layer[place].iter().filter(|_| config.n_expert > 0);
    let n_used = u64::try_from(config.n_expert_used).ok()?.max(1);
    let mut all = Sums::default();
    for expert in experts {
        let len = all.squares.len().max(expert.squares.len());
        all.squares.resize(len, 0.0);
        let sums = all.squares.iter_mut().zip(&expert.squares);
        #[expect(clippy::cast_precision_loss, reason = "a few experts")]
        sums.for_each(|(sum, x)| *sum += x / n_used as f64);
        all.count += expert.count;
    }
    all.count /= n_used;
    Some(all).filter(|all| all.count > 0)
}

/// Whether experts, where there are some, have such a projection each.
const fn projection_of_experts(projection: Projection) -> bool {
    use Projection::{FfnDown, FfnGate, FfnUp};
    matches!(projection, FfnGate | FfnUp | FfnDown)
}

/// Adds the sums of a tensor's matrices; an expert that no token went to has none.
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
    weight.sums.resize(n_matrices * n_columns, 0.0);
    weight.counts.resize(n_matrices, 0.0);
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

impl LinearAdapter for Collector {
    fn sees_all(&self) -> bool {
        true
    }

    fn add(&self, site: LinearSite, input: &[f32], rows: Range<usize>, _: &mut [f32]) {
        if rows.start > 0 {
            return;
        }
        let square = |sums: &mut Sums| {
            sums.squares.resize(input.len(), 0.0);
            sums.count += 1;
            for (sum, x) in sums.squares.iter_mut().zip(input) {
                *sum += f64::from(*x) * f64::from(*x);
            }
        };
        let mut projections = IN_LAYER.iter();
        let place = projections.position(|&projection| projection == site.projection);
        match place {
            Some(place) => {
                let layer = self.layers[site.layer].lock();
                let matrices = &mut layer.unwrap_or_else(PoisonError::into_inner)[place];
                let index = site.expert.map_or(0, |expert| expert as usize);
                if matrices.len() <= index {
                    matrices.resize_with(index + 1, Sums::default);
                }
                square(&mut matrices[index]);
            }
            None => {
                if let Some(output) = &self.output {
                    square(&mut output.lock().unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }
}
