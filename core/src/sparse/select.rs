//! From scores to a list of neurons.

use core::cmp::Ordering;

use super::error::{check_finite, check_len};
use super::{SparsityConfig, SparsityError};
use crate::kernels::KernelTable;
use crate::kernels::score_scan::{ScoreRange, ScoreScan};

impl SparsityConfig {
    /// Writes the selected neurons into `active` (one place for each score), ascending; returns their number.
    ///
    /// A score that is not a number selects its neuron. Of equal scores the first are selected. `calibrated` is the
    /// threshold for `target_sparsity` without `adaptive_threshold`. Every kernel table selects the same.
    ///
    /// # Errors
    /// Settings out of range; a list of another length; no calibrated threshold.
    pub fn select(
        &self,
        table: &KernelTable,
        scores: &[f32],
        calibrated: Option<f32>,
        active: &mut [usize],
    ) -> Result<usize, SparsityError> {
        self.validate()?;
        check_len("active", active.len(), scores.len())?;
        let scan = table.score_scan();
        if let Some(k) = self.top_k {
            return Ok(highest(scan, scores, k, active));
        }
        if let Some(threshold) = self.threshold {
            return Ok(scan.list_above(scores, threshold, active));
        }
        let sparsity = self.target_sparsity.unwrap_or(0.0);
        if self.adaptive_threshold {
            let kept = n_kept(scores.len(), sparsity);
            return Ok(highest(scan, scores, kept, active));
        }
        let threshold = calibrated.ok_or(SparsityError::NotCalibrated)?;
        Ok(scan.list_above(scores, threshold, active))
    }
}

/// Neurons of `n` that a target leaves.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a count"
)]
#[must_use]
pub fn n_kept(n: usize, sparsity: f32) -> usize {
    let kept = libm::round((1.0 - f64::from(sparsity)) * n as f64) as usize;
    kept.clamp(1.min(n), n)
}

/// The threshold above which [`n_kept`] of the scores lie, if scores differ.
///
/// # Errors
/// No scores; a score that is not a number.
pub fn threshold_for(
    table: &KernelTable,
    scores: &[f32],
    sparsity: f32,
) -> Result<f32, SparsityError> {
    if scores.is_empty() {
        return Err(SparsityError::Empty { what: "scores" });
    }
    check_finite("scores", scores)?;
    let kept = n_kept(scores.len(), sparsity);
    if kept == scores.len() {
        return Ok(f32::NEG_INFINITY);
    }
    Ok(cut(table.score_scan(), scores, kept).score)
}

/// The `k` highest scores.
fn highest(scan: &ScoreScan, scores: &[f32], k: usize, active: &mut [usize]) -> usize {
    if k >= scores.len() {
        for (i, place) in active.iter_mut().enumerate() {
            *place = i;
        }
        return scores.len();
    }
    let cut = cut(scan, scores, k);
    let mut n_equal = cut.n_equal;
    if n_equal == 0 {
        return scan.list_above(scores, cut.score, active).min(k);
    }
    let mut n = 0;
    for (i, score) in scores.iter().enumerate() {
        #[expect(clippy::float_cmp, reason = "the cut is one of the scores")]
        let is_equal = *score == cut.score && n_equal > 0;
        n_equal -= usize::from(is_equal);
        active[n] = i;
        n += usize::from((*score > cut.score) | score.is_nan() | is_equal);
        if n == k {
            break;
        }
    }
    n
}

/// Where the highest scores end.
struct Cut {
    /// Those above it are among them, and those that are not numbers.
    score: f32,
    /// Those equal to it that are among them too, first come.
    n_equal: usize,
}

/// Passes that narrow the range of scores; further ones halve the range of their bits.
const VALUE_PASSES: usize = 16;

/// Finds a cut of the `k` highest, `k` from 1 to below the number of scores, by narrowing a range: every pass counts scores
/// above a value, and the first that finds exactly `k` ends it.
fn cut(scan: &ScoreScan, scores: &[f32], k: usize) -> Cut {
    let ScoreRange {
        lowest,
        highest,
        n_nan,
    } = scan.range(scores);
    if k <= n_nan {
        // Nothing but those, the first of them.
        return Cut {
            score: f32::INFINITY,
            n_equal: 0,
        };
    }
    let k = k - n_nan;
    let n = scores.len() - n_nan;
    // Above `low` are more than k, but for its first value; above `high` fewer. Deviations as if scores were normally distributed.
    let (mut low, mut high) = (key(lowest).saturating_sub(1), key(highest));
    let wanted = deviation(k, n);
    let (mut to_low, mut to_high) = (wanted - deviation(n, n), deviation(0, n) - wanted);
    let mut was_low = None;
    for pass in 0.. {
        if high - low <= 1 {
            break;
        }
        let share = to_low / (to_low + to_high);
        let middle = match pass < VALUE_PASSES {
            true => key(score_of(low) * (1.0 - share) + score_of(high) * share),
            false => low + (high - low) / 2,
        };
        let middle = middle.clamp(low + 1, high - 1);
        let score = score_of(middle);
        let found = scan.count_above(scores, score);
        let is_low = match found.cmp(&k) {
            Ordering::Equal => return Cut { score, n_equal: 0 },
            Ordering::Greater => true,
            Ordering::Less => false,
        };
        // An end that stays twice counts half, or the other would come closer in ever smaller steps.
        let stays = if was_low == Some(is_low) { 0.5 } else { 1.0 };
        if is_low {
            (low, to_low) = (middle, wanted - deviation(found, n));
            to_high *= stays;
        } else {
            (high, to_high) = (middle, deviation(found, n) - wanted);
            to_low *= stays;
        }
        was_low = Some(is_low);
    }
    let score = score_of(high);
    Cut {
        score,
        n_equal: k - scan.count_above(scores, score),
    }
}

/// About how far above the rest the highest `k` of `n` scores begin, in a scale that grows as normal deviations do.
fn deviation(k: usize, n: usize) -> f32 {
    libm::sqrtf(libm::logf((n + 1) as f32 / (k as f32 + 0.5)))
}

/// Ordered as scores are, with everything that is not a number above them, and one zero.
fn key(score: f32) -> u32 {
    if score.is_nan() {
        return u32::MAX;
    }
    let bits = (score + 0.0).to_bits();
    // Negative numbers: all bits flip; others: the sign's.
    bits ^ (bits.cast_signed() >> 31).cast_unsigned() | if bits >> 31 == 0 { 1 << 31 } else { 0 }
}

/// The score of a key.
fn score_of(key: u32) -> f32 {
    f32::from_bits(match key >> 31 {
        1 => key & !(1 << 31),
        _ => !key,
    })
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::float_cmp,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "exact values are expected; numbers are small"
    )]

    extern crate std;

    use super::*;
    use crate::kernels::CpuFeatures;
    use std::vec;
    use std::vec::Vec;

    fn best() -> &'static KernelTable {
        KernelTable::best(CpuFeatures::detect())
    }

    /// What every table selects.
    fn select(config: &SparsityConfig, scores: &[f32]) -> Vec<usize> {
        let mut lists = KernelTable::available(CpuFeatures::detect()).map(|table| {
            let mut active = vec![0; scores.len()];
            let n = config.select(table, scores, None, &mut active).unwrap();
            active.truncate(n);
            active
        });
        let first = lists.next().unwrap();
        assert!(lists.all(|list| list == first), "{config:?}: tables differ");
        first
    }

    fn random(n: usize, mut seed: u64) -> Vec<f32> {
        let mut next = || {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((seed >> 40) as f32 / (1 << 23) as f32 - 1.0) * 4.0
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn the_highest_are_those_of_a_sort_and_ties_go_to_the_first() {
        for n in [1, 2, 17, 300, 2048] {
            let mut scores = random(n, n as u64);
            for x in &mut scores {
                // Many ties, negative zeros.
                *x = if n == 300 { (*x).trunc() * -0.5 } else { *x };
            }
            for k in [1, 2, n / 3, n - 1, n, n + 1] {
                if k == 0 {
                    continue;
                }
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap());
                order.truncate(k);
                order.sort_unstable();
                let found = select(&SparsityConfig::with_top_k(k), &scores);
                assert_eq!(found, order, "{n} {k}");
            }
        }
    }

    #[test]
    fn not_a_number_is_selected_first() {
        let scores = [1.0, f32::NAN, f32::INFINITY, -f32::NAN, 2.0];
        assert_eq!(select(&SparsityConfig::with_top_k(3), &scores), [1, 2, 3]);
        assert_eq!(select(&SparsityConfig::with_top_k(1), &scores), [1]);
        let above = SparsityConfig::with_threshold(1.5);
        assert_eq!(select(&above, &scores), [1, 2, 3, 4]);
        let mut many = random(100, 5);
        many.iter_mut().step_by(3).for_each(|x| *x = f32::NAN);
        let expected: Vec<usize> = (0..100).step_by(3).take(20).collect();
        assert_eq!(select(&SparsityConfig::with_top_k(20), &many), expected);
    }

    #[test]
    fn infinities_and_scores_that_are_all_equal_have_a_cut() {
        let mut scores = vec![f32::NEG_INFINITY; 40];
        scores[33] = f32::INFINITY;
        scores[7] = f32::MAX;
        scores[20] = f32::MIN;
        let top = |k| select(&SparsityConfig::with_top_k(k), &scores);
        assert_eq!(top(1), [33]);
        assert_eq!(top(2), [7, 33]);
        assert_eq!(top(3), [7, 20, 33]);
        assert_eq!(top(5), [0, 1, 7, 20, 33]);
        let equal = [0.0, -0.0].repeat(20);
        let first = select(&SparsityConfig::with_top_k(17), &equal);
        assert_eq!(first, (0..17).collect::<Vec<_>>());
    }

    #[test]
    fn a_threshold_is_strict_and_targets_are_met() {
        let scores = random(1000, 3);
        let (table, mut active) = (best(), vec![0; 1000]);
        let strict = SparsityConfig::with_threshold(0.5);
        assert_eq!(select(&strict, &[0.5, 0.6]), [1]);
        for target in [0.0, 0.1, 0.5, 0.9, 0.95, 1.0] {
            let config = SparsityConfig::with_target_sparsity(target);
            let n = config.select(table, &scores, None, &mut active).unwrap();
            assert!(
                (n as f32 / 1000.0 - (1.0 - target)).abs() < 0.002,
                "{target}: {n}"
            );
            let fixed = SparsityConfig {
                adaptive_threshold: false,
                ..config
            };
            assert_eq!(
                fixed.select(table, &scores, None, &mut active),
                Err(SparsityError::NotCalibrated)
            );
            let threshold = threshold_for(table, &scores, target).unwrap();
            let other = random(1000, 4);
            let n = fixed
                .select(table, &other, Some(threshold), &mut active)
                .unwrap();
            assert!(
                (n as f32 / 1000.0 - (1.0 - target)).abs() < 0.04,
                "{target}: {n}"
            );
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let text = |config: SparsityConfig| std::format!("{}", config.validate().unwrap_err());
        assert_eq!(
            text(SparsityConfig::with_threshold(-1.0)),
            "threshold is -1: expected a finite number of at least 0"
        );
        assert_eq!(
            text(SparsityConfig::with_top_k(0)),
            "top_k is 0: expected at least 1"
        );
        assert_eq!(
            text(SparsityConfig::with_target_sparsity(f32::NAN)),
            "target_sparsity is NaN: expected a number from 0 to 1"
        );
        assert_eq!(
            text(SparsityConfig {
                threshold: None,
                ..SparsityConfig::default()
            }),
            "set threshold, top_k or target_sparsity"
        );
        assert_eq!(SparsityConfig::default().validate(), Ok(()));
    }
}
