//! What a model's networks read and do while it reads a text.

use super::labels::{Labels, largest};
use super::network::Network;
use super::rows::{Rows, part};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use sluice_core::engine::{Observer, SiteInput};
use sluice_core::model::{ModelConfig, Site};
use std::sync::{Mutex, PoisonError};

/// Which neurons count as active.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Active {
    /// Those that are not 0.
    NotZero,
    /// In each row the share that adds the most.
    Largest(f32),
}

/// What a part of the text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextPart {
    /// Making predictors.
    Train = 0,
    /// Setting thresholds.
    Set = 1,
    /// Measuring.
    Measure = 2,
}

/// A network's rows.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// (n_tokens, n_in)
    pub(super) inputs: Rows,
    pub(super) labels: Labels,
    /// What neurons are, (n_tokens, n_ff); none of those to train with.
    pub(super) values: Rows,
}

/// A network and its rows of each part of the text.
#[derive(Debug)]
pub(super) struct NetworkSamples {
    pub(super) network: Network,
    pub(super) parts: [Samples; 3],
}

/// Collects the rows of some layers.
#[derive(Debug)]
pub(super) struct Collector<'n> {
    first: usize,
    /// Of each layer.
    layers: Vec<Vec<Mutex<NetworkSamples>>>,
    active: Active,
    /// The [`TextPart`] that is read.
    part: AtomicUsize,
    /// Norms of each network's neurons.
    norms: &'n [f32],
    config: &'n ModelConfig,
}

impl<'n> Collector<'n> {
    pub(super) fn new(
        config: &'n ModelConfig,
        layers: Range<usize>,
        active: Active,
        norms: &'n [f32],
    ) -> Self {
        let samples = |network: Network| {
            let part = || Samples {
                inputs: Rows::zeros(0, network.n_in),
                labels: Labels::new(network.n_ff),
                values: Rows::zeros(0, network.n_ff),
            };
            let parts = [part(), part(), part()];
            Mutex::new(NetworkSamples { network, parts })
        };
        let networks = |layer| {
            let all = Network::of(config, layer).into_iter();
            all.map(samples).collect()
        };
        Self {
            first: layers.start,
            layers: layers.map(networks).collect(),
            active,
            part: AtomicUsize::new(TextPart::Train as usize),
            norms,
            config,
        }
    }

    /// Sets what the text is for that is read next.
    pub(super) fn begin(&self, part: TextPart) {
        self.part.store(part as usize, Ordering::Relaxed);
    }

    /// The rows of each network.
    pub(super) fn into_samples(self) -> Vec<NetworkSamples> {
        let networks = self.layers.into_iter().flatten();
        networks
            .map(|network| network.into_inner().unwrap_or_else(PoisonError::into_inner))
            .collect()
    }

    fn add_neurons(&self, samples: &mut Samples, network: &Network, neurons: &[f32]) {
        if self.part.load(Ordering::Relaxed) != TextPart::Train as usize {
            samples.values.values.extend_from_slice(neurons);
        }
        match self.active {
            Active::NotZero => samples.labels.push(neurons.iter().map(|h| *h != 0.0)),
            Active::Largest(share) => {
                let norms = network.norms(self.config, self.norms);
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
        let layer = seen.layer.checked_sub(self.first);
        let Some(networks) = layer.and_then(|at| self.layers.get(at)) else {
            return;
        };
        let Some(samples) = networks.get(seen.expert.unwrap_or(0) as usize) else {
            return;
        };
        let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
        let network = samples.network;
        let samples = &mut samples.parts[self.part.load(Ordering::Relaxed)];
        if network.expert != seen.expert {
            return;
        }
        if seen.site == network.site {
            samples.inputs.values.extend_from_slice(seen.input);
        } else if seen.site == Site::FfnDown {
            self.add_neurons(samples, &network, seen.input);
        }
    }
}
