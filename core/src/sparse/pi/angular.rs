//! Vectors as angles.

use super::super::error::{check_finite, check_len};
use super::super::{PrecisionLane, SparsityError};
use core::f32::consts::PI;

/// Share of the old velocity that a new difference leaves.
const MOMENTUM: f32 = 0.9;

/// Maps directions to angles: an element becomes `x / norm · π · k`, with k = π/4, π/16, π/64, or 1 in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AngularEmbedding {
    lane: PrecisionLane,
    phase_scale: f32,
}

impl AngularEmbedding {
    /// For a lane.
    #[must_use]
    pub const fn new(lane: PrecisionLane) -> Self {
        let phase_scale = match lane {
            PrecisionLane::Bit3 => PI / 4.0,
            PrecisionLane::Bit5 => PI / 16.0,
            PrecisionLane::Bit7 => PI / 64.0,
            PrecisionLane::Float32 => 1.0,
        };
        Self { lane, phase_scale }
    }

    /// The lane.
    #[must_use]
    pub const fn lane(&self) -> PrecisionLane {
        self.lane
    }

    /// Writes the angles of `values`.
    ///
    /// # Errors
    /// Lengths that differ; a value that is not finite.
    pub fn project_into(&self, values: &[f32], angles: &mut [f32]) -> Result<(), SparsityError> {
        check_len("angles", angles.len(), values.len())?;
        check_finite("values", values)?;
        let norm = magnitude(values).max(1e-10);
        for (angle, x) in angles.iter_mut().zip(values) {
            *angle = self.angle(*x, norm);
        }
        Ok(())
    }

    /// Writes the vector of `target_magnitude` that has these angles.
    ///
    /// # Errors
    /// Lengths that differ; an angle that is not finite.
    pub fn unproject_into(
        &self,
        angles: &[f32],
        target_magnitude: f32,
        values: &mut [f32],
    ) -> Result<(), SparsityError> {
        check_len("values", values.len(), angles.len())?;
        check_finite("angles", angles)?;
        for (x, angle) in values.iter_mut().zip(angles) {
            *x = angle / (PI * self.phase_scale) * target_magnitude;
        }
        Ok(())
    }

    /// Root of the sum of squares of the angles between both, each the shorter way round.
    ///
    /// # Errors
    /// No elements, lengths that differ, a value that is not finite. The predecessor returns the largest f32.
    pub fn angular_distance(&self, a: &[f32], b: &[f32]) -> Result<f32, SparsityError> {
        check_pair(a, b)?;
        let (norm_a, norm_b) = (magnitude(a).max(1e-10), magnitude(b).max(1e-10));
        let mut sum = 0f32;
        for (a, b) in a.iter().zip(b) {
            let apart = wrapped(self.angle(*a, norm_a) - self.angle(*b, norm_b));
            sum += apart * apart;
        }
        Ok(libm::sqrtf(sum))
    }

    /// Moves a velocity (zeros at first) towards the difference of two vectors: 0.9 of the old one, 0.1 of the new.
    ///
    /// # Errors
    /// Lengths that differ; a value that is not finite.
    pub fn update_velocity(
        &self,
        previous: &[f32],
        current: &[f32],
        velocity: &mut [f32],
    ) -> Result<(), SparsityError> {
        check_pair(previous, current)?;
        check_len("velocity", velocity.len(), current.len())?;
        let (norm_a, norm_b) = (
            magnitude(previous).max(1e-10),
            magnitude(current).max(1e-10),
        );
        for ((v, a), b) in velocity.iter_mut().zip(previous).zip(current) {
            let delta = wrapped(self.angle(*b, norm_b) - self.angle(*a, norm_a));
            *v = MOMENTUM * *v + (1.0 - MOMENTUM) * delta;
        }
        Ok(())
    }

    /// Writes the vector that a velocity leads to after one more step, of the same magnitude as `current`.
    ///
    /// # Errors
    /// Lengths that differ; a value that is not finite.
    pub fn predict_next_into(
        &self,
        current: &[f32],
        velocity: &[f32],
        next: &mut [f32],
    ) -> Result<(), SparsityError> {
        check_pair(current, velocity)?;
        check_len("next", next.len(), current.len())?;
        let norm = magnitude(current);
        for ((next, x), v) in next.iter_mut().zip(current).zip(velocity) {
            let angle = wrapped(self.angle(*x, norm.max(1e-10)) + v);
            *next = angle / (PI * self.phase_scale) * norm;
        }
        Ok(())
    }

    fn angle(&self, x: f32, norm: f32) -> f32 {
        x / norm * PI * self.phase_scale
    }
}

/// Sines of a value, and the value of a sine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhaseEncoder<'a> {
    base_frequency: f32,
    harmonics: usize,
    lut: &'a [f32],
}

impl<'a> PhaseEncoder<'a> {
    /// `harmonics` sines of multiples of `base_frequency`.
    #[must_use]
    pub const fn new(base_frequency: f32, harmonics: usize) -> Self {
        Self {
            base_frequency,
            harmonics,
            lut: &[],
        }
    }

    /// With a table for one level for each element of `lut`, which is filled.
    ///
    /// # Errors
    /// Fewer than two levels.
    pub fn with_lut(mut self, lut: &'a mut [f32]) -> Result<Self, SparsityError> {
        let last = lut.len().saturating_sub(1);
        if last == 0 {
            return Err(SparsityError::Setting {
                name: "levels",
                value: lut.len() as f64,
                expected: "at least 2",
            });
        }
        for (i, entry) in lut.iter_mut().enumerate() {
            let phase = i as f32 / last as f32 * 2.0 * PI * self.base_frequency;
            *entry = libm::sinf(phase);
        }
        self.lut = lut;
        Ok(self)
    }

    /// `Σ sin(value · f · h · π) / h` over the harmonics h from 1.
    #[must_use]
    pub fn encode(&self, value: f32) -> f32 {
        let harmonic = |h: usize| {
            let freq = self.base_frequency * h as f32;
            1.0 / h as f32 * libm::sinf(value * freq * PI)
        };
        (1..=self.harmonics).map(harmonic).sum()
    }

    /// The table's entry of a level, 0 after its last; without a table, the encoding of `level / 255`.
    #[must_use]
    pub fn encode_quantized(&self, level: usize) -> f32 {
        match self.lut {
            [] => self.encode(level as f32 / 255.0),
            lut => lut.get(level).copied().unwrap_or(0.0),
        }
    }

    /// The value within ±1/2 of the base frequency whose first sine is `phase`: NaN beyond ±1.
    #[must_use]
    pub fn decode(&self, phase: f32) -> f32 {
        libm::asinf(phase) / (self.base_frequency * PI)
    }
}

/// Hyperspherical coordinates: n - 1 angles of n elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HypersphericalProjection {
    dimension: usize,
    lane: PrecisionLane,
}

impl HypersphericalProjection {
    /// For vectors of `dimension` elements.
    #[must_use]
    pub const fn new(dimension: usize, lane: PrecisionLane) -> Self {
        Self { dimension, lane }
    }

    /// The lane.
    #[must_use]
    pub const fn lane(&self) -> PrecisionLane {
        self.lane
    }

    /// Elements of a vector.
    #[must_use]
    pub const fn dimension(&self) -> usize {
        self.dimension
    }

    /// Number of angles.
    #[must_use]
    pub const fn n_angles(&self) -> usize {
        self.dimension.saturating_sub(1)
    }

    /// Writes the angles: `φ_k = acos(x_k / |x_k…|)`, 0 to π, and the last within ±π by the sign of the last element.
    ///
    /// The predecessor's angles (`atan2` of the first two elements, then cosines of the others) count the second
    /// element twice and do not lead back to the vector.
    ///
    /// # Errors
    /// Lengths other than the dimension's; a value that is not finite.
    pub fn to_spherical_into(&self, x: &[f32], angles: &mut [f32]) -> Result<(), SparsityError> {
        check_len("cartesian", x.len(), self.dimension)?;
        check_len("angles", angles.len(), self.n_angles())?;
        check_finite("cartesian", x)?;
        let last = angles.len().saturating_sub(1);
        for (k, angle) in angles.iter_mut().enumerate() {
            let rest = magnitude(&x[k + 1..]);
            *angle = match k == last {
                true => libm::atan2f(x[k + 1], x[k]),
                false => libm::atan2f(rest, x[k]),
            };
        }
        Ok(())
    }

    /// Writes the vector of `radius` that has these angles.
    ///
    /// # Errors
    /// Lengths other than the dimension's; an angle that is not finite.
    pub fn to_cartesian_into(
        &self,
        angles: &[f32],
        radius: f32,
        x: &mut [f32],
    ) -> Result<(), SparsityError> {
        check_len("angles", angles.len(), self.n_angles())?;
        check_len("cartesian", x.len(), self.dimension)?;
        check_finite("angles", angles)?;
        let mut rest = radius;
        for (x, angle) in x.iter_mut().zip(angles) {
            *x = rest * libm::cosf(*angle);
            rest *= libm::sinf(*angle);
        }
        if let Some(last) = x.last_mut() {
            *last = rest;
        }
        Ok(())
    }

    /// The angle between two vectors, 0 to π.
    ///
    /// # Errors
    /// No elements, lengths that differ, a value that is not finite. The predecessor returns the largest f32.
    pub fn geodesic_distance(&self, a: &[f32], b: &[f32]) -> Result<f32, SparsityError> {
        check_pair(a, b)?;
        let (norm_a, norm_b) = (magnitude(a).max(1e-10), magnitude(b).max(1e-10));
        let dot: f32 = a
            .iter()
            .zip(b)
            .map(|(x, y)| (x / norm_a) * (y / norm_b))
            .sum();
        Ok(libm::acosf(dot.clamp(-1.0, 1.0)))
    }
}

/// Two vectors of one length, at least one element, all finite.
fn check_pair(a: &[f32], b: &[f32]) -> Result<(), SparsityError> {
    if a.is_empty() {
        return Err(SparsityError::Empty {
            what: "first vector",
        });
    }
    check_len("second vector", b.len(), a.len())?;
    check_finite("first vector", a)?;
    check_finite("second vector", b)
}

/// An angle within ±π.
fn wrapped(angle: f32) -> f32 {
    // One subtraction: a loop would not end for a large angle.
    match angle.abs() > PI {
        true => angle - libm::roundf(angle / (2.0 * PI)) * 2.0 * PI,
        false => angle,
    }
}

/// The length of a vector, up to the largest f32.
#[expect(clippy::cast_possible_truncation, reason = "within f32 by min")]
fn magnitude(x: &[f32]) -> f32 {
    let sum: f32 = x.iter().map(|x| x * x).sum();
    if sum.is_finite() {
        return libm::sqrtf(sum);
    }
    // Squares beyond f32: with an infinite length all angles would be 0.
    let wide: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    libm::sqrt(wide).min(f64::from(f32::MAX)) as f32
}
