//! Blocks of the quantised types as GGUF files store them: fields, codes and values.
//!
//! Each type is a record of scales and a list of small unsigned *codes*, one per column. Panels
//! ([`crate::panel`]) rearrange the same codes and scales; nothing is rounded on the way.
//! Layouts: `ggml-common.h` of llama.cpp; values equal ggml's own dequantisation bit for bit.

use crate::GgmlType;
use crate::bytes::u16_at;
use crate::half::{bf16_to_f32, f16_to_f32};

/// Q8_0: `d` f16, then 32 signed bytes. Value = d · q.
pub mod q8_0 {
    /// Where the 32 signed codes start.
    pub const QS: usize = 2;
}

/// Q4_0: `d` f16, then 16 bytes; byte j holds column j (low nibble) and j + 16 (high).
/// Value = d · (code − 8).
pub mod q4_0 {
    /// Where the 16 code bytes start.
    pub const QS: usize = 2;

    /// The 32 codes, 0..16, of a block.
    pub fn codes(block: &[u8]) -> [u8; 32] {
        core::array::from_fn(|c| (block[QS + c % 16] >> (4 * (c / 16))) & 0xf)
    }

    /// Writes the 32 codes into a block; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 32], block: &mut [u8]) {
        for j in 0..16 {
            block[QS + j] = codes[j] | codes[j + 16] << 4;
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
        core::array::from_fn(|c| (block[QS + c / 64 * 32 + c % 32] >> (4 * (c / 32 % 2))) & 0xf)
    }

    /// Writes the codes; the inverse of [`codes`].
    pub fn set_codes(codes: &[u8; 256], block: &mut [u8]) {
        for i in 0..128 {
            let c = i / 32 * 64 + i % 32;
            block[QS + i] = codes[c] | codes[c + 32] << 4;
        }
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
        core::array::from_fn(|c| {
            let (half, quarter, l) = (c / 128, c % 128 / 32, c % 32);
            let low = block[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2));
            let high = block[128 + 32 * half + l] >> (2 * quarter);
            (low & 0xf) | (high & 3) << 4
        })
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
}

/// The values of one block of type `ty` (shape: `ty.block_len()`), bit-equal to ggml's.
///
/// # Panics
/// If `ty` has no panels here (see [`crate::WeightType`]), or a slice is shorter than a block.
pub fn dequantize_block(ty: GgmlType, block: &[u8], out: &mut [f32]) {
    let (block, out) = (&block[..ty.block_bytes()], &mut out[..ty.block_len()]);
    match ty {
        GgmlType::F32 => {
            out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        }
        GgmlType::F16 => out[0] = f16_to_f32(u16_at(block, 0)),
        GgmlType::BF16 => out[0] = bf16_to_f32(u16_at(block, 0)),
        GgmlType::Q8_0 => {
            let d = f16_to_f32(u16_at(block, 0));
            for (x, q) in out.iter_mut().zip(&block[q8_0::QS..]) {
                *x = d * f32::from(q.cast_signed());
            }
        }
        GgmlType::Q4_0 => {
            let d = f16_to_f32(u16_at(block, 0));
            for (x, code) in out.iter_mut().zip(q4_0::codes(block)) {
                *x = d * (f32::from(code) - 8.0);
            }
        }
        GgmlType::Q4_K => {
            let (d, dmin) = (f16_to_f32(u16_at(block, 0)), f16_to_f32(u16_at(block, 2)));
            let (scales, mins) = q4_k::scales(block);
            for (c, code) in q4_k::codes(block).into_iter().enumerate() {
                let (sc, min) = (
                    d * f32::from(scales[c / 32]),
                    dmin * f32::from(mins[c / 32]),
                );
                out[c] = sc * f32::from(code) - min;
            }
        }
        GgmlType::Q6_K => {
            let d = f16_to_f32(u16_at(block, q6_k::D));
            for (c, code) in q6_k::codes(block).into_iter().enumerate() {
                let scale = f32::from(block[q6_k::SCALES + c / 16].cast_signed());
                out[c] = d * scale * (f32::from(code) - 32.0);
            }
        }
        _ => panic!("there are no kernels for type {ty}"),
    }
}
