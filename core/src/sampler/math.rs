//! The sampler's exponential and logarithm: the same operations, so the same bits, everywhere.
//!
//! Plain additions, multiplications and divisions of IEEE doubles in a fixed order, no platform
//! maths and no fused operations the compiler could choose to use or not.

/// `exp(x)`, within 0.51 ulp of the exact value for every f32.
///
/// NaN gives NaN; results beyond f32 are 0 or infinity, denormal results are rounded as such.
pub(super) fn exp(x: f32) -> f32 {
    if x < EXP_UNDERFLOW {
        return 0.0;
    }
    if x > EXP_OVERFLOW {
        return f32::INFINITY;
    }
    if x.is_nan() {
        return x;
    }
    let x = f64::from(x);
    // Adding and subtracting 1.5 * 2^52 rounds to the nearest integer, ties to even.
    let n = (x * core::f64::consts::LOG2_E + ROUNDER) - ROUNDER;
    let r = x - n * core::f64::consts::LN_2;
    // Taylor series for |r| <= ln(2) / 2: what follows the last term is below 1e-11.
    let mut poly = 0.0;
    for coefficient in EXP_COEFFICIENTS {
        poly = poly * r + coefficient;
    }
    round_to_f32(poly * power_of_two(n))
}

/// `ln(x)` for finite normal `x > 0`, relative error below 1e-14.
pub(super) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal(), "the sum of weights is at least 1");
    debug_assert!(x > 0.0, "the sum of weights is at least 1");
    // x = m * 2^exponent with m in [1, 2), then moved to [sqrt(1/2), sqrt(2)).
    let bits = x.to_bits();
    let biased = u32::try_from(bits >> 52).expect("the sign is clear, so 11 bits are left");
    let mut exponent = f64::from(biased) - 1023.0;
    let mut m = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if m > core::f64::consts::SQRT_2 {
        m *= 0.5;
        exponent += 1.0;
    }
    // ln(m) = 2 artanh(s), |s| <= 0.172, whose series loses a factor of 34 per term.
    let s = (m - 1.0) / (m + 1.0);
    let mut poly = 0.0;
    for odd in LN_ODD_NUMBERS {
        poly = poly * (s * s) + 1.0 / odd;
    }
    exponent * core::f64::consts::LN_2 + 2.0 * s * poly
}

/// The unnormalised probability of a logit where `max` is the largest.
///
/// 1 at the maximum, also where that is infinite; NaN if either is NaN.
pub(super) fn weight(logit: f32, max: f32) -> f32 {
    #[expect(
        clippy::float_cmp,
        reason = "infinity minus itself is not zero: equality is meant"
    )]
    if logit == max { 1.0 } else { exp(logit - max) }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounding to f32 is what it is for"
)]
pub(super) fn round_to_f32(x: f64) -> f32 {
    x as f32
}

/// `2^n` for integral `n` in `-1022..=1023`.
fn power_of_two(n: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "|n| <= 152 follows from exp's bounds"
    )]
    let n = n as i64;
    f64::from_bits((1023 + n).cast_unsigned() << 52)
}

const ROUNDER: f64 = 6_755_399_441_055_744.0;
/// Below it `exp` rounds to zero: less than half of the smallest denormal.
const EXP_UNDERFLOW: f32 = -104.0;
/// Above it `exp` overflows.
const EXP_OVERFLOW: f32 = 89.0;
/// 1/9!, 1/8! … 1/0!.
const EXP_COEFFICIENTS: [f64; 10] = [
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    1.0 / 2.0,
    1.0,
    1.0,
];
const LN_ODD_NUMBERS: [f64; 11] = [21.0, 19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0];
