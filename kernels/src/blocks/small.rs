//! Types with blocks of 32 columns.

use super::{f16_at, nibbles, set_nibbles};

/// Q8_0: `d` f16, then 32 signed bytes. Value = d · q.
pub mod q8_0 {
    /// Where the 32 signed codes start.
    pub const QS: usize = 2;

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        let d = super::f16_at(block, 0);
        for (x, q) in out.iter_mut().zip(&block[QS..]) {
            *x = d * f32::from(q.cast_signed());
        }
    }
}

/// Q4_0: `d` f16, then 16 bytes; byte j holds column j (low nibble) and j + 16 (high).
/// Value = d · (code − 8).
pub mod q4_0 {
    /// Where the 16 code bytes start.
    pub const QS: usize = 2;

    /// The 32 codes, 0..16, of a block.
    pub fn codes(block: &[u8]) -> [u8; 32] {
        super::nibbles(&block[QS..])
    }

    /// Writes the 32 codes into a block; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 32], block: &mut [u8]) {
        super::set_nibbles(codes, &mut block[QS..]);
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        let d = super::f16_at(block, 0);
        for (x, code) in out.iter_mut().zip(codes(block)) {
            *x = d * (f32::from(code) - 8.0);
        }
    }
}

/// Q4_1: `d`, `m` f16, then 16 bytes of nibbles as in Q4_0. Value = d · code + m.
pub mod q4_1 {
    /// Where the 16 code bytes start.
    pub const QS: usize = 4;

    /// The 32 codes, 0..16, of a block.
    pub fn codes(block: &[u8]) -> [u8; 32] {
        super::nibbles(&block[QS..])
    }

    /// Writes the 32 codes into a block; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 32], block: &mut [u8]) {
        super::set_nibbles(codes, &mut block[QS..]);
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        super::values_with_min(codes(block), block, out);
    }
}

/// Q5_0: `d` f16, then a u32 whose bit c is the fifth bit of column c, then 16 bytes of nibbles
/// as in Q4_0. Value = d · (code − 16).
pub mod q5_0 {
    /// Where the fifth bits start; the 16 code bytes follow them.
    pub const QH: usize = 2;

    /// The 32 codes, 0..32, of a block.
    pub fn codes(block: &[u8]) -> [u8; 32] {
        super::five_bits(&block[QH..])
    }

    /// Writes the 32 codes into a block; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 32], block: &mut [u8]) {
        super::set_five_bits(codes, &mut block[QH..]);
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        let d = super::f16_at(block, 0);
        for (x, code) in out.iter_mut().zip(codes(block)) {
            *x = d * (f32::from(code) - 16.0);
        }
    }
}

/// Q5_1: `d`, `m` f16, then codes as in Q5_0. Value = d · code + m.
pub mod q5_1 {
    /// Where the fifth bits start; the 16 code bytes follow them.
    pub const QH: usize = 4;

    /// The 32 codes, 0..32, of a block.
    pub fn codes(block: &[u8]) -> [u8; 32] {
        super::five_bits(&block[QH..])
    }

    /// Writes the 32 codes into a block; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 32], block: &mut [u8]) {
        super::set_five_bits(codes, &mut block[QH..]);
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        super::values_with_min(codes(block), block, out);
    }
}

/// IQ4_NL: as Q4_0, with a table in place of the offset. Value = d · VALUES\[code\].
pub mod iq4_nl {
    pub use super::q4_0::{QS, codes, set_codes};

    /// What the codes stand for: steps that are finer near zero.
    pub const VALUES: [i8; 16] = [
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
    ];

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        let d = super::f16_at(block, 0);
        for (x, code) in out.iter_mut().zip(codes(block)) {
            *x = d * f32::from(VALUES[usize::from(code)]);
        }
    }
}

/// MXFP4 (OCP microscaling): an E8M0 exponent byte, then 16 bytes of nibbles as in Q4_0 that are
/// E2M1 numbers. Value = scale · VALUES\[code\], where the table holds twice the E2M1 value and
/// the scale is half the E8M0 one, as in ggml.
pub mod mxfp4 {
    /// Where the 16 code bytes start.
    pub const QS: usize = 1;

    /// Twice the E2M1 values. Minus zero is zero here.
    pub const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

    /// The 32 codes, 0..16, of a block.
    pub fn codes(block: &[u8]) -> [u8; 32] {
        super::nibbles(&block[QS..])
    }

    /// Writes the 32 codes into a block; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 32], block: &mut [u8]) {
        super::set_nibbles(codes, &mut block[QS..]);
    }

    /// 2^(e − 128): denormal for the two smallest exponents, never zero, infinite or NaN.
    #[inline(always)]
    pub const fn scale(e: u8) -> f32 {
        f32::from_bits(if e < 2 {
            0x0020_0000 * (e as u32 + 1)
        } else {
            (e as u32 - 1) << 23
        })
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        let d = scale(block[0]);
        for (x, code) in out.iter_mut().zip(codes(block)) {
            *x = d * f32::from(VALUES[usize::from(code)]);
        }
    }
}

/// NVFP4: four scale bytes, one per 16 columns, then four times 8 bytes: byte j holds column j
/// (low nibble) and j + 8 (high) of its 16. Codes are E2M1 numbers as in MXFP4, scales unsigned
/// E4M3 ones, of which half is taken. Value = scale · VALUES\[code\]. Read only.
pub mod nvfp4 {
    /// Where the 32 code bytes start.
    pub const QS: usize = 4;

    /// Half the number of a scale byte, 0 for 0x7f (NaN in E4M3), as in ggml; its sign bit
    /// counts for nothing but that.
    pub const fn scale(byte: u8) -> f32 {
        let (exponent, mantissa) = ((byte >> 3 & 15) as u32, (byte & 7) as u32);
        if byte == 0x7f {
            0.0
        } else if exponent == 0 {
            // 2^-10 times the mantissa; exact.
            mantissa as f32 * f32::from_bits((127 - 10) << 23)
        } else {
            // Half of 2^(exponent - 7), with the mantissa on top of f32's.
            f32::from_bits((exponent + 127 - 8) << 23 | mantissa << 20)
        }
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        let scales = block[..QS].iter();
        let parts = block[QS..].as_chunks::<8>().0.iter();
        for ((s, qs), out) in scales.zip(parts).zip(out.as_chunks_mut::<16>().0) {
            let d = scale(*s);
            for (j, out) in out.iter_mut().enumerate() {
                let code = qs[j % 8] >> (j / 8 * 4) & 0xf;
                *out = d * f32::from(super::mxfp4::VALUES[usize::from(code)]);
            }
        }
    }
}

/// d · code + m, with both numbers at the start of the block.
#[inline]
fn values_with_min(codes: [u8; 32], block: &[u8], out: &mut [f32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (x, code) in out.iter_mut().zip(codes) {
        *x = d * f32::from(code) + m;
    }
}

/// 32 codes from four bytes of fifth bits and 16 bytes of nibbles.
fn five_bits(bytes: &[u8]) -> [u8; 32] {
    let mut codes = nibbles(&bytes[4..]);
    for (codes, bits) in codes.as_chunks_mut::<8>().0.iter_mut().zip(bytes) {
        for (j, code) in codes.iter_mut().enumerate() {
            *code |= (bits >> j & 1) << 4;
        }
    }
    codes
}

/// The inverse of [`five_bits`].
fn set_five_bits(codes: &[u8; 32], bytes: &mut [u8]) {
    for (i, codes) in codes.chunks_exact(8).enumerate() {
        bytes[i] = (0..8).fold(0, |bits, j| bits | (codes[j] >> 4) << j);
    }
    set_nibbles(codes, &mut bytes[4..]);
}
