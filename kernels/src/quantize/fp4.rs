//! MXFP4 and NVFP4: E2M1 numbers with an exponent or a UE4M3 scale, byte-equal to ggml's.

use super::simple::max_magnitude;
use crate::blocks::mxfp4;

/// Uses the power of two that puts the largest magnitude at 4 to 8 E2M1 units, of which there are 6, as the OCP
/// microscaling specification defines it.
#[inline(always)]
pub(super) fn mxfp4_block(x: &[f32; 32], out: &mut [u8; 17]) {
    let e = exponent(x);
    out[0] = e;
    let codes = nearest(x, mxfp4::scale(e));
    mxfp4::set_codes(&codes, out);
}

/// Tries the power of two of [`mxfp4_block`] and its neighbours, and uses the one with the least weighted squared
/// error; for up to eight blocks.
#[inline(always)]
pub(super) fn mxfp4_blocks(x: &[f32; 256], w: &[f32; 256], out: &mut [[u8; 17]]) {
    let blocks = x.as_chunks().0.iter().zip(w.as_chunks().0);
    for ((x, w), out) in blocks.zip(out) {
        let first = exponent(x);
        let mut least = f64::INFINITY;
        for e in [
            first,
            first.saturating_add(1).min(LARGEST_E),
            first.saturating_sub(1),
        ] {
            let codes = nearest(x, mxfp4::scale(e));
            let error = error(x, w, &codes, mxfp4::scale(e));
            if error < least {
                least = error;
                out[0] = e;
                mxfp4::set_codes(&codes, out);
            }
        }
    }
}

/// 255 stands for NaN.
const LARGEST_E: u8 = 254;

#[inline(always)]
fn exponent(x: &[f32; 32]) -> u8 {
    let exponent = max_magnitude(x).to_bits() >> 23;
    exponent.saturating_sub(2).to_le_bytes()[0]
}

/// Σ w (x − value)². In f64, because x is unbounded.
#[inline(always)]
fn error(x: &[f32; 32], w: &[f32; 32], codes: &[u8; 32], half: f32) -> f64 {
    let mut sum = 0.0;
    for ((x, w), code) in x.iter().zip(w).zip(codes) {
        let value = half * f32::from(mxfp4::VALUES[usize::from(*code)]);
        let e = f64::from(*x) - f64::from(value);
        sum += f64::from(*w) * e * e;
    }
    sum
}

/// Four scale bytes, then eight bytes of nibbles per 16 columns (low nibbles first). A scale is
/// a sixth of the largest magnitude.
#[inline(always)]
pub(super) fn nvfp4_block(x: &[f32; 64], out: &mut [u8; 36]) {
    for (s, x) in x.as_chunks::<16>().0.iter().enumerate() {
        let (byte, scale) = ue4m3(max_magnitude(x) / 6.0);
        out[s] = byte;
        let codes = nearest(x, 0.5 * scale);
        for (j, out) in out[4 + 8 * s..][..8].iter_mut().enumerate() {
            *out = codes[j] | codes[j + 8] << 4;
        }
    }
}

/// The codes of the E2M1 numbers nearest to x / (2 · half). Of two equally near, that with the
/// smaller code; zero is code 0.
#[inline(always)]
fn nearest<const N: usize>(x: &[f32; N], half: f32) -> [u8; N] {
    // A number is above a code where it is nearer to the next. The differences are those that
    // ggml compares, so that rounding falls the same way at a tie.
    let steps = [0, 1, 2, 3, 4, 6, 8, 12].map(|v: u8| f32::from(v) * half);
    let mut codes = [0u8; N];
    for (code, x) in codes.iter_mut().zip(x) {
        let magnitude = x.abs();
        let mut n = 0;
        for pair in steps.windows(2) {
            n += u8::from((pair[1] - magnitude).abs() < (pair[0] - magnitude).abs());
        }
        let sign = u8::from(*x < 0.0 && n > 0);
        *code = n | sign << 3;
    }
    codes
}

/// The unsigned byte with four exponent and three mantissa bits nearest to `x` ≥ 0 (ties
/// upwards, at most 448), and its value.
#[inline(always)]
fn ue4m3(x: f32) -> (u8, f32) {
    const LARGEST: u32 = 0x7e;
    /// What the exponents of f32 and UE4M3 differ by, at the place of the latter.
    const BIAS: u32 = (127 - 7) << 3;
    let bits = x.to_bits();
    let byte = if bits >> 23 <= 127 - 7 {
        // Below 2^-6: multiples of 2^-9.
        let units = x * 512.0 + 0.5;
        (1..=7u8).map(|n| u32::from(f32::from(n) <= units)).sum()
    } else {
        (((bits + (1 << 19)) >> 20) - BIAS).min(LARGEST)
    };
    let value = if byte < 8 {
        byte as f32 / 512.0
    } else {
        f32::from_bits((byte + BIAS) << 20)
    };
    (byte.to_le_bytes()[0], value)
}
