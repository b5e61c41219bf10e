//! Scales and offsets of the lanes, made of π.

use super::super::PrecisionLane;
use core::f32::consts::PI;

/// Scale of 3 bits: π/4.
pub const PI_SCALE_3BIT: f32 = PI / 4.0;
/// Scale of 5 bits: π/16.
pub const PI_SCALE_5BIT: f32 = PI / 16.0;
/// Scale of 7 bits: π/64.
pub const PI_SCALE_7BIT: f32 = PI / 64.0;
/// 2 / (π - 1), about 0.934. In spite of its name it is not the golden ratio.
pub const PHI_APPROX: f32 = 2.0 / (PI - 1.0);

/// 3, and the first 99 decimals of π.
pub const PI_DIGITS: [u8; 100] = digits(
    b"3141592653589793238462643383279502884197169399375105820974944592307816406286208998628034825342117067",
);

const fn digits(text: &[u8; 100]) -> [u8; 100] {
    let (mut digits, mut i) = ([0; 100], 0);
    while i < 100 {
        digits[i] = text[i] - b'0';
        i += 1;
    }
    digits
}

/// Maps values of a lane to phases and codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PiCalibration {
    /// π / 2^(bits - 1); 1 in f32.
    pub scale: f32,
    /// Half of that again, added to phases; 0 in f32.
    pub phase_offset: f32,
    /// The highest code by π; 1 in f32.
    pub norm_factor: f32,
    /// The lane.
    pub lane: PrecisionLane,
    /// (π - 3) / 2^bits, which moves values away from powers of two; 0 in f32.
    pub anti_resonance: f32,
}

impl PiCalibration {
    /// The constants of a lane.
    #[must_use]
    pub fn for_lane(lane: PrecisionLane) -> Self {
        let (scale, phase_offset, highest) = match lane {
            PrecisionLane::Bit3 => (PI_SCALE_3BIT, PI / 8.0, 3.0),
            PrecisionLane::Bit5 => (PI_SCALE_5BIT, PI / 32.0, 15.0),
            PrecisionLane::Bit7 => (PI_SCALE_7BIT, PI / 128.0, 63.0),
            PrecisionLane::Float32 => {
                return Self {
                    scale: 1.0,
                    phase_offset: 0.0,
                    norm_factor: 1.0,
                    lane,
                    anti_resonance: 0.0,
                };
            }
        };
        Self {
            scale,
            phase_offset,
            norm_factor: highest / PI,
            lane,
            anti_resonance: (PI - 3.0) / (1u32 << lane.bits()) as f32,
        }
    }

    /// `(value · norm_factor + anti_resonance) · scale`
    #[must_use]
    pub fn normalize(&self, value: f32) -> f32 {
        (value * self.norm_factor + self.anti_resonance) * self.scale
    }

    /// The inverse of [`PiCalibration::normalize`].
    #[must_use]
    pub fn denormalize(&self, value: f32) -> f32 {
        (value / self.scale - self.anti_resonance) / self.norm_factor
    }

    /// `sin(normalize(value) + phase_offset) · π`
    #[must_use]
    pub fn phase_encode(&self, value: f32) -> f32 {
        libm::sinf(self.normalize(value) + self.phase_offset) * PI
    }

    /// The inverse of [`PiCalibration::phase_encode`] for phases within ±π/2; others come back as values of the same
    /// sine.
    #[must_use]
    pub fn phase_decode(&self, phase: f32) -> f32 {
        self.denormalize(libm::asinf(phase / PI) - self.phase_offset)
    }

    /// `delta · scale · 2π`
    #[must_use]
    pub fn angular_velocity(&self, delta: f32) -> f32 {
        delta * self.scale * 2.0 * PI
    }

    /// The code of a value: rounded, half away from zero, within `-max_code` and `max_code - 1`. NaN is 0.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    pub fn pi_quantize(&self, value: f32, max_code: i8) -> i8 {
        let moved = value * self.norm_factor + self.anti_resonance + 0.5 * self.anti_resonance;
        let highest = max_code.max(1);
        (libm::roundf(moved) as i8).clamp(-highest, highest - 1)
    }

    /// The value of a code.
    #[must_use]
    pub fn pi_dequantize(&self, code: i8) -> f32 {
        (f32::from(code) - self.anti_resonance) / self.norm_factor
    }
}
