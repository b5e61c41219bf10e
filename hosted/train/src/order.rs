//! The order in which rows are visited: a function of the seed and the epoch alone, so that a cursor (epoch, index) is all
//! that a checkpoint needs.

use core::ops::Range;
use sluice_core::sampler::philox4x32;

/// Rows that are visited equally often.
#[derive(Clone, Debug, PartialEq)]
pub struct RowGroup {
    /// Their indices.
    pub rows: Range<u32>,
    /// How often each is visited in an epoch: 2 is twice, 0.5 every second time.
    pub weight: f64,
}

/// A visit of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Visit {
    /// The row's index.
    pub row: u32,
    /// Which visit of the epoch it is, from 0: rows of a weight above 1 are visited several times.
    pub copy: u32,
}

/// The order of visits in each epoch.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    seed: u64,
    shuffle: bool,
    groups: Vec<RowGroup>,
}

impl EpochOrder {
    /// An order of the rows in `groups`. Without `shuffle` rows stay in the groups' order, in all epochs.
    #[must_use]
    pub const fn new(seed: u64, shuffle: bool, groups: Vec<RowGroup>) -> Self {
        Self {
            seed,
            shuffle,
            groups,
        }
    }

    /// Number of visits in an epoch.
    #[must_use]
    pub fn len(&self) -> usize {
        let visits = self.groups.iter().map(|group| {
            let (whole, rest) = group.visits();
            group.rows.len() * whole as usize + rest
        });
        visits.sum()
    }

    /// Whether there is nothing to visit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The visits of an epoch, which is counted from 0.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> Vec<Visit> {
        let mut visits = Vec::with_capacity(self.len());
        for group in &self.groups {
            let (whole, rest) = group.visits();
            for copy in 0..whole {
                visits.extend(group.rows.clone().map(|row| Visit { row, copy }));
            }
            // Of rows that are visited in a part of the epochs, others are chosen in each of them.
            let copy = whole;
            let mut chosen: Vec<_> = group.rows.clone().map(|row| Visit { row, copy }).collect();
            if self.shuffle && rest > 0 && rest < chosen.len() {
                self.shuffled(&mut chosen, epoch, CHOICE);
            }
            chosen.truncate(rest);
            visits.extend(chosen);
        }
        if self.shuffle {
            self.shuffled(&mut visits, epoch, ORDER);
        }
        visits
    }

    fn shuffled(&self, visits: &mut [Visit], epoch: u64, domain: u32) {
        let epoch = u32::try_from(epoch % (1 << 32)).unwrap_or_default();
        let draw = |visit: &Visit| draw(self.seed, [visit.row, visit.copy, epoch, domain]);
        visits.sort_by_cached_key(|visit| (draw(visit), *visit));
    }
}

impl RowGroup {
    /// How often all of the rows are visited, and how many of them once more.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "weights are from 0 to 1000, and the rest is below the number of rows"
    )]
    fn visits(&self) -> (u32, usize) {
        let whole = libm::floor(self.weight);
        let rest = libm::round((self.weight - whole) * self.rows.len() as f64);
        (whole as u32, (rest as usize).min(self.rows.len()))
    }
}

/// The indices below `n` of rows to split off: `count` of them, ascending.
pub(crate) fn split_off(seed: u64, n: u32, count: usize) -> Vec<u32> {
    let mut rows: Vec<u32> = (0..n).collect();
    rows.sort_by_cached_key(|row| (draw(seed, [*row, 0, 0, SPLIT]), *row));
    rows.truncate(count);
    rows.sort_unstable();
    rows
}

/// 64 random bits of a counter.
fn draw(seed: u64, counter: [u32; 4]) -> u64 {
    let [low, high] = [seed & u64::from(u32::MAX), seed >> 32];
    let key = [low, high].map(|half| u32::try_from(half).unwrap_or_default());
    let [a, b, ..] = philox4x32(counter, key);
    u64::from(a) << 32 | u64::from(b)
}

/// What a draw is for, the last word of its counter. Dropout and initial weights use others.
const ORDER: u32 = 0x6f72_6465;
const CHOICE: u32 = 0x6368_6f69;
const SPLIT: u32 = 0x7370_6c69;

#[cfg(test)]
mod tests {
    use super::{EpochOrder, RowGroup, Visit, split_off};

    fn order(seed: u64, groups: &[(u32, u32, f64)]) -> EpochOrder {
        let groups = groups.iter().map(|&(start, end, weight)| RowGroup {
            rows: start..end,
            weight,
        });
        EpochOrder::new(seed, true, groups.collect())
    }

    #[test]
    fn an_epoch_visits_every_row_once() {
        let order = order(7, &[(0, 100, 1.0)]);
        for epoch in 0..3 {
            let mut rows: Vec<u32> = order.epoch(epoch).iter().map(|visit| visit.row).collect();
            assert_ne!(rows, (0..100).collect::<Vec<_>>());
            rows.sort_unstable();
            assert_eq!(rows, (0..100).collect::<Vec<_>>());
        }
        assert_ne!(order.epoch(0), order.epoch(1));
    }

    /// The order is part of what makes adapter files equal: it must not change.
    #[test]
    fn the_order_is_a_function_of_seed_and_epoch() {
        let rows = |seed, epoch| -> Vec<u32> {
            let visits = order(seed, &[(0, 8, 1.0)]).epoch(epoch);
            visits.iter().map(|visit| visit.row).collect()
        };
        assert_eq!([rows(42, 0), rows(42, 1), rows(1 << 40, 0)], PINNED);
    }

    #[test]
    fn weights_say_how_often_rows_are_visited() {
        let order = order(3, &[(0, 10, 2.5), (10, 30, 0.25)]);
        assert_eq!(order.len(), 30);
        let visits = order.epoch(0);
        assert_eq!(visits.len(), 30);
        let of = |row| visits.iter().filter(|visit| visit.row == row).count();
        assert!((0..10).all(|row| (2..=3).contains(&of(row))));
        assert_eq!((10..30).map(of).sum::<usize>(), 5);
        let chosen = |epoch| -> Vec<Visit> {
            let visits = order.epoch(epoch).into_iter();
            let mut chosen: Vec<_> = visits.filter(|visit| visit.row >= 10).collect();
            chosen.sort_unstable();
            chosen
        };
        assert_ne!(chosen(0), chosen(1), "another part of them in each epoch");
    }

    #[test]
    fn without_shuffling_the_order_is_that_of_the_files() {
        let groups = vec![RowGroup {
            rows: 0..4,
            weight: 1.0,
        }];
        let visits = EpochOrder::new(1, false, groups).epoch(5);
        assert_eq!(
            visits.iter().map(|visit| visit.row).collect::<Vec<_>>(),
            [0, 1, 2, 3]
        );
    }

    #[test]
    fn rows_are_split_off_by_the_seed() {
        let split = split_off(1, 100, 10);
        assert_eq!(split.len(), 10);
        assert!(split.is_sorted());
        assert_eq!(split, split_off(1, 100, 10));
        assert_ne!(split, split_off(2, 100, 10));
    }

    const PINNED: [[u32; 8]; 3] = [
        [1, 6, 4, 7, 0, 3, 5, 2],
        [5, 1, 3, 2, 7, 0, 6, 4],
        [0, 5, 3, 2, 7, 1, 6, 4],
    ];
}
