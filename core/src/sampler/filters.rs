//! The filters, which narrow the choice by how likely tokens are.
//!
//! Definitions follow llama.cpp's samplers of the same names (`src/llama-sampler.cpp`), so
//! that settings carry over; every filter keeps at least one candidate, and `min_keep` of them
//! where it has that setting (0 is the same as 1). Where a rule compares probabilities, the
//! weights `exp(logit - max)` are compared instead, which needs no division.

use super::{Candidates, LogitsProcessor, SampleContext, math, uniform};

/// Keeps the `k` most likely tokens; 0 keeps all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// Number of tokens to keep; 0 switches the filter off.
    pub k: u32,
}

impl LogitsProcessor for TopK {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _context: &SampleContext<'_>) {
        if self.k > 0 {
            candidates.keep_top(usize::try_from(self.k).unwrap_or(usize::MAX));
        }
    }
}

/// Keeps the shortest run of most likely tokens whose probabilities reach `p` together.
///
/// Nucleus sampling, <https://arxiv.org/abs/1904.09751>.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopP {
    /// The probability to reach; 1 or more switches the filter off, 0 or less keeps one token.
    pub p: f32,
    /// Minimum number of tokens to keep.
    pub min_keep: u32,
}

impl LogitsProcessor for TopP {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _context: &SampleContext<'_>) {
        if self.p < 1.0 {
            let enough = f64::from(self.p) * candidates.weigh();
            candidates.keep_until(enough, to_usize(self.min_keep));
        }
    }
}

/// Keeps the tokens at least `p` times as likely as the most likely one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MinP {
    /// The ratio; 0 or less switches the filter off, above 1 keeps one token.
    pub p: f32,
    /// Minimum number of tokens to keep.
    pub min_keep: u32,
}

impl LogitsProcessor for MinP {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _context: &SampleContext<'_>) {
        if self.p <= 0.0 {
            return;
        }
        let Some(best) = candidates.best() else {
            return;
        };
        let threshold = self.p;
        let least = to_usize(self.min_keep).max(1);
        // Written so that NaN weights are kept for the draw to report.
        let below = |logit| math::weight(logit, best.logit) < threshold;
        if least > 1 || threshold > 1.0 {
            let kept = candidates.as_slice().iter();
            let count = kept.filter(|candidate| !below(candidate.logit)).count();
            // Too few pass: the best ones are kept whether they pass or not.
            if count < least {
                candidates.keep_top(least);
                return;
            }
        }
        candidates.retain(|candidate| !below(candidate.logit));
    }
}

/// Keeps the tokens whose surprise is nearest to the entropy, until they reach `p` together.
///
/// Locally typical sampling, <https://arxiv.org/abs/2202.00666>. The surprise of a token is
/// minus the logarithm of its probability, which ascends from the best token to the worst, so
/// the remaining tokens are one run of the sorted candidates around the entropy. Among equally typical
/// tokens the likelier one comes first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypicalP {
    /// The probability to exceed; 1 or more switches the filter off.
    pub p: f32,
    /// Minimum number of tokens to keep.
    pub min_keep: u32,
}

impl LogitsProcessor for TypicalP {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _context: &SampleContext<'_>) {
        if self.p >= 1.0 || candidates.is_empty() {
            return;
        }
        candidates.sort();
        let Some(spread) = candidates.spread() else {
            return;
        };
        let sorted = candidates.as_slice();
        let surprise = |index: usize| spread.surprise(sorted[index].logit);
        let middle = sorted.partition_point(|c| spread.surprise(c.logit) < spread.entropy);
        let (mut start, mut end) = (middle, middle);
        let enough = f64::from(self.p) * spread.sum;
        let mut reached = 0.0;
        while end - start < sorted.len() {
            let takes_start = start > 0
                && (end == sorted.len()
                    || spread.entropy - surprise(start - 1) <= surprise(end) - spread.entropy);
            let taken = if takes_start {
                start -= 1;
                start
            } else {
                end += 1;
                end - 1
            };
            reached += f64::from(sorted[taken].p);
            if reached > enough && end - start >= to_usize(self.min_keep) {
                break;
            }
        }
        candidates.keep_range(start, end);
    }
}

/// Masks the tokens whose logits are more than `n` standard deviations below the best.
///
/// Top-nσ, <https://arxiv.org/abs/2411.07641>. As in llama.cpp the tokens stay candidates with a
/// logit of minus infinity; tokens that were masked before count neither for the mean nor for
/// the deviation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopNSigma {
    /// Standard deviations; 0 or less switches the filter off.
    pub n: f32,
}

impl LogitsProcessor for TopNSigma {
    fn apply(&mut self, candidates: &mut Candidates<'_>, _context: &SampleContext<'_>) {
        if self.n <= 0.0 || candidates.len() < 2 {
            return;
        }
        let Some(best) = candidates.best().filter(|best| best.logit.is_finite()) else {
            return;
        };
        let logits = || candidates.as_slice().iter().map(|c| f64::from(c.logit));
        let valid = || logits().filter(|&logit| logit > f64::NEG_INFINITY);
        let (sum, count) = valid().fold((0.0, 0.0), |(sum, count), l| (sum + l, count + 1.0));
        let mean = sum / count;
        let squares: f64 = valid().map(|logit| (logit - mean) * (logit - mean)).sum();
        let deviation = math::sqrt(squares / count);
        let least = f64::from(best.logit) - f64::from(self.n) * deviation;
        candidates.map_logits(|candidate| {
            if f64::from(candidate.logit) < least {
                f32::NEG_INFINITY
            } else {
                candidate.logit
            }
        });
    }
}

/// With a chance of `probability`, leaves out all but the least likely of the tokens that have
/// at least the probability `threshold`.
///
/// "Exclude top choices", llama.cpp's pull request 9742. It is a decision of its own: its random
/// number is draw [`Xtc::DRAW`] of the position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// The chance; 0 or less switches the filter off.
    pub probability: f32,
    /// Minimum probability of a top choice; above 0.5 there is never more than one, so the filter
    /// is off.
    pub threshold: f32,
    /// Minimum number of tokens to keep: nothing happens where fewer would be left.
    pub min_keep: u32,
}

impl Xtc {
    /// The number of its draw at a position, out of the way of those that count from 0.
    pub const DRAW: u32 = 0x5854_4300;

    /// Whether these settings change nothing.
    #[must_use]
    pub fn is_neutral(&self) -> bool {
        self.probability <= 0.0 || self.threshold > 0.5
    }
}

impl LogitsProcessor for Xtc {
    fn apply(&mut self, candidates: &mut Candidates<'_>, context: &SampleContext<'_>) {
        if self.is_neutral() || candidates.len() < 2 {
            return;
        }
        let chance = uniform(context.seed, context.sequence, context.position, Self::DRAW);
        if chance >= f64::from(self.probability) {
            return;
        }
        let threshold = f64::from(self.threshold) * candidates.weigh();
        let is_top = |p: f32| f64::from(p) >= threshold;
        let tops = candidates.as_slice().iter().filter(|c| is_top(c.p));
        let (n_tops, last) = tops.fold((0, None), |(n, last), candidate| {
            let worse = last.is_none_or(|last: u64| last < candidate.rank_key());
            let last = if worse {
                Some(candidate.rank_key())
            } else {
                last
            };
            (n + 1, last)
        });
        let n_left = candidates.len() - usize::max(n_tops, 1) + 1;
        if n_tops > 1 && n_left >= to_usize(self.min_keep) {
            candidates.retain(|c| !is_top(c.p) || Some(c.rank_key()) == last);
        }
    }
}

fn to_usize(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
