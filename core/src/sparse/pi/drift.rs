//! How far quantised values are from the originals, and whether that grows.
//!
//! The predecessor compares `T(x) = sin(πx) + cos(πx)/2` of both. T has the period 2, so an error of exactly 2k is
//! invisible to it. [`QuantizationHonesty`] has the largest error and the lost energy, too, and is honest only if all
//! three are.

use super::super::error::{check_finite, check_len};
use super::super::{PrecisionLane, SparsityError};
use core::f32::consts::PI;

/// Errors that are kept for the trend.
pub const DRIFT_WINDOW: usize = 64;

/// How a quantised vector compares with its original.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizationHonesty {
    /// Root mean square of `T(original) - T(quantized)`: the predecessor's error.
    pub error: f32,
    /// What a lane's error should be: 0.15, 0.05, 0.01 or 0.0001.
    pub expected_error: f32,
    /// `error` by `expected_error`.
    pub ratio: f32,
    /// The largest error of an element, by the largest magnitude of the original (or by 1, if that is smaller).
    pub max_error: f32,
    /// Energy of the error by the energy of the original (by 1, if that is smaller).
    pub energy_error: f32,
    /// Whether all three are within twice what is expected. False if the vectors could not be compared.
    pub is_honest: bool,
    /// Whether one of them is above three times that, or the vectors could not be compared.
    pub should_escalate: bool,
    /// Comparisons so far, with this one.
    pub sample_count: usize,
    /// Why the vectors could not be compared: lengths that differ, a number that is not finite.
    pub fault: Option<SparsityError>,
}

/// Compares vectors of a lane, and keeps the last errors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriftDetector {
    lane: PrecisionLane,
    accumulated_error: f32,
    sample_count: usize,
    ring: [f32; DRIFT_WINDOW],
}

/// The errors so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriftReport {
    /// Mean error of all samples.
    pub mean_error: f32,
    /// Their sum.
    pub accumulated_error: f32,
    /// Their number.
    pub sample_count: usize,
    /// Slope of the regression line over the last 64 errors, oldest first; per sample.
    pub trend: f32,
    /// The slope that the predecessor computes: over the ring as it is in memory, which is out of order once it has
    /// wrapped.
    pub ring_trend: f32,
    /// Whether `trend` is above a tenth of the expected error.
    pub is_accelerating: bool,
    /// Whether the mean is above three times the expected error.
    pub should_escalate: bool,
    /// The lane.
    pub lane: PrecisionLane,
}

/// The error that a lane should have.
const fn expected_error(lane: PrecisionLane) -> f32 {
    match lane {
        PrecisionLane::Bit3 => 0.15,
        PrecisionLane::Bit5 => 0.05,
        PrecisionLane::Bit7 => 0.01,
        PrecisionLane::Float32 => 0.0001,
    }
}

/// `sin(πx) + cos(πx) / 2`
fn transform(x: f32) -> f32 {
    let angle = x * PI;
    libm::sinf(angle) + libm::cosf(angle) * 0.5
}

impl DriftDetector {
    /// For vectors of a lane; nothing seen yet.
    #[must_use]
    pub const fn new(lane: PrecisionLane) -> Self {
        Self {
            lane,
            accumulated_error: 0.0,
            sample_count: 0,
            ring: [0.0; DRIFT_WINDOW],
        }
    }

    /// Compares, and adds the error to the history. Vectors that cannot be compared add nothing.
    pub fn check(&mut self, original: &[f32], quantized: &[f32]) -> QuantizationHonesty {
        let mut honesty = self.compare(original, quantized);
        if honesty.fault.is_none() && self.update(honesty.error).is_ok() {
            honesty.sample_count = self.sample_count;
        }
        honesty
    }

    /// Compares without a history: [`DriftDetector::check`] for a detector that others read.
    #[must_use]
    pub fn compare(&self, original: &[f32], quantized: &[f32]) -> QuantizationHonesty {
        let expected_error = expected_error(self.lane);
        match Differences::of(original, quantized) {
            Err(fault) => QuantizationHonesty {
                error: f32::INFINITY,
                expected_error,
                ratio: f32::INFINITY,
                max_error: f32::INFINITY,
                energy_error: f32::INFINITY,
                is_honest: false,
                should_escalate: true,
                sample_count: self.sample_count,
                fault: Some(fault),
            },
            Ok(found) => {
                let ratio = found.transformed / expected_error.max(0.0001);
                // Of an error that is e0 of the magnitude everywhere, the energy is e0².
                let worst = ratio
                    .max(found.largest / expected_error)
                    .max(libm::sqrtf(found.energy) / expected_error);
                QuantizationHonesty {
                    error: found.transformed,
                    expected_error,
                    ratio,
                    max_error: found.largest,
                    energy_error: found.energy,
                    is_honest: worst < 2.0,
                    should_escalate: worst > 3.0,
                    sample_count: self.sample_count + 1,
                    fault: None,
                }
            }
        }
    }

    /// Adds an error to the history.
    ///
    /// # Errors
    /// An error that is not finite.
    pub fn update(&mut self, error: f32) -> Result<(), SparsityError> {
        check_finite("error", &[error])?;
        self.ring[self.sample_count % DRIFT_WINDOW] = error;
        self.accumulated_error += error;
        self.sample_count += 1;
        Ok(())
    }

    /// The errors so far.
    ///
    /// # Errors
    /// [`SparsityError::EmptyHistory`]: nothing has been compared yet.
    pub fn report(&self) -> Result<DriftReport, SparsityError> {
        if self.sample_count == 0 {
            return Err(SparsityError::EmptyHistory {
                what: "drift report",
            });
        }
        let n = self.sample_count.min(DRIFT_WINDOW);
        let start = match n {
            DRIFT_WINDOW => self.sample_count % DRIFT_WINDOW,
            _ => 0,
        };
        let in_order = |i: usize| self.ring[(start + i) % DRIFT_WINDOW];
        let (trend, expected) = (slope(n, in_order), expected_error(self.lane));
        let mean_error = self.accumulated_error / self.sample_count as f32;
        Ok(DriftReport {
            mean_error,
            accumulated_error: self.accumulated_error,
            sample_count: self.sample_count,
            trend,
            ring_trend: slope(n, |i| self.ring[i]),
            is_accelerating: trend > expected * 0.1,
            should_escalate: mean_error > expected * 3.0,
            lane: self.lane,
        })
    }

    /// Forgets the history.
    pub const fn reset(&mut self) {
        *self = Self::new(self.lane);
    }

    /// `Σ signal_i · sin((i + 1) π / n) / n`; 0 for no elements. A checksum of a signal's low frequencies: what it
    /// weighs little, at both ends, may change unseen.
    #[must_use]
    pub fn pi_checksum(&self, signal: &[f32]) -> f32 {
        let n = signal.len() as f32;
        let weighted = signal.iter().enumerate().map(|(i, x)| {
            let phase = (i as f32 + 1.0) * PI / n;
            x * libm::sinf(phase)
        });
        match signal.len() {
            0 => 0.0,
            _ => weighted.sum::<f32>() / n,
        }
    }

    /// Whether the checksums of both differ by less than the lane's expected error.
    #[must_use]
    pub fn verify_checksum(&self, original: &[f32], quantized: &[f32]) -> bool {
        let difference = self.pi_checksum(original) - self.pi_checksum(quantized);
        original.len() == quantized.len() && difference.abs() < expected_error(self.lane)
    }
}

impl DriftReport {
    /// 3: use a higher lane. 2: errors grow. 1: the mean error is above 0.05. 0: none of these.
    #[must_use]
    pub const fn severity(&self) -> u8 {
        match (self.should_escalate, self.is_accelerating) {
            (true, _) => 3,
            (_, true) => 2,
            _ => (self.mean_error > 0.05) as u8,
        }
    }

    /// The next lane, where the mean error asks for one.
    #[must_use]
    pub const fn suggested_lane(&self) -> Option<PrecisionLane> {
        match self.should_escalate {
            true => self.lane.higher(),
            false => None,
        }
    }
}

/// Three views of the same differences.
struct Differences {
    transformed: f32,
    largest: f32,
    energy: f32,
}

impl Differences {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "to the nearest f32, which may be infinite"
    )]
    fn of(original: &[f32], quantized: &[f32]) -> Result<Self, SparsityError> {
        if original.is_empty() {
            return Err(SparsityError::Empty { what: "original" });
        }
        check_len("quantized", quantized.len(), original.len())?;
        check_finite("original", original)?;
        check_finite("quantized", quantized)?;
        let (mut squares, mut largest, mut magnitude) = (0f32, 0f32, 0f32);
        let (mut lost, mut energy) = (0f64, 0f64);
        for (x, y) in original.iter().zip(quantized) {
            let step = transform(*x) - transform(*y);
            squares += step * step;
            // Differences of large numbers of both signs do not fit into an f32.
            let difference = f64::from(*x) - f64::from(*y);
            largest = largest.max(difference.abs().min(f64::from(f32::MAX)) as f32);
            magnitude = magnitude.max(x.abs());
            lost += difference * difference;
            energy += f64::from(*x) * f64::from(*x);
        }
        Ok(Self {
            transformed: libm::sqrtf(squares / original.len() as f32),
            largest: largest / magnitude.max(1.0),
            energy: (lost / energy.max(1.0)) as f32,
        })
    }
}

/// The slope of the regression line through `n` values; 0 for fewer than two.
fn slope(n: usize, value: impl Fn(usize) -> f32) -> f32 {
    let [mut x_sum, mut y_sum, mut xy_sum, mut xx_sum] = [0f32; 4];
    for i in 0..n {
        let (x, y) = (i as f32, value(i));
        x_sum += x;
        y_sum += y;
        xy_sum += x * y;
        xx_sum += x * x;
    }
    let n = n as f32;
    let denominator = n * xx_sum - x_sum * x_sum;
    match denominator.abs() < 1e-10 {
        true => 0.0,
        false => (n * xy_sum - x_sum * y_sum) / denominator,
    }
}
