//! Collecting an importance matrix while a model reads.
#![forbid(unsafe_code)]

use super::importance::{Importance, ImportanceMatrix};
use core::ops::Range;
use sluice_core::engine::{LinearAdapter, LinearSite, Projection};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Adds up the squares of the inputs of linear layers; changes no output.
///
/// Sums are the same for any number of workers: the first rows of a layer's output are one
/// worker's, who meets the tokens in order.
#[derive(Debug)]
pub struct Collector {
    layers: Vec<Mutex<[Sums; IN_LAYER.len()]>>,
    output: Option<Mutex<Sums>>,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    squares: Vec<f64>,
    count: u64,
}

/// The projections of a decoder layer, by the names of their weights.
const IN_LAYER: [(Projection, &str); 7] = [
    (Projection::AttnQ, "attn_q"),
    (Projection::AttnK, "attn_k"),
    (Projection::AttnV, "attn_v"),
    (Projection::AttnOutput, "attn_output"),
    (Projection::FfnGate, "ffn_gate"),
    (Projection::FfnUp, "ffn_up"),
    (Projection::FfnDown, "ffn_down"),
];

impl Collector {
    /// Nothing yet, for a model of `n_layer` layers; with the output layer if `output`.
    #[must_use]
    pub fn new(n_layer: usize, output: bool) -> Self {
        Self {
            layers: (0..n_layer).map(|_| Mutex::default()).collect(),
            output: output.then(Mutex::default),
        }
    }

    /// Adds what was collected to `matrix`.
    pub fn add_to(self, matrix: &mut ImportanceMatrix) {
        for (layer, sums) in self.layers.into_iter().enumerate() {
            let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
            for ((_, name), sums) in IN_LAYER.iter().zip(sums) {
                add(
                    &mut matrix.weights,
                    &format!("blk.{layer}.{name}.weight"),
                    &sums,
                );
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
        let place = IN_LAYER
            .iter()
            .position(|(projection, _)| *projection == site.projection);
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
