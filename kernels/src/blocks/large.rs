//! Types with super-blocks of 256 columns.

use super::{add_bits, f16_at, iq4_nl, nibbles, pairs, set_nibbles, set_pairs};

/// Q2_K: sixteen bytes with a 4-bit scale (low) and a 4-bit min per 16 columns; 64 bytes of
/// 2-bit codes, of which each 32 hold 128 columns; `d`, `dmin` f16.
/// Value = d · sc · code − dmin · min.
pub mod q2_k {
    /// Where the code bytes start; scales and mins are before them.
    pub const QS: usize = 16;
    /// Where `d` is; `dmin` follows.
    pub const D: usize = 80;

    /// The 256 codes, 0..4.
    pub fn codes(block: &[u8]) -> [u8; 256] {
        super::pairs(&block[QS..])
    }

    /// Writes the codes; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 256], block: &mut [u8]) {
        super::set_pairs(codes, &mut block[QS..]);
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        let (d, dmin) = (super::f16_at(block, D), super::f16_at(block, D + 2));
        for (c, code) in codes(block).into_iter().enumerate() {
            let (sc, min) = (
                d * f32::from(block[c / 16] & 0xf),
                dmin * f32::from(block[c / 16] >> 4),
            );
            out[c] = sc * f32::from(code) - min;
        }
    }
}

/// Q3_K: 32 bytes of third bits (bit s of byte l: column 32s + l); 64 bytes of low bits as in
/// Q2_K; 12 bytes with sixteen 6-bit scales; `d` f16. Value = d · (sc − 32) · (code − 4).
pub mod q3_k {
    use super::super::SixBits;

    /// Where the low bits start; the third bits are before them.
    pub const QS: usize = 32;
    /// Where the packed scales start.
    pub const SCALES: usize = 96;
    /// Bytes of packed scales.
    pub const SCALE_BYTES: usize = 12;
    /// Where `d` is.
    pub const D: usize = 108;

    /// Where scale `s`, 0..64, is in the packed bytes.
    #[inline(always)]
    pub const fn scale_at(s: usize) -> SixBits {
        SixBits {
            low: s % 8,
            low_shift: s / 8 * 4,
            high: 8 + s % 4,
            high_shift: s / 4 * 2,
        }
    }

    /// The 256 codes, 0..8.
    pub fn codes(block: &[u8]) -> [u8; 256] {
        let mut codes = super::pairs(&block[QS..]);
        for (run, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            super::add_bits(codes, block, run, 1, 2);
        }
        codes
    }

    /// Writes the codes; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 256], block: &mut [u8]) {
        for l in 0..32 {
            block[l] = (0..8).fold(0, |bits, s| bits | (codes[32 * s + l] >> 2) << s);
        }
        super::set_pairs(codes, &mut block[QS..]);
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        let d = super::f16_at(block, D);
        let scales = &block[SCALES..];
        for (c, code) in codes(block).into_iter().enumerate() {
            let at = scale_at(c / 16);
            let scale = (scales[at.low] >> at.low_shift & 0xf)
                | (scales[at.high] >> at.high_shift & 3) << 4;
            out[c] = d * (f32::from(scale) - 32.0) * (f32::from(code) - 4.0);
        }
    }
}

/// Q4_K: `d`, `dmin` f16; 12 bytes with eight 6-bit scales and eight 6-bit mins; 128 bytes, of
/// which each 32 hold 64 columns (low nibbles first). Value = d · sc · code − dmin · min.
pub mod q4_k {
    /// Where the packed scales and mins start.
    pub const SCALES: usize = 4;
    /// Where the code bytes start.
    pub const QS: usize = 16;

    /// The eight scales and the eight mins, each 0..64.
    pub fn scales(block: &[u8]) -> ([u8; 8], [u8; 8]) {
        let s = &block[SCALES..QS];
        let (mut scales, mut mins) = ([0; 8], [0; 8]);
        for i in 0..4 {
            scales[i] = s[i] & 63;
            mins[i] = s[i + 4] & 63;
            scales[i + 4] = (s[i + 8] & 0xf) | (s[i] >> 6) << 4;
            mins[i + 4] = (s[i + 8] >> 4) | (s[i + 4] >> 6) << 4;
        }
        (scales, mins)
    }

    /// Writes scales and mins; the inverse of [`scales`].
    pub fn set_scales(scales: &[u8; 8], mins: &[u8; 8], block: &mut [u8]) {
        let s = &mut block[SCALES..QS];
        for i in 0..4 {
            s[i] = scales[i] | (scales[i + 4] >> 4) << 6;
            s[i + 4] = mins[i] | (mins[i + 4] >> 4) << 6;
            s[i + 8] = (scales[i + 4] & 0xf) | (mins[i + 4] & 0xf) << 4;
        }
    }

    /// The 256 codes, 0..16.
    pub fn codes(block: &[u8]) -> [u8; 256] {
        super::runs(&block[QS..])
    }

    /// Writes the codes; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 256], block: &mut [u8]) {
        super::set_runs(codes, &mut block[QS..]);
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        super::values_with_mins(&codes(block), block, out);
    }
}

/// Q5_K: as Q4_K, with 32 bytes of fifth bits (bit s of byte l: column 32s + l) before the
/// nibbles.
pub mod q5_k {
    pub use super::q4_k::{SCALES, scales, set_scales};

    /// Where the fifth bits start.
    pub const QH: usize = 16;
    /// Where the code bytes start.
    pub const QS: usize = 48;

    /// The 256 codes, 0..32.
    pub fn codes(block: &[u8]) -> [u8; 256] {
        let mut codes = super::runs(&block[QS..]);
        for (run, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            super::add_bits(codes, &block[QH..], run, 1, 4);
        }
        codes
    }

    /// Writes the codes; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 256], block: &mut [u8]) {
        for l in 0..32 {
            block[QH + l] = (0..8).fold(0, |bits, s| bits | (codes[32 * s + l] >> 4) << s);
        }
        super::set_runs(codes, &mut block[QS..]);
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        super::values_with_mins(&codes(block), block, out);
    }
}

/// Q6_K: 128 bytes of low nibbles, 64 bytes of 2-bit highs, sixteen i8 scales, `d` f16; two
/// halves of 128 columns. Value = d · sc · (code − 32).
pub mod q6_k {
    /// Where the sixteen signed scales start.
    pub const SCALES: usize = 192;
    /// Where `d` is.
    pub const D: usize = 208;

    /// The 256 codes, 0..64.
    pub fn codes(block: &[u8]) -> [u8; 256] {
        let mut codes = [0; 256];
        for (run, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (half, quarter) = (run / 4, run % 4);
            let low = &block[64 * half + 32 * (quarter % 2)..];
            super::add_bits(codes, low, quarter / 2 * 4, 0xf, 0);
            super::add_bits(codes, &block[128 + 32 * half..], 2 * quarter, 3, 4);
        }
        codes
    }

    /// Writes the codes; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 256], block: &mut [u8]) {
        for half in 0..2 {
            let code = |quarter: usize, l: usize| codes[128 * half + 32 * quarter + l];
            for l in 0..32 {
                block[64 * half + l] = (code(0, l) & 0xf) | (code(2, l) & 0xf) << 4;
                block[64 * half + 32 + l] = (code(1, l) & 0xf) | (code(3, l) & 0xf) << 4;
                block[128 + 32 * half + l] =
                    (0..4).fold(0, |h, q| h | (code(q, l) >> 4) << (2 * q));
            }
        }
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        let d = super::f16_at(block, D);
        for (c, code) in codes(block).into_iter().enumerate() {
            let scale = f32::from(block[SCALES + c / 16].cast_signed());
            out[c] = d * scale * (f32::from(code) - 32.0);
        }
    }
}

/// IQ4_XS: `d` f16; the upper two bits of eight 6-bit scales in 2 bytes and their lower four in
/// 4 bytes; eight times 16 bytes of nibbles as in IQ4_NL.
/// Value = d · (sc − 32) · VALUES\[code\] with the table of IQ4_NL.
pub mod iq4_xs {
    use super::super::SixBits;

    pub use super::iq4_nl::VALUES;

    /// Where the packed scales start.
    pub const SCALES: usize = 2;
    /// Bytes of packed scales.
    pub const SCALE_BYTES: usize = 6;
    /// Where the code bytes start.
    pub const QS: usize = 8;

    /// Where scale `s`, 0..64, is in the packed bytes.
    #[inline(always)]
    pub const fn scale_at(s: usize) -> SixBits {
        SixBits {
            low: 2 + s / 2,
            low_shift: s % 2 * 4,
            high: s / 4,
            high_shift: s % 4 * 2,
        }
    }

    /// The 256 codes, 0..16.
    pub fn codes(block: &[u8]) -> [u8; 256] {
        let mut codes = [0; 256];
        for (qs, codes) in block[QS..].chunks(16).zip(codes.chunks_exact_mut(32)) {
            codes.copy_from_slice(&super::nibbles(qs));
        }
        codes
    }

    /// Writes the codes; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 256], block: &mut [u8]) {
        for (qs, codes) in block[QS..].chunks_mut(16).zip(codes.chunks_exact(32)) {
            super::set_nibbles(codes, qs);
        }
    }

    #[inline]
    pub(crate) fn values(block: &[u8], out: &mut [f32]) {
        let d = super::f16_at(block, 0);
        let scales = &block[SCALES..];
        for (c, code) in codes(block).into_iter().enumerate() {
            let at = scale_at(c / 32);
            let scale = (scales[at.low] >> at.low_shift & 0xf)
                | (scales[at.high] >> at.high_shift & 3) << 4;
            out[c] = d * (f32::from(scale) - 32.0) * f32::from(VALUES[usize::from(code)]);
        }
    }
}

/// d · sc · code − dmin · min of Q4_K and Q5_K.
#[inline]
fn values_with_mins(codes: &[u8; 256], block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, mins) = q4_k::scales(block);
    for (c, code) in codes.iter().enumerate() {
        let (sc, min) = (
            d * f32::from(scales[c / 32]),
            dmin * f32::from(mins[c / 32]),
        );
        out[c] = sc * f32::from(*code) - min;
    }
}

/// 256 nibbles from 128 bytes: each 32 bytes hold 32 columns low, then 32 high.
fn runs(qs: &[u8]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (run, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        add_bits(codes, &qs[run / 2 * 32..], run % 2 * 4, 0xf, 0);
    }
    codes
}

/// Writes the low nibbles of 256 codes; the inverse of [`runs`].
fn set_runs(codes: &[u8; 256], qs: &mut [u8]) {
    for (i, byte) in qs[..128].iter_mut().enumerate() {
        let c = i / 32 * 64 + i % 32;
        *byte = (codes[c] & 0xf) | (codes[c + 32] & 0xf) << 4;
    }
}
