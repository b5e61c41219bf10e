//! Which experts a token goes to, with which weights.

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
        // Earlier experts keep their places among equals; a NaN takes no place.
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
}
