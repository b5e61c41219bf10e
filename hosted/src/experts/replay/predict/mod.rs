//! Predictions of the next step's experts, measured on a trace.
//!
//! Each arm predicts a step and then sees it, from an empty memory on: none looks ahead. Of equal scores the smaller
//! id is the likelier.

mod affinity;
mod markov;
mod table;
mod unified;

use super::steps::{StepRef, Steps};
use affinity::{Affinity, Locality};
use markov::{Markov, Members, PreGate, SecondOrder};
use std::collections::HashMap;
use table::Ranking;
use unified::Unified;

/// What an arm found.
#[derive(Clone, Debug)]
pub struct ArmReport {
    /// As tables call it.
    pub name: &'static str,
    /// By layer, in the order of [`Steps::layers`].
    pub layers: Vec<Recall>,
}

/// How well experts were predicted, for each of the lengths [`cuts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recall {
    /// Experts that were used.
    pub n_used: u64,
    /// Of them those that stood among the first predictions.
    pub n_found: [u64; CUTS],
    /// The predictions.
    pub n_predicted: [u64; CUTS],
}

/// How many lengths of predictions are looked at.
pub const CUTS: usize = 4;

/// The lengths of predictions that are looked at: k as the router chooses, 2 and 4 more, and twice k.
#[must_use]
pub const fn cuts(top_k: usize) -> [usize; CUTS] {
    [top_k, top_k + 2, top_k + 4, 2 * top_k]
}

impl Recall {
    /// The share of used experts that were predicted, 0 to 1.
    #[must_use]
    pub fn recall(&self, cut: usize) -> f64 {
        share(self.n_found[cut], self.n_used)
    }

    /// The share of predictions that were used, 0 to 1; 0 where there were none.
    #[must_use]
    pub fn precision(&self, cut: usize) -> f64 {
        share(self.n_found[cut], self.n_predicted[cut])
    }

    fn add(&mut self, other: &Self) {
        self.n_used += other.n_used;
        for cut in 0..CUTS {
            self.n_found[cut] += other.n_found[cut];
            self.n_predicted[cut] += other.n_predicted[cut];
        }
    }

    /// Counts a step: what was used, and what was predicted, the likeliest first.
    fn count(&mut self, used: &[u32], predicted: &[u32], cuts: [usize; CUTS]) {
        self.n_used += used.len() as u64;
        for (rank, id) in predicted.iter().enumerate() {
            let is_found = used.contains(id);
            for (cut, _) in cuts.iter().enumerate().filter(|(_, cut)| rank < **cut) {
                self.n_predicted[cut] += 1;
                self.n_found[cut] += u64::from(is_found);
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
fn share(n: u64, of: u64) -> f64 {
    n as f64 / of.max(1) as f64
}

impl ArmReport {
    /// Of all layers.
    #[must_use]
    pub fn total(&self) -> Recall {
        let mut total = Recall::default();
        self.layers.iter().for_each(|layer| total.add(layer));
        total
    }
}

/// Has every arm predict each step of a trace.
#[must_use]
pub fn predictions(steps: &Steps) -> Vec<ArmReport> {
    let has_own = steps.iter().any(|step| !step.predicted.is_empty());
    let mut arms: Vec<Box<dyn Arm>> = vec![
        Box::new(Markov::new(Members::All)),
        Box::new(Markov::new(Members::Last)),
        Box::new(SecondOrder::default()),
        Box::new(Affinity::new(steps.layers().len())),
        Box::new(PreGate::default()),
        Box::new(Locality::new(steps.layers().len())),
        Box::new(Unified::new(steps.layers().len(), false)),
    ];
    if has_own {
        arms.insert(0, Box::new(Recorded));
        arms.push(Box::new(Unified::new(steps.layers().len(), true)));
    }
    let arms = arms.into_iter();
    arms.map(|mut arm| measured(steps, arm.as_mut())).collect()
}

fn measured(steps: &Steps, arm: &mut dyn Arm) -> ArmReport {
    let cuts = cuts(steps.top_k());
    let n_most = cuts.into_iter().max().unwrap_or_default();
    let mut layers = vec![Recall::default(); steps.layers().len()];
    let mut ranking = Ranking::new(steps.n_expert());
    let mut history = History::new(steps);
    let mut predicted = Vec::with_capacity(n_most);
    for i in 0..steps.len() {
        let situation = history.before(i);
        predicted.clear();
        let best = arm.rank(&situation, n_most, &mut ranking).best(n_most);
        predicted.extend(best.map(|(id, _)| id));
        let experts = steps.get(i).experts;
        layers[situation.layer_index].count(experts, &predicted, cuts);
        arm.observe(&situation, experts);
        history.passed(i);
    }
    ArmReport {
        name: arm.name(),
        layers,
    }
}

/// A way to predict.
trait Arm {
    fn name(&self) -> &'static str;

    /// Scores experts, of which the best `n` are its prediction.
    fn rank<'r>(
        &mut self,
        situation: &Situation<'_>,
        n: usize,
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking;

    /// Learns what came.
    fn observe(&mut self, situation: &Situation<'_>, experts: &[u32]);
}

/// What is known before a step.
#[derive(Clone, Copy, Debug)]
struct Situation<'s> {
    layer: u32,
    /// Among the layers that have experts.
    layer_index: usize,
    n_expert: u32,
    /// What the trace itself predicted.
    predicted: &'s [u32],
    /// The experts of the step before: the same token's in the layer before, or for a token's first layer what was
    /// computed last.
    before: &'s [u32],
    /// Whether `before` is of the same token.
    is_same_token: bool,
    /// The experts of the step before that one, if it is of the same token, too.
    before_that: &'s [u32],
    /// The layer's experts at its last step.
    last: &'s [u32],
}

/// Which steps were made.
struct History<'s> {
    steps: &'s Steps,
    /// The last two steps of each token.
    tokens: HashMap<u64, (usize, Option<usize>)>,
    /// The last step of each layer.
    layers: Vec<Option<usize>>,
}

impl<'s> History<'s> {
    fn new(steps: &'s Steps) -> Self {
        Self {
            steps,
            tokens: HashMap::new(),
            layers: vec![None; steps.layers().len()],
        }
    }

    /// The token's last two steps, if they are of layers before step `i`'s.
    fn of_token(&self, i: usize) -> Option<(usize, Option<usize>)> {
        let StepRef { token, layer, .. } = self.steps.get(i);
        let found = self.tokens.get(&token).copied();
        found.filter(|&(before, _)| self.steps.get(before).layer < layer)
    }

    fn before(&self, i: usize) -> Situation<'s> {
        let step = self.steps.get(i);
        let layer_index = self.steps.layer_index(step.layer);
        let of_token = self.of_token(i);
        let before = of_token.map_or(i.checked_sub(1), |(before, _)| Some(before));
        let experts = |i: Option<usize>| i.map_or(&[][..], |i| self.steps.get(i).experts);
        Situation {
            layer: step.layer,
            layer_index,
            n_expert: self.steps.n_expert(),
            predicted: step.predicted,
            before: experts(before),
            is_same_token: of_token.is_some(),
            before_that: experts(of_token.and_then(|(_, before_that)| before_that)),
            last: experts(self.layers[layer_index]),
        }
    }

    fn passed(&mut self, i: usize) {
        let step = self.steps.get(i);
        let before = self.of_token(i).map(|(before, _)| before);
        self.tokens.insert(step.token, (i, before));
        self.layers[self.steps.layer_index(step.layer)] = Some(i);
    }
}

/// The predictions that the trace holds.
struct Recorded;

impl Arm for Recorded {
    fn name(&self) -> &'static str {
        "recorded"
    }

    fn rank<'r>(
        &mut self,
        situation: &Situation<'_>,
        n: usize,
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking {
        let ranking = ranking.begin(situation.layer, 0.0);
        let places = (1..).map(f64::from);
        let list = situation.predicted.iter().take(n).zip(places);
        list.for_each(|(&id, place)| ranking.add(id, 1.0 / place));
        ranking
    }

    fn observe(&mut self, _: &Situation<'_>, _: &[u32]) {}
}

#[cfg(test)]
mod tests;
