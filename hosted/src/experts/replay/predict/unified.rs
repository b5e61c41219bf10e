//! The sum of several arms, weighted.

use super::affinity::{Affinity, Locality};
use super::markov::SecondOrder;
use super::table::Ranking;
use super::{Arm, Situation};

/// `0.42 * speculator + 0.33 * markov + 0.25 * locality`, and from what scores 0.80 or more
/// `0.10 * affinity + 0.05 * spatial`.
///
/// Markov gives its probability, an arm with a list its weight times `1 - 1e-4 * rank`. The speculator is what the
/// trace recorded as its prediction, or nothing.
#[derive(Debug)]
pub(super) struct Unified {
    has_speculator: bool,
    markov: SecondOrder,
    locality: Locality,
    affinity: Affinity,
    pub(super) sums: Vec<(u32, f64)>,
}

impl Unified {
    pub(super) fn new(n_layers: usize, has_speculator: bool) -> Self {
        Self {
            has_speculator,
            markov: SecondOrder::default(),
            locality: Locality::new(n_layers),
            affinity: Affinity::new(n_layers),
            sums: Vec::new(),
        }
    }

    /// Puts what all arms give into `sums`: an expert may be there more than once.
    pub(super) fn collect(&mut self, situation: &Situation<'_>, n: usize, ranking: &mut Ranking) {
        self.sums.clear();
        if self.has_speculator {
            let list = situation.predicted.iter().copied().take(n);
            self.sums.extend(ranked(SPECULATOR, list));
        }
        // A source that knows nothing says nothing, rather than the same of all.
        if !situation.before.is_empty() {
            let list = self.markov.score(situation, n, ranking).best(n);
            self.sums.extend(list.map(|(id, p)| (id, MARKOV * p)));
        }
        let list = self.locality.score(situation, ranking).best(n);
        self.sums.extend(ranked(LOCALITY, list.map(|(id, _)| id)));
        let seeds: Vec<u32> = {
            let all = summed(&self.sums, situation, ranking).best(n);
            let seeds = all.take_while(|&(_, score)| score >= SEED);
            seeds.map(|(id, _)| id).collect()
        };
        if !seeds.is_empty() {
            let list = self.affinity.score(situation, &seeds, ranking).best(n);
            self.sums.extend(ranked(AFFINITY, list.map(|(id, _)| id)));
            let first = situation.layer * situation.n_expert;
            let own = first..first + situation.n_expert;
            let mut beside: Vec<u32> = Vec::new();
            for id in seeds.iter().flat_map(|&id| [id.wrapping_sub(1), id + 1]) {
                if own.contains(&id) && !beside.contains(&id) {
                    beside.push(id);
                }
            }
            self.sums.extend(ranked(SPATIAL, beside.into_iter()));
        }
    }
}

/// A list's part of the score.
fn ranked(weight: f64, list: impl Iterator<Item = u32>) -> impl Iterator<Item = (u32, f64)> {
    let ranks = (0..).map(f64::from);
    list.zip(ranks)
        .map(move |(id, rank)| (id, weight * (1.0 - RANK * rank)))
}

pub(super) fn summed<'r>(
    sums: &[(u32, f64)],
    situation: &Situation<'_>,
    ranking: &'r mut Ranking,
) -> &'r mut Ranking {
    let ranking = ranking.begin(situation.layer, 0.0);
    sums.iter().for_each(|&(id, score)| ranking.add(id, score));
    ranking
}

impl Arm for Unified {
    fn name(&self) -> &'static str {
        if self.has_speculator {
            "unified+recorded"
        } else {
            "unified"
        }
    }

    fn rank<'r>(
        &mut self,
        situation: &Situation<'_>,
        n: usize,
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking {
        self.collect(situation, n, ranking);
        summed(&self.sums, situation, ranking)
    }

    fn observe(&mut self, situation: &Situation<'_>, experts: &[u32]) {
        self.markov.observe(situation, experts);
        self.locality.observe(situation, experts);
        self.affinity.observe(situation, experts);
    }
}

const SPECULATOR: f64 = 0.42;
const MARKOV: f64 = 0.33;
const LOCALITY: f64 = 0.25;
const AFFINITY: f64 = 0.10;
const SPATIAL: f64 = 0.05;
/// The score from which on an expert's neighbours are looked at.
const SEED: f64 = 0.80;
/// What a place further down a list costs.
const RANK: f64 = 1e-4;
