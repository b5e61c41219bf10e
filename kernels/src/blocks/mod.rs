//! Blocks of the quantised types as GGUF files store them: fields, codes and values.
//!
//! Each type is a record of scales and a list of small unsigned *codes*, one per column. Panels
//! ([`crate::panel`]) rearrange the same codes and scales; nothing is rounded on the way.
//! Layouts: `ggml-common.h` of llama.cpp; values equal ggml's own dequantisation bit for bit.

mod large;
mod small;

pub use large::{iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k};
pub use small::{iq4_nl, mxfp4, q4_0, q4_1, q5_0, q5_1, q8_0};

use crate::GgmlType;
use crate::bytes::u16_at;
use crate::half::{bf16_to_f32, f16_to_f32};

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
        GgmlType::F16 => out[0] = f16_at(block, 0),
        GgmlType::BF16 => out[0] = bf16_to_f32(u16_at(block, 0)),
        GgmlType::Q8_0 => q8_0::values(block, out),
        GgmlType::Q4_0 => q4_0::values(block, out),
        GgmlType::Q4_1 => q4_1::values(block, out),
        GgmlType::Q5_0 => q5_0::values(block, out),
        GgmlType::Q5_1 => q5_1::values(block, out),
        GgmlType::IQ4_NL => iq4_nl::values(block, out),
        GgmlType::MXFP4 => mxfp4::values(block, out),
        GgmlType::Q2_K => q2_k::values(block, out),
        GgmlType::Q3_K => q3_k::values(block, out),
        GgmlType::Q4_K => q4_k::values(block, out),
        GgmlType::Q5_K => q5_k::values(block, out),
        GgmlType::Q6_K => q6_k::values(block, out),
        GgmlType::IQ4_XS => iq4_xs::values(block, out),
        _ => panic!("there are no kernels for type {ty}"),
    }
}

/// The half-precision number at `at`.
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16_at(block, at))
}

/// 32 codes from 16 bytes: byte j holds column j (low nibble) and j + 16 (high).
fn nibbles(qs: &[u8]) -> [u8; 32] {
    core::array::from_fn(|c| (qs[c % 16] >> (4 * (c / 16))) & 0xf)
}

/// Writes the low nibbles of 32 codes; the inverse of [`nibbles`].
fn set_nibbles(codes: &[u8], qs: &mut [u8]) {
    for j in 0..16 {
        qs[j] = (codes[j] & 0xf) | (codes[j + 16] & 0xf) << 4;
    }
}

/// The values of whole blocks of type `ty`.
///
/// # Panics
/// As [`dequantize_block`].
pub fn dequantize_row(ty: GgmlType, row: &[u8], out: &mut [f32]) {
    for (block, out) in row
        .chunks_exact(ty.block_bytes())
        .zip(out.chunks_exact_mut(ty.block_len()))
    {
        dequantize_block(ty, block, out);
    }
}
