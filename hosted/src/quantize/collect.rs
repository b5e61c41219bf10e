//! Collecting an importance matrix while a model reads.
#![forbid(unsafe_code)]

use super::importance::{Importance, ImportanceMatrix};
use core::ops::Range;
use sluice_core::engine::{LinearAdapter, LinearSite, Projection};
use sluice_core::model::{Architecture, ModelConfig};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Adds up the squares of the inputs of linear layers; changes no output.
///
/// Sums are the same for any number of workers: the first rows of a layer's output are one
/// worker's, who meets the tokens in order.
#[derive(Debug)]
pub struct Collector {
    architecture: Architecture,
    layers: Vec<Mutex<[Sums; IN_LAYER.len()]>>,
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
            architecture: config.architecture,
            layers: (0..config.n_layer).map(|_| Mutex::default()).collect(),
            output: output.then(Mutex::default),
        }
    }

    /// Adds what was collected to `matrix`.
    pub fn add_to(self, matrix: &mut ImportanceMatrix) {
        for (layer, sums) in self.layers.into_iter().enumerate() {
            let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
            let names = IN_LAYER.map(|projection| projection.tensor(self.architecture));
            for (i, (name, sums)) in names.iter().zip(sums).enumerate() {
                // Projections that share a tensor have the same inputs: they count once.
                if let Some(name) = name.filter(|_| !names[..i].contains(name)) {
                    let name = format!("blk.{layer}.{name}.weight");
                    add(&mut matrix.weights, &name, &sums);
                }
            }
        }
        if let Some(sums) = self.output {
            let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
            add(&mut matrix.weights, "output.weight", &sums);
        }
    }
}

fn add(weights: &mut BTreeMap<String, Importance>, name: &str, sums: &Sums) {
    if sums.count == 0 {
        return;
    }
    let weight = weights.entry(name.into()).or_default();
    weight.sums.resize(sums.squares.len(), 0.0);
    weight.counts.resize(1, 0.0);
    for (into, sum) in weight.sums.iter_mut().zip(&sums.squares) {
        #[expect(clippy::cast_possible_truncation, reason = "files hold f32")]
        let sum = (f64::from(*into) + sum) as f32;
        *into = sum;
    }
    #[expect(clippy::cast_precision_loss, reason = "files hold f32")]
    let count = sums.count as f32;
    weight.counts[0] += count;
}

impl LinearAdapter for Collector {
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
                square(&mut layer.unwrap_or_else(PoisonError::into_inner)[place]);
            }
            None => {
                if let Some(output) = &self.output {
                    square(&mut output.lock().unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }
}
