//! The choice of a token's experts, and their weights.

use crate::kernels::KernelTable;
use crate::model::{Router, RouterScore};
use crate::sort::heap_sort_by_key;

/// Bias on the scores of experts, used only for their choice.
pub(super) struct Choice<'a> {
    /// (n_expert), if there is one.
    pub(super) bias: Option<&'a [f32]>,
    /// Room for the biased scores that the choice uses, (n_expert).
    pub(super) room: &'a mut [f32],
}

/// A token's experts, ascending, and their weights, by the scores of all (n_expert).
pub(super) fn weigh(
    table: &KernelTable,
    router: &Router,
    scores: &mut [f32],
    choice: Choice<'_>,
    experts: &mut [u32],
    weights: &mut [f32],
) {
    rank(table, router, scores, choice, experts);
    heap_sort_by_key(experts, |expert| *expert);
    for (weight, &expert) in weights.iter_mut().zip(&*experts) {
        *weight = scores[expert as usize];
    }
    if router.score == RouterScore::SoftmaxOfChosen {
        table.softmax(weights);
    }
    if router.is_normalized {
        normalize(weights);
    }
    #[expect(clippy::float_cmp, reason = "1 is a setting, not a result")]
    if router.scale != 1.0 {
        weights
            .iter_mut()
            .for_each(|weight| *weight *= router.scale);
    }
}

/// The best experts by the scores of all, best first; replaces the scores by the terms of the weights.
pub(super) fn rank(
    table: &KernelTable,
    router: &Router,
    scores: &mut [f32],
    choice: Choice<'_>,
    experts: &mut [u32],
) {
    match router.score {
        RouterScore::Softmax => table.softmax(scores),
        RouterScore::Sigmoid => table.sigmoid(scores),
        RouterScore::SoftmaxOfChosen => {}
    }
    if choice.bias.is_none() && router.n_group == 1 {
        return choose(scores, experts);
    }
    choice.room.copy_from_slice(scores);
    for (score, bias) in choice.room.iter_mut().zip(choice.bias.unwrap_or_default()) {
        *score += bias;
    }
    leave_out_groups(router, choice.room);
    choose(choice.room, experts);
}

/// Takes the experts of all but the best groups out of the choice. A group counts as the sum of its two best, of softmaxes
/// as its best (DeepSeek-V2; llama.cpp adds two there, too); of equal ones the earlier is better.
fn leave_out_groups(router: &Router, scores: &mut [f32]) {
    let Router {
        n_group,
        n_group_used,
        ..
    } = *router;
    if n_group == n_group_used {
        return;
    }
    let len = scores.len() / n_group;
    let mut n_left_out = n_group - n_group_used;
    let value = |group: &[f32]| {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &score in group {
            if score > first {
                (first, second) = (score, first);
            } else if score > second {
                second = score;
            }
        }
        match router.score {
            RouterScore::Softmax => first,
            RouterScore::Sigmoid | RouterScore::SoftmaxOfChosen => first + second,
        }
    };
    // Groups are few: the worst of those left, again and again.
    while n_left_out > 0 {
        let mut worst: Option<(usize, f32)> = None;
        for (group, scores) in scores.chunks_exact(len).enumerate() {
            let value = value(scores);
            let is_out = scores.iter().all(|score| *score == f32::NEG_INFINITY);
            if !is_out && worst.is_none_or(|(_, least)| value <= least) {
                worst = Some((group, value));
            }
        }
        let Some((group, _)) = worst else {
            return;
        };
        scores[group * len..(group + 1) * len].fill(f32::NEG_INFINITY);
        n_left_out -= 1;
    }
}

/// Chooses the `chosen.len()` experts of largest score, the best first, ties to the lower expert.
///
/// NaN is smaller than any number, so that there always are as many as asked for.
///
/// # Panics
/// If more experts are asked for than there are.
fn choose(scores: &[f32], chosen: &mut [u32]) {
    let n_used = chosen.len();
    assert!(n_used <= scores.len());
    let score = |expert: u32| scores[expert as usize];
    for (expert, &p) in (0u32..).zip(scores) {
        let n_before = n_used.min(expert as usize);
        // Earlier experts keep their places among equals; a NaN takes no place.
        let precedes = |other: &u32| !(p > score(*other) || score(*other).is_nan());
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
}

/// Divides weights by their sum.
fn normalize(weights: &mut [f32]) {
    let mut sum = 0f32;
    for weight in &*weights {
        sum += *weight;
    }
    // As in llama.cpp: the smallest normal f16, so that nothing is divided by zero.
    let sum = if sum < SUM_MIN { SUM_MIN } else { sum };
    weights.iter_mut().for_each(|weight| *weight /= sum);
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
        let mut experts = vec![99; n_used];
        choose(probabilities, &mut experts);
        experts.sort_unstable();
        let weight = |&expert: &u32| probabilities[expert as usize];
        let mut weights: Vec<f32> = experts.iter().map(weight).collect();
        if normalise {
            normalize(&mut weights);
        }
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

    fn routed(router: &Router, logits: &[f32], bias: Option<&[f32]>) -> (Vec<u32>, Vec<f32>) {
        let (mut experts, mut weights) = (vec![99; 2], vec![0.0; 2]);
        let (mut scores, mut room) = (logits.to_vec(), vec![0.0; logits.len()]);
        let table = KernelTable::by_name("scalar", crate::kernels::cpu::CpuFeatures::empty());
        let room = &mut room[..];
        weigh(
            table.expect("is always there"),
            router,
            &mut scores,
            Choice { bias, room },
            &mut experts,
            &mut weights,
        );
        (experts, weights)
    }

    #[test]
    fn a_bias_chooses_and_weighs_nothing() {
        let router = Router {
            score: RouterScore::Sigmoid,
            scale: 2.0,
            has_bias: true,
            ..Router::SOFTMAX
        };
        let logits = [0.0, 3.0, -3.0, 1.0];
        let (experts, weights) = routed(&router, &logits, Some(&[0.9, 0.0, 0.0, 0.0]));
        assert_eq!((experts, weights[0]), (vec![0, 1], 1.0));
        assert_eq!(routed(&router, &logits, None).0, [1, 3]);
    }

    /// As in `DeepseekV2TopkRouter` of transformers 5.24.
    #[test]
    fn of_softmaxes_a_group_counts_as_its_best() {
        let router = Router {
            is_normalized: false,
            n_group: 3,
            n_group_used: 1,
            ..Router::SOFTMAX
        };
        let logits = [3.0, -9.0, 2.5, 2.5, 1.0, 1.0];
        assert_eq!(routed(&router, &logits, None).0, [0, 1]);
        let two = Router {
            n_group_used: 2,
            ..router
        };
        assert_eq!(routed(&two, &logits, None).0, [0, 2]);
    }

    #[test]
    fn experts_come_from_the_best_groups() {
        let router = Router {
            score: RouterScore::Sigmoid,
            is_normalized: true,
            n_group: 3,
            n_group_used: 1,
            ..Router::SOFTMAX
        };
        // The best expert stands alone in its group.
        let logits = [5.0, -9.0, 2.0, 2.0, 1.0, 1.0];
        assert_eq!(routed(&router, &logits, None), (vec![2, 3], vec![0.5, 0.5]));
        let two = Router {
            n_group_used: 2,
            ..router
        };
        assert_eq!(routed(&two, &logits, None).0, [2, 3]);
        assert_eq!(
            routed(&two, &[5.0, 1.0, 2.0, 2.0, 1.0, 1.0], None).0,
            [0, 2]
        );
    }
}
