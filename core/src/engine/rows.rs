//! Rows of a layer's inputs and outputs, and the entries of the batch that they stand for.

use crate::kernels::table::Activations;
use crate::memory::Shared;
use core::ops::Range;

/// Up to this many tokens, every worker quantises all rows itself: cheaper than a barrier.
pub(super) const SMALL_BATCH: usize = 8;
/// Maximum tokens of a tile that a worker computes before its epilogue runs. Most kernels unpack a
/// strip of weights once for each tile, so tiles are as high as the worker's L2 cache allows.
pub(super) const TILE_TOKENS: usize = 512;

/// How the rows of a layer map to the entries of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Row i is entry i.
    Batch = 0,
    /// The rows of entries that want outputs come first; there may be no others.
    OutputsFirst = 1,
}

/// Rows of f32 that strips write to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<'a> {
    pub(super) memory: Shared<'a, f32>,
    pub(super) stride: usize,
}

/// The entries that the rows of a linear layer's input belong to.
#[derive(Clone, Copy)]
pub(super) enum Entries<'a> {
    /// One row per entry.
    Each(Order),
    /// The pairs of tokens and experts; one row per pair.
    Pairs(Pairs<'a>, Order),
}

/// The rows that a linear layer reads, and the entries that they belong to.
#[derive(Clone, Copy)]
pub(super) struct InputRows<'a> {
    pub(super) rows: &'a Activations<'a>,
    pub(super) entries: Entries<'a>,
}

/// The pairs of a batch, sorted by expert; within an expert by token.
///
/// A **pair** is a token with one of its experts, numbered `token * n_used + k`; the experts of a
/// token are in ascending order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buckets<'a> {
    /// Experts that have tokens, ascending.
    active: &'a [u32],
    /// Index of the first pair of each expert, then the number of pairs.
    starts: &'a [u32],
    pairs: &'a [u32],
    n_used: usize,
}

impl<'a> Buckets<'a> {
    /// Words of memory for `n_pairs` pairs.
    pub(super) const fn words(n_expert: usize, n_pairs: usize) -> usize {
        2 * n_expert + 1 + n_pairs
    }

    /// Sorts the pairs of `chosen: (n_tokens, n_used)` in memory of [`Self::words`].
    pub(super) fn new(
        n_expert: usize,
        n_used: usize,
        chosen: &[u32],
        memory: &'a mut [u32],
    ) -> Self {
        let (active, rest) = memory.split_at_mut(n_expert);
        let (starts, pairs) = rest.split_at_mut(n_expert + 1);
        let pairs = &mut pairs[..chosen.len()];
        starts.fill(0);
        for &expert in chosen {
            starts[expert as usize] += 1;
        }
        // Counts become ends; filling from the back turns ends into starts.
        let (mut end, mut n_active) = (0, 0);
        for (expert, start) in (0u32..).zip(starts.iter_mut()) {
            if *start > 0 {
                active[n_active] = expert;
                n_active += 1;
            }
            end += *start;
            *start = end;
        }
        for (pair, &expert) in chosen.iter().enumerate().rev() {
            let at = &mut starts[expert as usize];
            *at -= 1;
            pairs[*at as usize] = u32::try_from(pair).expect("batches are below 2^24 tokens");
        }
        Self {
            active: &active[..n_active],
            starts,
            pairs,
            n_used,
        }
    }

    /// Experts that have tokens, ascending.
    pub(super) const fn active(&self) -> &'a [u32] {
        self.active
    }

    /// The range of `expert`'s pairs in the sorted pairs.
    pub(super) fn range(&self, expert: u32) -> Range<usize> {
        let expert = expert as usize;
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }

    /// The pair at `place` among the sorted.
    pub(super) fn pair(&self, place: usize) -> usize {
        self.pairs[place] as usize
    }

    /// The token of the pair at `place` among the sorted.
    pub(super) fn token(&self, place: usize) -> usize {
        self.pair(place) / self.n_used
    }

    /// Total number of pairs.
    pub(super) const fn len(&self) -> usize {
        self.pairs.len()
    }
}

/// Some pairs of one expert, in the order of its rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs<'a> {
    pub(super) buckets: Buckets<'a>,
    /// Place of the first among all pairs.
    pub(super) first: usize,
    /// Weight of each pair, by its number.
    pub(super) weights: &'a [f32],
}

impl Pairs<'_> {
    /// The token of row `row`.
    pub(super) fn token(&self, row: usize) -> usize {
        self.buckets.token(self.first + row)
    }

    /// The weight of the expert's output for that token.
    pub(super) fn weight(&self, row: usize) -> f32 {
        self.weights[self.buckets.pair(self.first + row)]
    }
}

/// Some rows as separate activations.
pub(super) fn some_rows<'a>(all: &Activations<'a>, rows: &Range<usize>) -> Activations<'a> {
    let row_bytes = all.layout.row_bytes();
    Activations {
        layout: all.layout,
        bytes: &all.bytes[rows.start * row_bytes..rows.end * row_bytes],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    #[test]
    fn buckets_hold_every_pair_once_sorted_by_expert_then_token() {
        // Expert 1 gets every token, expert 2 none.
        let chosen = [1, 3, 0, 1, 1, 4, 1, 3];
        let mut memory = vec![7; Buckets::words(5, chosen.len())];
        let buckets = Buckets::new(5, 2, &chosen, &mut memory);
        assert_eq!(buckets.active(), [0, 1, 3, 4]);
        assert_eq!(buckets.len(), 8);
        let tokens = |expert| {
            let range = buckets.range(expert);
            range.map(|i| buckets.token(i)).collect::<Vec<_>>()
        };
        assert_eq!(tokens(0), [1]);
        assert_eq!(tokens(1), [0, 1, 2, 3]);
        assert_eq!(tokens(2), []);
        assert_eq!(tokens(3), [0, 3]);
        assert_eq!(tokens(4), [2]);
        let mut pairs: Vec<usize> = (0..8).map(|i| buckets.pair(i)).collect();
        pairs.sort_unstable();
        assert_eq!(pairs, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
