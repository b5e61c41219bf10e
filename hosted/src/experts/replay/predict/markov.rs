//! Arms that count which experts follow which.

use super::table::{Ranking, Table};
use super::{Arm, Situation};
use std::collections::HashMap;

/// Which members of a step's experts condition the prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Members {
    /// Their sum: the order in a list is no matter.
    All,
    /// The last of the list.
    Last,
}

/// First order: `p(e|a) = (c[a][e] + 1) / (sum c[a] + N)`, where e is one of the N experts of the layer that is next,
/// and a an expert of the step before. Rows are of (a, layer of e): dense ids say the layer of a.
#[derive(Debug)]
pub(super) struct Markov {
    members: Members,
    counts: Table<(u32, u32)>,
}

impl Markov {
    pub(super) fn new(members: Members) -> Self {
        Self {
            members,
            counts: Table::default(),
        }
    }

    /// Those of the step before that condition.
    fn given<'s>(&self, situation: &Situation<'s>) -> &'s [u32] {
        match self.members {
            Members::All => situation.before,
            Members::Last => last(situation.before),
        }
    }

    /// Scores all experts of the layer that is next: p, or the sum of p over the members.
    pub(super) fn score<'r>(
        &self,
        situation: &Situation<'_>,
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking {
        let n = f64::from(situation.n_expert);
        let row = |&a: &u32| self.counts.row(&(a, situation.layer));
        let total = |a: &u32| row(a).map_or(0.0, |row| f64::from(row.total));
        let given = self.given(situation);
        // What each has that was never seen.
        let prior = given.iter().map(|a| 1.0 / (total(a) + n)).sum();
        let ranking = ranking.begin(situation.layer, prior);
        for row in given.iter().filter_map(row) {
            let all = f64::from(row.total) + n;
            row.counts()
                .for_each(|(e, count)| ranking.add(e, count / all));
        }
        ranking
    }
}

impl Arm for Markov {
    fn name(&self) -> &'static str {
        match self.members {
            Members::All => "markov",
            Members::Last => "markov-last",
        }
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
        for &a in self.given(situation) {
            self.counts.add((a, situation.layer), experts);
        }
    }
}

/// Second order, given the last members a and b of the two steps before: `0.5 * p(e|a) + 0.5 * p(e|b,a)`, if that
/// pair was seen, else `p(e|a)`. The first list is cut to the length that is asked for; the second has what was
/// observed.
#[derive(Debug)]
pub(super) struct SecondOrder {
    first: Markov,
    /// By b, a, and the layer of e.
    counts: Table<(u32, u32, u32)>,
    list: Vec<(u32, f64)>,
}

impl Default for SecondOrder {
    fn default() -> Self {
        Self {
            first: Markov::new(Members::Last),
            counts: Table::default(),
            list: Vec::new(),
        }
    }
}

impl SecondOrder {
    fn pair(situation: &Situation<'_>) -> Option<(u32, u32, u32)> {
        let (b, a) = (situation.before_that.last()?, situation.before.last()?);
        Some((*b, *a, situation.layer))
    }

    /// Scores at most `n` experts, and those that followed the pair.
    pub(super) fn score<'r>(
        &mut self,
        situation: &Situation<'_>,
        n: usize,
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking {
        self.list.clear();
        self.list
            .extend(self.first.score(situation, ranking).best(n));
        let row = Self::pair(situation).and_then(|pair| self.counts.row(&pair));
        let half = if row.is_some() { 0.5 } else { 1.0 };
        let ranking = ranking.begin(situation.layer, 0.0);
        for &(e, p) in &self.list {
            ranking.add(e, half * p);
        }
        if let Some(row) = row {
            let all = f64::from(row.total) + f64::from(situation.n_expert);
            for (e, count) in row.counts() {
                ranking.add(e, 0.5 * (count + 1.0) / all);
            }
        }
        ranking
    }
}

impl Arm for SecondOrder {
    fn name(&self) -> &'static str {
        "markov-2"
    }

    fn rank<'r>(
        &mut self,
        situation: &Situation<'_>,
        n: usize,
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking {
        self.score(situation, n, ranking)
    }

    fn observe(&mut self, situation: &Situation<'_>, experts: &[u32]) {
        self.first.observe(situation, experts);
        if let Some(pair) = Self::pair(situation) {
            self.counts.add(pair, experts);
        }
    }
}

/// Counts from the experts of a layer to those of the next, of one token: the share of what followed any of the
/// members, at most [`CAP`]. Nothing is predicted for a token's first layer.
#[derive(Debug, Default)]
pub(super) struct PreGate {
    counts: Table<(u32, u32)>,
    /// How often each expert was in a step that another layer followed.
    n_seen: HashMap<u32, u64>,
}

impl Arm for PreGate {
    fn name(&self) -> &'static str {
        "pre-gate"
    }

    fn rank<'r>(
        &mut self,
        situation: &Situation<'_>,
        _: usize,
        ranking: &'r mut Ranking,
    ) -> &'r mut Ranking {
        let ranking = ranking.begin(situation.layer, 0.0);
        if !situation.is_same_token {
            return ranking;
        }
        let seen = situation.before.iter().filter_map(|a| self.n_seen.get(a));
        #[expect(clippy::cast_precision_loss, reason = "counts are below 2^52")]
        let n_seen = seen.sum::<u64>() as f64;
        for a in situation.before {
            if let Some(row) = self.counts.row(&(*a, situation.layer)) {
                row.counts()
                    .for_each(|(e, count)| ranking.add(e, count / n_seen));
            }
        }
        ranking.cap(CAP);
        ranking
    }

    fn observe(&mut self, situation: &Situation<'_>, experts: &[u32]) {
        if situation.is_same_token {
            for &a in situation.before {
                self.counts.add((a, situation.layer), experts);
                *self.n_seen.entry(a).or_default() += 1;
            }
        }
    }
}

fn last(experts: &[u32]) -> &[u32] {
    &experts[experts.len().saturating_sub(1)..]
}

/// The most that a count is trusted.
const CAP: f64 = 0.9;
