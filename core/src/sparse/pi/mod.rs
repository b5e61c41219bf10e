//! Calibration, drift, angles and jitter from π; f32 by `libm`.
//!
//! Values equal the predecessor's to the rounding of the library that computes sines. What its metrics do not see is
//! seen by further ones: see [`QuantizationHonesty`], [`DriftReport::trend`] and [`PiChaos::hashed`], and
//! `docs/sparsity.md`.

mod angular;
mod chaos;
mod constants;
mod drift;
#[cfg(test)]
mod tests;

pub use angular::{AngularEmbedding, HypersphericalProjection, PhaseEncoder};
pub use chaos::{DeterministicJitter, PiChaos, PiScheduler};
pub use constants::{
    PHI_APPROX, PI_DIGITS, PI_SCALE_3BIT, PI_SCALE_5BIT, PI_SCALE_7BIT, PiCalibration,
};
pub use drift::{DRIFT_WINDOW, DriftDetector, DriftReport, QuantizationHonesty};

use super::{PrecisionLane, SparsityError};

/// All of them for one lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PiContext {
    /// Maps values to phases.
    pub calibration: PiCalibration,
    /// The errors so far.
    pub drift: DriftDetector,
    /// Maps vectors to angles.
    pub angular: AngularEmbedding,
    /// Jitter.
    pub chaos: PiChaos,
    /// The lane.
    pub lane: PrecisionLane,
}

impl Default for PiContext {
    fn default() -> Self {
        Self::new(PrecisionLane::Bit5)
    }
}

impl PiContext {
    /// For a lane.
    #[must_use]
    pub fn new(lane: PrecisionLane) -> Self {
        Self {
            calibration: PiCalibration::for_lane(lane),
            drift: DriftDetector::new(lane),
            angular: AngularEmbedding::new(lane),
            chaos: PiChaos::new(),
            lane,
        }
    }

    /// [`PiCalibration::normalize`]
    #[must_use]
    pub fn calibrate(&self, value: f32) -> f32 {
        self.calibration.normalize(value)
    }

    /// Compares a quantised vector with its original, without a history ([`DriftDetector::check`] has one).
    #[must_use]
    pub fn check_honesty(&self, original: &[f32], quantized: &[f32]) -> QuantizationHonesty {
        self.drift.compare(original, quantized)
    }

    /// [`AngularEmbedding::project_into`]
    ///
    /// # Errors
    /// Lengths that differ; a value that is not finite.
    pub fn to_angular_into(&self, values: &[f32], angles: &mut [f32]) -> Result<(), SparsityError> {
        self.angular.project_into(values, angles)
    }

    /// The jitter of an index, from the digits of π.
    #[must_use]
    pub fn jitter(&self, index: usize) -> f32 {
        self.chaos.jitter(index)
    }

    /// Adds an error to the history.
    ///
    /// # Errors
    /// An error that is not finite.
    pub fn update_drift(&mut self, error: f32) -> Result<(), SparsityError> {
        self.drift.update(error)
    }

    /// The errors so far.
    ///
    /// # Errors
    /// Nothing has been compared yet.
    pub fn drift_report(&self) -> Result<DriftReport, SparsityError> {
        self.drift.report()
    }

    /// Whether the mean error asks for a higher lane; not before the first comparison.
    #[must_use]
    pub fn should_escalate(&self) -> bool {
        self.drift
            .report()
            .is_ok_and(|report| report.should_escalate)
    }
}
