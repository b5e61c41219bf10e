//! What a model's networks read and do while it reads a text.

use super::labels::{Labels, largest};
use super::rows::{Rows, part};
use core::ops::Range;
use sluice_core::engine::{Observer, SiteInput};
use sluice_core::model::{Channel, ModelConfig, Site};
use std::sync::{Mutex, PoisonError};

/// Which neurons count as active.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Active {
    /// Those that are not 0.
    NotZero,
    /// In each row the share that adds the most.
    Largest(f32),
}

/// A layer's rows.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// (n_tokens, n_embd)
    pub(super) inputs: Rows,
    pub(super) labels: Labels,
    /// What neurons are, (tokens from the first that is held back on, n_ff).
    pub(super) values: Rows,
}

/// Collects the rows of some layers.
#[derive(Debug)]
pub(super) struct Collector<'n> {
    first: usize,
    layers: Vec<Mutex<Samples>>,
    /// The site that reads the network's input.
    sites: Vec<Site>,
    active: Active,
    /// Tokens before those that are held back.
    n_train: usize,
    /// Norms of neurons, (layers, stride).
    norms: &'n [f32],
    stride: usize,
}

impl<'n> Collector<'n> {
    pub(super) fn new(
        config: &ModelConfig,
        layers: Range<usize>,
        active: Active,
        n_train: usize,
        norms: &'n [f32],
    ) -> Self {
        let samples = |layer| {
            let n_ff = n_ff(config, layer).unwrap_or(0);
            Mutex::new(Samples {
                inputs: Rows::zeros(0, config.n_embd),
                labels: Labels::new(n_ff),
                values: Rows::zeros(0, n_ff),
            })
        };
        let site = |layer| match &config.kind(layer).channel {
            Channel::Ffn(shape) if shape.is_gated => Site::FfnGate,
            _ => Site::FfnUp,
        };
        Self {
            first: layers.start,
            sites: layers.clone().map(site).collect(),
            layers: layers.map(samples).collect(),
            active,
            n_train,
            norms,
            stride: config.neurons_max(),
        }
    }

    /// The rows of each layer.
    pub(super) fn into_samples(self) -> Vec<Samples> {
        let samples = self.layers.into_iter();
        samples
            .map(|layer| layer.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    fn add_neurons(&self, samples: &mut Samples, layer: usize, neurons: &[f32]) {
        if samples.labels.n_tokens() >= self.n_train {
            samples.values.values.extend_from_slice(neurons);
        }
        match self.active {
            Active::NotZero => samples.labels.push(neurons.iter().map(|h| *h != 0.0)),
            Active::Largest(share) => {
                let norms = &self.norms[layer * self.stride..];
                let pairs = neurons.iter().zip(norms);
                let all: Vec<f32> = pairs.map(|(h, norm)| h.abs() * norm).collect();
                let n = part(f64::from(share) + 0.5 / all.len() as f64, all.len());
                samples.labels.push(largest(&all, n.max(1)).into_iter());
            }
        }
    }
}

impl Observer for Collector<'_> {
    fn sees_all(&self) -> bool {
        true
    }

    fn sees(&self, seen: SiteInput<'_>) {
        let Some(at) = seen.layer.checked_sub(self.first) else {
            return;
        };
        let (Some(layer), Some(site), None) =
            (self.layers.get(at), self.sites.get(at), seen.expert)
        else {
            return;
        };
        let mut samples = layer.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.site == *site {
            samples.inputs.values.extend_from_slice(seen.input);
        } else if seen.site == Site::FfnDown {
            self.add_neurons(&mut samples, seen.layer, seen.input);
        }
    }
}

/// Neurons of a layer's dense network.
pub(super) fn n_ff(config: &ModelConfig, layer: usize) -> Option<usize> {
    match &config.kind(layer).channel {
        Channel::Ffn(shape) => Some(shape.n_ff),
        _ => None,
    }
}
