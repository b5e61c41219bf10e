//! The sampler's exponential and logarithm: the same operations, so the same bits, everywhere.
//!
//! Both are the contract's double-precision functions; a draw costs few of them.

use crate::kernels::contract::double;

/// `exp(x)`, within 0.51 ulp of the exact value for every f32.
///
/// NaN gives NaN; results beyond f32 are 0 or infinity, denormal results are rounded as such.
#[inline]
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
    round_to_f32(double::exp(f64::from(x)))
}

/// The unnormalised probability of a logit where `max` is the largest.
///
/// 1 at the maximum, also where that is infinite; NaN if either is NaN.
#[inline]
pub(super) fn weight(logit: f32, max: f32) -> f32 {
    #[expect(
        clippy::float_cmp,
        reason = "infinity minus itself is not zero: equality is meant"
    )]
    if logit == max { 1.0 } else { exp(logit - max) }
}

/// Natural logarithm of a finite normal `x` above 0; minus infinity for smaller values.
pub(super) fn ln(x: f64) -> f64 {
    if x < f64::MIN_POSITIVE {
        return f64::NEG_INFINITY;
    }
    double::ln(x)
}

/// Logarithm to base 2, as [`ln`].
pub(super) fn log2(x: f64) -> f64 {
    ln(x) * core::f64::consts::LOG2_E
}

/// `base` to the power of `exponent`; NaN for a `base` below 0. Saturates at e^±700.
pub(super) fn pow(base: f64, exponent: f64) -> f64 {
    if exponent == 0.0 {
        return 1.0;
    }
    if base.is_nan() || base < 0.0 {
        return f64::NAN;
    }
    let ln_base = if base.is_infinite() { base } else { ln(base) };
    let power = ln_base * exponent;
    if power > 700.0 {
        f64::INFINITY
    } else if power < -700.0 {
        0.0
    } else if power.is_nan() {
        power
    } else {
        double::exp(power)
    }
}

/// `base` to the power of a whole number, by squaring.
pub(super) fn powi(mut base: f64, mut exponent: u32) -> f64 {
    let mut power = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            power *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    power
}

/// Square root of a finite `x` of at least 0, within 1e-15 of it.
pub(super) fn sqrt(x: f64) -> f64 {
    let root = pow(x, 0.5);
    // One step of Newton's takes off what the logarithm's rounding leaves.
    if root > 0.0 && root.is_finite() {
        0.5 * (root + x / root)
    } else {
        root
    }
}

/// The whole part; NaN and values below 0 give 0, too large numbers the largest.
pub(super) fn to_u32(x: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a conversion that saturates is what it is for"
    )]
    let whole = x as u32;
    whole
}

/// A count as a float: exact up to 2^24, which no context reaches.
#[expect(clippy::cast_precision_loss, reason = "counts of tokens are small")]
pub(super) fn count_to_f32(n: u32) -> f32 {
    n as f32
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "rounding to f32 is what it is for"
)]
pub(super) fn round_to_f32(x: f64) -> f32 {
    x as f32
}

/// Below it `exp` rounds to zero: less than half of the smallest denormal.
const EXP_UNDERFLOW: f32 = -104.0;
/// Above it `exp` overflows.
const EXP_OVERFLOW: f32 = 89.0;
