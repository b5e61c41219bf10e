//! TQ1_0 and TQ2_0: −1, 0 or 1 times the largest magnitude of 256 columns, byte-equal to ggml's.

use super::simple::{max_magnitude, reciprocal};
use crate::half::f32_to_f16;

/// TQ1_0: five codes are the digits of a byte in base 3, scaled so that the first digit is the
/// integer part of 3·byte/256. 32 bytes hold columns 0..160 (byte m: columns m + 32n), 16 the
/// next 80 (m + 16n), four the last 16, four digits each (m + 4n). Then `d` f16.
#[inline(always)]
pub(super) fn tq1_0_block(x: &[f32; 256], out: &mut [u8; 54]) {
    let d = max_magnitude(x);
    let codes = codes(x, d);
    for (m, byte) in out[..32].iter_mut().enumerate() {
        *byte = digits([0, 1, 2, 3, 4].map(|n| codes[m + 32 * n]));
    }
    for (m, byte) in out[32..48].iter_mut().enumerate() {
        *byte = digits([0, 1, 2, 3, 4].map(|n| codes[160 + m + 16 * n]));
    }
    for (m, byte) in out[48..52].iter_mut().enumerate() {
        let [a, b, c, d] = [0, 1, 2, 3].map(|n| codes[240 + m + 4 * n]);
        *byte = digits([a, b, c, d, 0]);
    }
    out[52..].copy_from_slice(&f32_to_f16(d).to_le_bytes());
}

/// TQ2_0: byte m of each 32 holds columns m + 32n in its bits 2n, 2n + 1. Then `d` f16.
#[inline(always)]
pub(super) fn tq2_0_block(x: &[f32; 256], out: &mut [u8; 66]) {
    let d = max_magnitude(x);
    let codes = codes(x, d);
    for (half, codes) in codes.as_chunks::<128>().0.iter().enumerate() {
        for m in 0..32 {
            out[32 * half + m] = (0..4).fold(0, |byte, n| byte | codes[m + 32 * n] << (2 * n));
        }
    }
    out[64..].copy_from_slice(&f32_to_f16(d).to_le_bytes());
}

/// 0, 1 or 2 for −d, 0 and d.
#[inline(always)]
fn codes(x: &[f32; 256], d: f32) -> [u8; 256] {
    let inverse = reciprocal(d);
    x.map(|x| {
        let y = x * inverse;
        1 + u8::from(y >= 0.5) - u8::from(y <= -0.5)
    })
}

/// Five digits, the first the most significant, as a fraction of 256, rounded up.
#[inline(always)]
fn digits(digits: [u8; 5]) -> u8 {
    let number = digits.iter().fold(0, |n, digit| 3 * n + u32::from(*digit));
    (number * 256).div_ceil(243).to_le_bytes()[0]
}
