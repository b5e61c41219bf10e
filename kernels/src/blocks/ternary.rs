//! Types of three values, −d, 0 and d, with super-blocks of 256 columns. Read only.

use super::{f16_at, pairs};

/// TQ1_0: 48 bytes of five codes each and 4 of four; `d` f16. The first 32 bytes hold 160
/// columns, the next 16 hold 80, the last four 16: the first code of all bytes of such a run,
/// then the second of all, and so on. Value = d · (code − 1).
///
/// A byte is the codes' number in base 3 (first code most significant, five digits) as a
/// fraction of 256, rounded up: times 3, what passes 256 is the next code.
#[inline]
pub(super) fn tq1_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 52);
    let (first, rest) = block[..52].split_at(32);
    let (second, third) = rest.split_at(16);
    let (out_first, rest) = out.split_at_mut(160);
    let (out_second, out_third) = rest.split_at_mut(80);
    for (bytes, out) in [(first, out_first), (second, out_second), (third, out_third)] {
        let mut power = 1u8;
        for out in out.chunks_exact_mut(bytes.len()) {
            for (out, byte) in out.iter_mut().zip(bytes) {
                let code = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
                *out = d * (f32::from(code) - 1.0);
            }
            power = power.wrapping_mul(3);
        }
    }
}

/// TQ2_0: 64 bytes of 2-bit codes, of which each 32 hold 128 columns; `d` f16.
/// Value = d · (code − 1). Code 3 is not written by ggml and reads as 2 d.
#[inline]
pub(super) fn tq2_0(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 64);
    for (out, code) in out.iter_mut().zip(pairs(block)) {
        *out = d * (f32::from(code) - 1.0);
    }
}
