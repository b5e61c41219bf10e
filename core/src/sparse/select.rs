//! From scores to a list of neurons.

use super::error::check_len;
use super::{SparsityConfig, SparsityError};

/// Bins of a pass over keys: 11 bits at a time.
const BINS: usize = 1 << 11;

impl SparsityConfig {
    /// Writes the selected neurons into `active` (one place for each score), ascending; returns their number.
    ///
    /// A score that is not a number selects its neuron. Of equal scores the first are selected. `calibrated` is the
    /// threshold for `target_sparsity` without `adaptive_threshold`.
    ///
    /// # Errors
    /// Settings out of range; a list of another length; no calibrated threshold.
    pub fn select(
        &self,
        scores: &[f32],
        calibrated: Option<f32>,
        active: &mut [usize],
    ) -> Result<usize, SparsityError> {
        self.validate()?;
        check_len("active", active.len(), scores.len())?;
        if let Some(k) = self.top_k {
            return Ok(highest(scores, k, active));
        }
        if let Some(threshold) = self.threshold {
            return Ok(above(scores, threshold, active));
        }
        let sparsity = self.target_sparsity.unwrap_or(0.0);
        if self.adaptive_threshold {
            return Ok(highest(scores, n_kept(scores.len(), sparsity), active));
        }
        let threshold = calibrated.ok_or(SparsityError::NotCalibrated)?;
        Ok(above(scores, threshold, active))
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
pub fn threshold_for(scores: &[f32], sparsity: f32) -> Result<f32, SparsityError> {
    if scores.is_empty() {
        return Err(SparsityError::EmptyHistory {
            what: "calibration of a threshold",
        });
    }
    super::error::check_finite("scores", scores)?;
    let kept = n_kept(scores.len(), sparsity);
    if kept == scores.len() {
        return Ok(f32::NEG_INFINITY);
    }
    // The highest score that is left out.
    Ok(score_of(cut(scores, kept + 1).key))
}

/// Scores above a threshold.
fn above(scores: &[f32], threshold: f32, active: &mut [usize]) -> usize {
    let mut n = 0;
    for (i, score) in scores.iter().enumerate() {
        // Without a branch: the place is overwritten if the neuron is not selected.
        active[n] = i;
        n += usize::from(is_above(*score, threshold));
    }
    n
}

/// Whether a score is above a threshold, or not a number.
fn is_above(score: f32, threshold: f32) -> bool {
    score > threshold || score.is_nan()
}

/// The `k` highest scores.
fn highest(scores: &[f32], k: usize, active: &mut [usize]) -> usize {
    if k >= scores.len() {
        for (i, place) in active.iter_mut().enumerate() {
            *place = i;
        }
        return scores.len();
    }
    let cut = cut(scores, k);
    let (mut n, mut n_equal) = (0, cut.n_equal);
    for (i, score) in scores.iter().enumerate() {
        let key = key(*score);
        let is_equal = key == cut.key && n_equal > 0;
        n_equal -= usize::from(is_equal);
        active[n] = i;
        n += usize::from(key > cut.key || is_equal);
        if n == k {
            break;
        }
    }
    n
}

/// The key of the k-th highest score.
struct Cut {
    key: u32,
    /// Scores of that key among the k highest.
    n_equal: usize,
}

/// Finds the `k`-th highest key, `k` from 1 to the number of scores, in three passes.
fn cut(scores: &[f32], k: usize) -> Cut {
    let (mut prefix, mut rank) = (0, k);
    for shift in [21, 10, 0] {
        let bits = if shift == 0 { 10 } else { 11 };
        let mut bins = [0u32; BINS];
        for score in scores {
            let key = key(*score);
            // A key of another prefix counts nothing.
            let is_inside = u64::from(key) >> (shift + bits) == prefix;
            bins[(key >> shift) as usize & (BINS - 1) & ((1 << bits) - 1)] += u32::from(is_inside);
        }
        let mut bin = 1 << bits;
        while bin > 0 {
            bin -= 1;
            if rank <= bins[bin] as usize {
                break;
            }
            rank -= bins[bin] as usize;
        }
        prefix = prefix << bits | bin as u64;
    }
    Cut {
        key: prefix as u32,
        n_equal: rank,
    }
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
    extern crate std;

    use super::*;
    use std::vec;
    use std::vec::Vec;

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
                let mut active = vec![0; n];
                let found = SparsityConfig::with_top_k(k).select(&scores, None, &mut active);
                assert_eq!(&active[..found.unwrap()], order, "{n} {k}");
            }
        }
    }

    #[test]
    fn not_a_number_is_selected_first() {
        let scores = [1.0, f32::NAN, f32::INFINITY, -f32::NAN, 2.0];
        let mut active = [0; 5];
        let top = SparsityConfig::with_top_k(3);
        assert_eq!(top.select(&scores, None, &mut active), Ok(3));
        assert_eq!(active[..3], [1, 2, 3]);
        let above = SparsityConfig::with_threshold(1.5);
        assert_eq!(above.select(&scores, None, &mut active), Ok(4));
        assert_eq!(active[..4], [1, 2, 3, 4]);
    }

    #[test]
    fn a_threshold_is_strict_and_targets_are_met() {
        let scores = random(1000, 3);
        let mut active = vec![0; 1000];
        let strict = SparsityConfig::with_threshold(0.5);
        assert_eq!(strict.select(&[0.5, 0.6], None, &mut active[..2]), Ok(1));
        for target in [0.0, 0.1, 0.5, 0.9, 0.95, 1.0] {
            let config = SparsityConfig::with_target_sparsity(target);
            let n = config.select(&scores, None, &mut active).unwrap();
            assert!(
                (n as f32 / 1000.0 - (1.0 - target)).abs() < 0.002,
                "{target}: {n}"
            );
            let fixed = SparsityConfig {
                adaptive_threshold: false,
                ..config
            };
            assert_eq!(
                fixed.select(&scores, None, &mut active),
                Err(SparsityError::NotCalibrated)
            );
            let threshold = threshold_for(&scores, target).unwrap();
            let other = random(1000, 4);
            let n = fixed.select(&other, Some(threshold), &mut active).unwrap();
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
