//! Arms that look at a layer alone: what goes with what it used last, and what it used of late.

use super::table::{Ranking, Table};
use super::{Arm, Situation};
use std::collections::VecDeque;

/// How often two experts of a layer were used in one step, halved now and then. What goes with the layer's last experts
/// is predicted.
#[derive(Debug)]
pub(super) struct Affinity {
    layers: Vec<Pairs>,
}

#[derive(Debug, Default)]
struct Pairs {
    counts: Table<u32>,
    n_observed: u64,
}

impl Affinity {
    pub(super) fn new(n_layers: usize) -> Self {
        Self {
            layers: (0..n_layers).map(|_| Pairs::default()).collect(),
        }
    }

    /// Scores the experts of a layer by how often they went with `seeds`.
    pub(super) fn score<'r>(
        &self,
        situation: &Situation<'_>,
        seeds: &[u32],
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking {
        let counts = &self.layers[situation.layer_index].counts;
        let ranking = ranking.begin(situation.layer, 0.0);
        for row in seeds.iter().filter_map(|seed| counts.row(seed)) {
            row.counts().for_each(|(id, count)| ranking.add(id, count));
        }
        ranking
    }
}

impl Arm for Affinity {
    fn name(&self) -> &'static str {
        "affinity"
    }

    fn rank<'r>(
        &mut self,
        situation: &Situation<'_>,
        _: usize,
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking {
        self.score(situation, situation.last, ranking)
    }

    fn observe(&mut self, situation: &Situation<'_>, experts: &[u32]) {
        let layer = &mut self.layers[situation.layer_index];
        for (i, &id) in experts.iter().enumerate() {
            layer.counts.add(id, &experts[..i]);
            layer.counts.add(id, &experts[i + 1..]);
        }
        layer.n_observed += 1;
        if layer.n_observed.is_multiple_of(HALVE_AFTER) {
            layer.counts.halve();
        }
    }
}

/// The experts that a layer used in a tenth or more of its last steps, the most used first.
#[derive(Debug)]
pub(super) struct Locality {
    layers: Vec<VecDeque<Box<[u32]>>>,
}

impl Locality {
    pub(super) fn new(n_layers: usize) -> Self {
        Self {
            layers: vec![VecDeque::new(); n_layers],
        }
    }

    /// Scores the hot experts by how often they were used.
    pub(super) fn score<'r>(
        &self,
        situation: &Situation<'_>,
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking {
        let window = &self.layers[situation.layer_index];
        let ranking = ranking.begin(situation.layer, 0.0);
        for &id in window.iter().flatten() {
            ranking.add(id, 1.0);
        }
        #[expect(clippy::cast_precision_loss, reason = "the window is short")]
        ranking.keep_from(window.len() as f64 * HOT);
        ranking
    }
}

impl Arm for Locality {
    fn name(&self) -> &'static str {
        "locality"
    }

    fn rank<'r>(
        &mut self,
        situation: &Situation<'_>,
        _: usize,
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking {
        self.score(situation, ranking)
    }

    fn observe(&mut self, situation: &Situation<'_>, experts: &[u32]) {
        let window = &mut self.layers[situation.layer_index];
        if window.len() == WINDOW {
            window.pop_front();
        }
        window.push_back(experts.into());
    }
}

/// Observations of a layer after which its counts are halved.
const HALVE_AFTER: u64 = 100_000;
/// Steps of a layer that locality looks back.
const WINDOW: usize = 256;
/// The share of those steps from which on an expert is hot.
const HOT: f64 = 0.1;
