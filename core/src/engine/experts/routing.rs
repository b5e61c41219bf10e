//! Which experts a token goes to, and which tokens an expert gets.
//!
//! A **pair** is a token with one of its experts, numbered `token * n_used + k`; the experts of a
//! token are in ascending order.

use crate::sort::heap_sort_by_key;

/// Chooses the `chosen.len()` experts of largest probability, ties to the lower expert, and gives
/// them in ascending order with their weights: their probabilities, divided by the sum of those
/// of the chosen where `normalise`.
///
/// NaN is smaller than any number, so that there always are as many as asked for.
///
/// # Panics
/// If more experts are asked for than there are, or the slices' lengths differ.
pub(super) fn choose(
    probabilities: &[f32],
    normalise: bool,
    chosen: &mut [u32],
    weights: &mut [f32],
) {
    let n_used = chosen.len();
    assert!(n_used <= probabilities.len());
    assert_eq!(weights.len(), n_used);
    let probability = |expert: u32| probabilities[expert as usize];
    for (expert, &p) in (0u32..).zip(probabilities) {
        let n_before = n_used.min(expert as usize);
        // Earlier experts keep their places among equals; a NaN displaces nobody.
        let precedes = |other: &u32| !(p > probability(*other) || probability(*other).is_nan());
        let at = chosen[..n_before]
            .iter()
            .take_while(|e| precedes(e))
            .count();
        let at = if p.is_nan() { n_before } else { at };
        if at < n_used {
            let end = n_used.min(n_before + 1);
            chosen[at..end].rotate_right(1);
            chosen[at] = expert;
        }
    }
    heap_sort_by_key(chosen, |expert| *expert);
    for (weight, &expert) in weights.iter_mut().zip(&*chosen) {
        *weight = probability(expert);
    }
    if normalise {
        let mut sum = 0f32;
        for weight in &*weights {
            sum += *weight;
        }
        // As in llama.cpp: the smallest normal f16, so that nothing is divided by zero.
        let sum = if sum < SUM_MIN { SUM_MIN } else { sum };
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
}

/// Smallest sum of weights that is divided by.
const SUM_MIN: f32 = 6.103_515_6e-5;

/// The pairs of a batch, sorted by expert; within an expert by token.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Buckets<'a> {
    /// Experts that have tokens, ascending.
    active: &'a [u32],
    /// Where the pairs of each expert start, and after the last, their number.
    starts: &'a [u32],
    pairs: &'a [u32],
    n_used: usize,
}

impl<'a> Buckets<'a> {
    /// Words of memory for `n_pairs` pairs.
    pub(in crate::engine) const fn words(n_expert: usize, n_pairs: usize) -> usize {
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

    /// Where the pairs of `expert` lie among the sorted.
    pub(super) fn range(&self, expert: u32) -> core::ops::Range<usize> {
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

    /// Pairs in all.
    pub(super) const fn len(&self) -> usize {
        self.pairs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    fn chosen(probabilities: &[f32], n_used: usize, normalise: bool) -> (Vec<u32>, Vec<f32>) {
        let (mut experts, mut weights) = (vec![99; n_used], vec![0.0; n_used]);
        choose(probabilities, normalise, &mut experts, &mut weights);
        (experts, weights)
    }

    #[test]
    fn the_largest_are_chosen_in_ascending_order() {
        let p = [0.1, 0.3, 0.05, 0.35, 0.2];
        assert_eq!(chosen(&p, 2, false), (vec![1, 3], vec![0.3, 0.35]));
        assert_eq!(chosen(&p, 3, false).0, [1, 3, 4]);
        assert_eq!(chosen(&p, 5, false), (vec![0, 1, 2, 3, 4], p.to_vec()));
        assert_eq!(chosen(&p, 1, true), (vec![3], vec![1.0]));
        assert_eq!(chosen(&[0.25, 0.75], 2, true).1, [0.25, 0.75]);
    }

    #[test]
    fn equals_go_to_the_lower_expert() {
        assert_eq!(chosen(&[0.25; 4], 2, false).0, [0, 1]);
        assert_eq!(chosen(&[0.1, 0.2, 0.2, 0.2], 2, false).0, [1, 2]);
        assert_eq!(chosen(&[0.2, 0.3, 0.2, 0.1], 2, false).0, [0, 1]);
    }

    #[test]
    fn sorting_by_hand_gives_the_same() {
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Few values, so that many are equal.
            (state >> 28) as f32
        };
        for n_expert in 1..40usize {
            let p: Vec<f32> = (0..n_expert).map(|_| next()).collect();
            let mut order: Vec<u32> = (0u32..).take(n_expert).collect();
            // A stable sort keeps the lower of equals first.
            order.sort_by(|a, b| p[*b as usize].total_cmp(&p[*a as usize]));
            for n_used in 1..=n_expert {
                let mut expected = order[..n_used].to_vec();
                expected.sort_unstable();
                assert_eq!(chosen(&p, n_used, false).0, expected);
            }
        }
    }

    #[test]
    fn what_is_no_number_is_chosen_last() {
        let nan = f32::NAN;
        assert_eq!(chosen(&[nan, 0.1, nan, 0.2], 2, false).0, [1, 3]);
        assert_eq!(chosen(&[nan; 3], 2, false).0, [0, 1]);
        assert_eq!(chosen(&[0.1, nan, nan], 2, false).0, [0, 1]);
    }

    #[test]
    fn nothing_is_divided_by_zero() {
        let (_, weights) = chosen(&[0.0, 0.0, 1e-9], 2, true);
        assert!(weights.iter().all(|w| w.is_finite()));
        assert!(weights.iter().sum::<f32>() < 1.0);
    }

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
