//! The sampler's exponential and logarithm: the same operations, so the same bits, everywhere.
//!
//! Both are the contract's double-precision functions; a draw costs few of them.

use crate::kernels::contract::double;

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
    round_to_f32(double::exp(f64::from(x)))
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

/// Below it `exp` rounds to zero: less than half of the smallest denormal.
const EXP_UNDERFLOW: f32 = -104.0;
/// Above it `exp` overflows.
const EXP_OVERFLOW: f32 = 89.0;
