//! From scores to a list of neurons.

use super::error::{check_finite, check_len};
use super::{SparsityConfig, SparsityError};

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
        return Err(SparsityError::Empty { what: "scores" });
    }
    check_finite("scores", scores)?;
    let kept = n_kept(scores.len(), sparsity);
    if kept == scores.len() {
        return Ok(f32::NEG_INFINITY);
    }
    Ok(cut(scores, kept).score)
}

/// Scores above a threshold.
fn above(scores: &[f32], threshold: f32, active: &mut [usize]) -> usize {
    let mut n = 0;
    let (eights, _) = scores.as_chunks::<8>();
    for (e, eight) in eights.iter().enumerate() {
        // Most have none, and a vector's comparison says so.
        let any = eight
            .iter()
            .fold(false, |any, x| any | is_above(*x, threshold));
        if any {
            n = append(eight, 8 * e, threshold, active, n);
        }
    }
    let start = eights.len() * 8;
    append(&scores[start..], start, threshold, active, n)
}

/// Adds the neurons from `first` on whose scores are above a threshold to the `n` that are there.
#[inline(always)]
fn append(
    scores: &[f32],
    first: usize,
    threshold: f32,
    active: &mut [usize],
    mut n: usize,
) -> usize {
    for (i, score) in scores.iter().enumerate() {
        // Without a branch: the place is overwritten if the neuron is not selected.
        active[n] = first + i;
        n += usize::from(is_above(*score, threshold));
    }
    n
}

/// Whether a score is above a threshold, or not a number.
fn is_above(score: f32, threshold: f32) -> bool {
    (score > threshold) | score.is_nan()
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
    let mut n_equal = cut.n_equal;
    if n_equal == 0 {
        return above(scores, cut.score, active).min(k);
    }
    let mut n = 0;
    for (i, score) in scores.iter().enumerate() {
        #[expect(clippy::float_cmp, reason = "the cut is one of the scores")]
        let is_equal = *score == cut.score && n_equal > 0;
        n_equal -= usize::from(is_equal);
        active[n] = i;
        n += usize::from(is_above(*score, cut.score) || is_equal);
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
/// above a value, which compilers make vectors of, and the first that finds exactly `k` ends it.
fn cut(scores: &[f32], k: usize) -> Cut {
    let n_nan = scores.iter().map(|x| u32::from(x.is_nan())).sum::<u32>() as usize;
    if k <= n_nan {
        // Nothing but those, the first of them.
        return Cut {
            score: f32::INFINITY,
            n_equal: 0,
        };
    }
    let k = k - n_nan;
    let count = |cut: f32| -> usize {
        let above = scores.iter().map(|x| u32::from(*x > cut));
        above.sum::<u32>() as usize
    };
    let [lowest, highest] = range(scores);
    // Above `low` are more than k, but for its first value; above `high` fewer.
    let (mut low, mut high) = (key(lowest).saturating_sub(1), key(highest));
    let (mut n_low, mut n_high) = (scores.len() - n_nan, 0);
    for pass in 0.. {
        if high - low <= 1 {
            break;
        }
        // Where k would be if scores were spread evenly, or the middle, in turn.
        let share = match pass % 2 {
            0 => (n_low - k) as f32 / (n_low - n_high).max(1) as f32,
            _ => 0.5,
        };
        let middle = match pass < VALUE_PASSES {
            true => key(score_of(low) * (1.0 - share) + score_of(high) * share),
            false => low + (high - low) / 2,
        };
        let middle = middle.clamp(low + 1, high - 1);
        let score = score_of(middle);
        match count(score) {
            n if n == k => return Cut { score, n_equal: 0 },
            n if n > k => (low, n_low) = (middle, n),
            n => (high, n_high) = (middle, n),
        }
    }
    let score = score_of(high);
    Cut {
        score,
        n_equal: k - count(score),
    }
}

/// The lowest and the highest score; in lanes, so that compilers make vectors of it.
fn range(scores: &[f32]) -> [f32; 2] {
    const LANES: usize = 16;
    let (mut lows, mut highs) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    let (chunks, rest) = scores.as_chunks::<LANES>();
    for chunk in chunks {
        for ((x, low), high) in chunk.iter().zip(&mut lows).zip(&mut highs) {
            *low = if *x < *low { *x } else { *low };
            *high = if *x > *high { *x } else { *high };
        }
    }
    let all = || rest.iter().chain(&lows).chain(&highs);
    let low = all().fold(f32::INFINITY, |low, x| if *x < low { *x } else { low });
    let high = all().fold(
        f32::NEG_INFINITY,
        |high, x| if *x > high { *x } else { high },
    );
    [low, high]
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
