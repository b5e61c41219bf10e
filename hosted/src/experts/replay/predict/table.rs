//! Counts by what came before, and experts by score.

use core::hash::Hash;
use std::collections::HashMap;

/// How often each expert followed a key.
#[derive(Debug)]
pub(super) struct Table<K> {
    rows: HashMap<K, Row>,
}

/// Experts and their counts, by id, and the sum of the counts.
#[derive(Debug, Default)]
pub(super) struct Row {
    counts: Vec<(u32, u32)>,
    pub(super) total: u32,
}

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self {
            rows: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash> Table<K> {
    pub(super) fn row(&self, key: &K) -> Option<&Row> {
        self.rows.get(key)
    }

    pub(super) fn add(&mut self, key: K, experts: &[u32]) {
        let row = self.rows.entry(key).or_default();
        experts.iter().for_each(|&id| row.add(id));
    }

    /// Takes half of all counts.
    pub(super) fn halve(&mut self) {
        for row in self.rows.values_mut() {
            row.counts.iter_mut().for_each(|(_, n)| *n /= 2);
            row.counts.retain(|&(_, n)| n > 0);
            row.total = row.counts.iter().map(|&(_, n)| n).sum();
        }
    }
}

impl Row {
    pub(super) fn add(&mut self, id: u32) {
        match self.counts.binary_search_by_key(&id, |&(id, _)| id) {
            Ok(at) => self.counts[at].1 += 1,
            Err(at) => self.counts.insert(at, (id, 1)),
        }
        self.total += 1;
    }

    /// Experts that were seen, and how often.
    pub(super) fn counts(&self) -> impl Iterator<Item = (u32, f64)> {
        self.counts.iter().map(|&(id, n)| (id, f64::from(n)))
    }
}

/// The experts of a layer by score.
#[derive(Debug)]
pub(super) struct Ranking {
    first: u32,
    scores: Vec<f64>,
    order: Vec<u32>,
}

impl Ranking {
    pub(super) fn new(n_expert: u32) -> Self {
        Self {
            first: 0,
            scores: vec![0.0; n_expert as usize],
            order: Vec::with_capacity(n_expert as usize),
        }
    }

    /// Begins with the same score for all experts of a layer.
    pub(super) fn begin(&mut self, layer: u32, score: f64) -> &mut Self {
        self.first = layer * u32::try_from(self.scores.len()).unwrap_or(u32::MAX);
        self.scores.fill(score);
        self
    }

    /// Adds to the score of an expert. One of another layer is none of ours.
    pub(super) fn add(&mut self, id: u32, score: f64) {
        let own = id.checked_sub(self.first).map(|own| own as usize);
        if let Some(sum) = own.and_then(|own| self.scores.get_mut(own)) {
            *sum += score;
        }
    }

    /// No score is above `most`.
    pub(super) fn cap(&mut self, most: f64) {
        self.scores
            .iter_mut()
            .for_each(|score| *score = score.min(most));
    }

    /// Scores below `least` are 0.
    pub(super) fn keep_from(&mut self, least: f64) {
        let low = self.scores.iter_mut().filter(|score| **score < least);
        low.for_each(|score| *score = 0.0);
    }

    /// Experts with scores above 0, the highest first, at most `n`.
    pub(super) fn best(&mut self, n: usize) -> impl Iterator<Item = (u32, f64)> {
        let scores = &self.scores;
        let by_score = |a: &u32, b: &u32| {
            let order = scores[*b as usize].total_cmp(&scores[*a as usize]);
            order.then(a.cmp(b))
        };
        self.order.clear();
        let above = (0..).zip(scores).filter(|(_, score)| **score > 0.0);
        self.order.extend(above.map(|(own, _)| own));
        if n < self.order.len() && n > 0 {
            self.order.select_nth_unstable_by(n - 1, by_score);
        }
        self.order.truncate(n);
        self.order.sort_unstable_by(by_score);
        let first = self.first;
        self.order
            .iter()
            .map(move |&own| (first + own, scores[own as usize]))
    }
}
