//! Floats, and the types with blocks of 32 and plain rounding, byte-equal to ggml's.

use crate::blocks::{q4_0, q4_1, q5_0, q5_1};
use crate::half::{f32_to_bf16, f32_to_f16};

#[inline(always)]
pub(super) fn f32_block(x: &[f32; 1], out: &mut [u8; 4]) {
    *out = x[0].to_le_bytes();
}

#[inline(always)]
pub(super) fn f16_block(x: &[f32; 1], out: &mut [u8; 2]) {
    *out = f32_to_f16(x[0]).to_le_bytes();
}

#[inline(always)]
pub(super) fn bf16_block(x: &[f32; 1], out: &mut [u8; 2]) {
    *out = f32_to_bf16(x[0]).to_le_bytes();
}

/// The largest magnitude becomes ±127. Ties are rounded away from zero.
#[inline(always)]
pub(super) fn q8_0_block(x: &[f32; 32], out: &mut [u8; 34]) {
    let d = max_magnitude(x) / 127.0;
    let inverse = reciprocal(d);
    let (scale, codes) = out.split_at_mut(2);
    scale.copy_from_slice(&f32_to_f16(d).to_le_bytes());
    for (code, x) in codes.iter_mut().zip(x) {
        *code = round_away(x * inverse).to_le_bytes()[0];
    }
}

/// The number of largest magnitude becomes code 0, which stands for −8.
#[inline(always)]
pub(super) fn q4_0_block(x: &[f32; 32], out: &mut [u8; 18]) {
    let d = signed_max(x) / -8.0;
    out[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    q4_0::set_codes(&codes(x, 0.0, reciprocal(d), 8.5, 15.0), out);
}

/// As [`q4_0_block`] with 32 codes.
#[inline(always)]
pub(super) fn q5_0_block(x: &[f32; 32], out: &mut [u8; 22]) {
    let d = signed_max(x) / -16.0;
    out[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    q5_0::set_codes(&codes(x, 0.0, reciprocal(d), 16.5, 31.0), out);
}

/// The codes 0 and 15 are the smallest and the largest number.
#[inline(always)]
pub(super) fn q4_1_block(x: &[f32; 32], out: &mut [u8; 20]) {
    let (min, max) = range(x);
    let d = (max - min) / 15.0;
    out[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    out[2..4].copy_from_slice(&f32_to_f16(min).to_le_bytes());
    q4_1::set_codes(&codes(x, min, reciprocal(d), 0.5, 15.0), out);
}

/// As [`q4_1_block`] with 32 codes.
#[inline(always)]
pub(super) fn q5_1_block(x: &[f32; 32], out: &mut [u8; 24]) {
    let (min, max) = range(x);
    let d = (max - min) / 31.0;
    out[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    out[2..4].copy_from_slice(&f32_to_f16(min).to_le_bytes());
    q5_1::set_codes(&codes(x, min, reciprocal(d), 0.5, 31.0), out);
}

/// (x − min) · inverse + offset, which is not negative, cut to an integer in 0..=largest.
#[inline(always)]
fn codes(x: &[f32; 32], min: f32, inverse: f32, offset: f32, largest: f32) -> [u8; 32] {
    const MAGIC: f32 = 8_388_608.0;
    let mut codes = [0; 32];
    for (code, x) in codes.iter_mut().zip(x) {
        let y = (x - min) * inverse + offset;
        // The nearest integer, or that below where it is above.
        let nearest = (y + MAGIC) - MAGIC;
        let cut = if nearest > y { nearest - 1.0 } else { nearest };
        let bounded = if cut < largest { cut } else { largest };
        *code = (bounded + MAGIC).to_bits().to_le_bytes()[0];
    }
    codes
}

/// 1 / d; zero where that is not finite, which is where the half nearest to `d` is zero.
#[inline(always)]
pub(super) fn reciprocal(d: f32) -> f32 {
    let inverse = 1.0 / d;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The largest |x|. The bits of magnitudes order as the numbers do, and integer reductions
/// vectorise.
#[inline(always)]
pub(super) fn max_magnitude(x: &[f32]) -> f32 {
    let bits = x.iter().map(|x| x.to_bits() & 0x7fff_ffff);
    f32::from_bits(bits.fold(0, u32::max))
}

/// The number of largest magnitude; the first of several.
#[inline(always)]
fn signed_max(x: &[f32; 32]) -> f32 {
    let max = max_magnitude(x);
    let count = |number: f32| {
        x.iter()
            .map(|x| u32::from(x.to_bits() == number.to_bits()))
            .sum()
    };
    let (positive, negative): (u32, u32) = (count(max), count(-max));
    if negative == 0 || max == 0.0 {
        max
    } else if positive == 0 {
        -max
    } else {
        x.iter().find(|x| x.abs() >= max).copied().unwrap_or(max)
    }
}

/// The smallest and the largest number.
#[inline(always)]
fn range(x: &[f32; 32]) -> (f32, f32) {
    // Keys order as the numbers do; turning a key back is the same operation.
    let turn = |bits: i32| bits ^ (((bits >> 31).cast_unsigned() >> 1).cast_signed());
    let keys = x.map(|x| turn(x.to_bits().cast_signed()));
    let float = |key: i32| f32::from_bits(turn(key).cast_unsigned());
    let min = keys.iter().copied().fold(i32::MAX, i32::min);
    let max = keys.iter().copied().fold(i32::MIN, i32::max);
    (float(min), float(max))
}

/// To the nearest integer, ties away from zero.
#[inline(always)]
fn round_away(x: f32) -> i32 {
    let cut = truncate(x);
    #[expect(clippy::cast_precision_loss, reason = "|cut| is below 2^24: exact")]
    let rest = x - cut as f32;
    cut + i32::from(rest >= 0.5) - i32::from(rest <= -0.5)
}

/// Towards zero.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "this is the purpose")]
fn truncate(x: f32) -> i32 {
    x as i32
}
