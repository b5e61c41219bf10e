//! The seven features of a frame.
//!
//! With n samples, mean m, population variance v and `c = |Σ (x_i - m)(x_{i+1} - m) / (v (n - 1))|`
//! (0 where v ≤ 1e-8):
//!
//! | | feature | value | without it |
//! |---|---|---|---|
//! | f0 | zero-crossing rate | crossings / (n - 1) | 0 if n < 2 |
//! | f1 | density complement | max(0, 1 - Σ\|x\| / n) | |
//! | f2 | temporal coherence | running mean of the scaling, see `scaling` | 1 at first |
//! | f3 | entropy of the histogram, bits | -Σ p log2 p | 0 if n < 2 or max - min < 1e-8 |
//! | f4 | complexity | clamp01(0.4 √v + 0.3 (1 - zf) + 0.3 c) | 0 if n < 3 |
//! | f5 | structure | clamp01(0.7 c + 0.3 f0) | 0 if n < 3 or v ≤ 1e-8 |
//! | f6 | sparsity | 1 if Σ\|x\| / n < threshold, else zf | |
//!
//! where zf is the fraction of samples below 1e-8. A frame with samples that are not finite has
//! f1 = 0 and f4 = f5 = 1, and counts them in the last bin.

use crate::kernels::contract::sqrt;
use crate::kernels::frame::{Counts, FrameKernels, FrameStats};
use core::ops::Index;

/// The name of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Feature {
    /// f0: fraction of neighbours with opposite signs.
    ZeroCrossingRate,
    /// f1: 1 minus the mean magnitude, at least 0.
    DensityComplement,
    /// f2: running mean of the scaling of the preceding frames.
    TemporalCoherence,
    /// f3: entropy of the histogram in bits, 0 to 8.
    Entropy,
    /// f4: 0 to 1.
    Complexity,
    /// f5: 0 to 1.
    Structure,
    /// f6: 0 to 1.
    Sparsity,
}

impl Feature {
    /// f0 to f6.
    pub const ALL: [Self; 7] = [
        Self::ZeroCrossingRate,
        Self::DensityComplement,
        Self::TemporalCoherence,
        Self::Entropy,
        Self::Complexity,
        Self::Structure,
        Self::Sparsity,
    ];

    /// The name for flags and table headings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZeroCrossingRate => "zero_crossing_rate",
            Self::DensityComplement => "density_complement",
            Self::TemporalCoherence => "temporal_coherence",
            Self::Entropy => "entropy",
            Self::Complexity => "complexity",
            Self::Structure => "structure",
            Self::Sparsity => "sparsity",
        }
    }
}

/// f0 to f6 of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Features(pub [f32; 7]);

impl Index<Feature> for Features {
    type Output = f32;

    fn index(&self, feature: Feature) -> &f32 {
        &self.0[feature as usize]
    }
}

/// The settings of a stream's features.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FeatureConfig {
    /// Bins of the histogram, `1..=256`.
    pub(super) num_bins: usize,
    pub(super) l1_threshold: f32,
}

/// Below this range a frame has no histogram; below this variance it has no correlation.
const LEAST: f64 = 1e-8;

/// Mean and population variance, and the correlation c of neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub(super) variance: f64,
    correlation: f64,
}

impl Moments {
    /// For a non-empty frame. Not finite if sums overflow.
    pub(super) fn new(stats: &FrameStats) -> Self {
        let n = count(stats.len);
        // All relative to the first sample, where d is 0.
        let mean = stats.sum_d / n;
        let variance = (stats.sum_d2 - stats.sum_d * mean) / n;
        // Rounding may take it below 0; if sums overflow it is NaN, and the frame is loud.
        let variance = if variance.is_nan() {
            f64::INFINITY
        } else {
            variance.max(0.0) + 0.0
        };
        let ends = f64::from(stats.last_d);
        let lag1 = stats.sum_lag1 - mean * (2.0 * stats.sum_d - ends) + (n - 1.0) * mean * mean;
        let correlation = if variance > LEAST {
            (lag1 / (variance * (n - 1.0))).abs()
        } else {
            0.0
        };
        Self {
            variance,
            correlation,
        }
    }
}

impl Features {
    /// All features of a non-empty frame but f2, which is `coherence`, and its histogram.
    pub(super) fn new(
        stats: &FrameStats,
        counts: &Counts,
        kernels: &FrameKernels,
        config: &FeatureConfig,
        coherence: f32,
    ) -> Self {
        let n = count(stats.len);
        let moments = Moments::new(stats);
        let (variance, c) = (moments.variance, moments.correlation);
        let zf = count(stats.n_near_zero) / n;
        let l1 = stats.sum_abs / n;
        let f0 = if stats.len < 2 {
            0.0
        } else {
            count(stats.n_crossings) / (n - 1.0)
        };
        let is_finite = stats.n_non_finite == 0 && c.is_finite() && variance.is_finite();
        let (f1, f4, f5) = if !is_finite {
            (0.0, 1.0, 1.0)
        } else if stats.len < 3 {
            ((1.0 - l1).max(0.0), 0.0, 0.0)
        } else {
            let std = f64::from(sqrt(narrow(variance)));
            let f5 = if variance > LEAST {
                0.7 * c + 0.3 * f0
            } else {
                0.0
            };
            let f4 = 0.4 * std + 0.3 * (1.0 - zf) + 0.3 * c;
            ((1.0 - l1).max(0.0), f4.min(1.0), f5.min(1.0))
        };
        let is_sparse = is_finite && l1 < f64::from(config.l1_threshold);
        let f6 = if is_sparse { 1.0 } else { zf };
        let f3 = if f64::from(stats.max - stats.min) < LEAST {
            0.0
        } else {
            kernels.entropy(counts, stats.len)
        };
        Self([
            narrow(f0),
            narrow(f1),
            coherence,
            narrow(f3),
            narrow(f4),
            narrow(f5),
            narrow(f6),
        ])
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "frames are far shorter than 2^53"
)]
const fn count(n: usize) -> f64 {
    n as f64
}

#[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
const fn narrow(x: f64) -> f32 {
    x as f32
}
