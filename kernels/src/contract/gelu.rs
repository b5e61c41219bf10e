//! GELU: its tanh approximation, and by the error function.

use super::{Arith, LN2_HI, LN2_LO, exp};

/// The tanh approximation of GELU, as models of the Gemma family use it, and [`gelu_erf`] is not:
/// `x / 2 · (1 + tanh u) = x / (1 + e^-2u)` with `u = sqrt(2/π) · x · (1 + 0.044715 x²)`.
#[inline(always)]
pub fn gelu<F: Arith>(x: f32) -> f32 {
    /// -2 · sqrt(2/π).
    const SCALE: f32 = -1.595_769;
    let inner = F::fma(0.044_715 * x, x, 1.0);
    x / (1.0 + exp::<F>(SCALE * x * inner))
}

/// GELU (Hendrycks and Gimpel, 2016) within 1.8 ulp: `x · Φ(x) = x / 2 · (1 + erf(x / √2))`; NaN for NaN, -0 for -∞,
/// +0 for both zeros.
///
/// `max(x, 0) - t · Φ(-t)` with `t = |x|`, which cancels nowhere. `Φ(-t) = e^(-t²/2) · R(t)`, and `t · R(t)` is
/// `v - 0.596 v² + v³ p(v)` with `v = t / (t + 2)` in 0..1, `p` fitted for the relative error. The large terms are carried
/// with their rounding errors: `t²`, `v`, `v²`, and the sum of the first two.
#[inline(always)]
pub fn gelu_erf<F: Arith>(x: f32) -> f32 {
    /// From here on `t · Φ(-t)` is less than half the smallest denormal.
    const T_MAX: f32 = 14.375;
    /// The exponent is 64 too large, so that denormals are rounded once, in the last step.
    const MAGIC: f32 = 12_583_039.0 + 64.0;
    const SHIFT: f32 = 1.0 / 18_446_744_073_709_551_616.0;
    const SQUARE: f32 = -0.595_769_7;
    // As minps(T_MAX, t): NaN passes through.
    let t = x.abs();
    let t = if T_MAX < t { T_MAX } else { t };

    let inverse = 1.0 / (t + 2.0);
    let v = t * inverse;
    let rest = F::fma(-v, t, F::fma(-2.0, v, t));
    let v = F::fma(rest, inverse, v);
    let mut p = -0.133_088_11;
    for c in [
        0.580_417_2,
        -1.004_081,
        0.947_376_43,
        -0.608_746_2,
        0.220_455_23,
        -0.015_493_758,
        0.115_194_76,
        0.084_179_54,
        -0.191_501_14,
    ] {
        p = F::fma(p, v, c);
    }
    let square = v * v;
    let large = F::fma(SQUARE, square, v);
    let lost = F::fma(SQUARE, square, v - large);
    let lost = F::fma(SQUARE, F::fma(v, v, -square), lost);
    let small = F::fma(square * v, p, lost);

    // e^(-t²/2) = 2^n · (1 + grown).
    let half = -0.5 * t;
    let exponent = half * t;
    let shifted = F::fma(exponent, core::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = F::fma(n, -LN2_HI, exponent);
    let r = r + F::fma(n, -LN2_LO, F::fma(half, t, -exponent));
    let mut e = 1.381_445e-3;
    for c in [8.368_892e-3, 4.166_84e-2, 0.166_665_2, 0.499_999_94] {
        e = F::fma(e, r, c);
    }
    let grown = F::fma(e, r * r, r);

    let y = large + F::fma(large, grown, F::fma(small, grown, small));
    let y = y * f32::from_bits(shifted.to_bits() << 23);
    F::fma(y, -SHIFT, if x > 0.0 { x } else { 0.0 })
}

#[cfg(test)]
mod tests;
