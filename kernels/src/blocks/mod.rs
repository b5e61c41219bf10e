//! Blocks of the quantised types as GGUF files store them: fields, codes and values.
//!
//! Each type is a record of scales and a list of small unsigned *codes*, one per column. Panels
//! ([`crate::panel`]) rearrange the same codes and scales; nothing is rounded on the way.
//! Layouts: `ggml-common.h` of llama.cpp; values equal ggml's own dequantisation bit for bit.

mod codebook;
pub(crate) mod codebooks;
pub mod lane;
mod large;
mod small;
mod ternary;

pub use large::{iq4_xs, q2_k, q3_k, q4_k, q5_k, q6_k};
pub use small::{iq4_nl, mxfp4, nvfp4, q4_0, q4_1, q5_0, q5_1, q8_0};

use crate::GgmlType;
use crate::bytes::u16_at;
use crate::cpu::with_avx2;
use crate::half::{bf16_to_f32, f16_to_f32};
use static_assertions::const_assert_eq;

/// The values of one block of type `ty` (shape: `ty.block_len()`), bit-equal to ggml's. What
/// follows a block in `block`, and its values in `out`, is left alone.
///
/// # Panics
/// As [`dequantize_row`], or if a slice is shorter than a block.
pub fn dequantize_block(ty: GgmlType, block: &[u8], out: &mut [f32]) {
    dequantize_row(ty, &block[..ty.block_bytes()], &mut out[..ty.block_len()]);
}

macro_rules! value_functions {
    ($($ty:ident $values:expr;)*) => {
        /// The values of a row of whole blocks of type `ty` (any number of them), bit-equal to
        /// ggml's: `row` in GGUF's bytes, `out` one f32 per column.
        ///
        /// # Panics
        /// If `ty` is not a [`crate::WeightType`], `out` is not a whole number of blocks, or
        /// `row` is not as long as `out` demands.
        pub fn dequantize_row(ty: GgmlType, row: &[u8], out: &mut [f32]) {
            assert!(out.len().is_multiple_of(ty.block_len()));
            assert_eq!(out.len() / ty.block_len() * ty.block_bytes(), row.len());
            match ty {
                GgmlType::F16 => halves(row, out),
                $(GgmlType::$ty => each::<
                    { GgmlType::$ty.block_bytes() },
                    { GgmlType::$ty.block_len() },
                >(row, out, $values),)*
                _ => panic!("there are no kernels for type {ty}"),
            }
        }
    };
}

value_functions! {
    F32 |block, out| {
        out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    };
    BF16 |block, out| out[0] = bf16_to_f32(u16_at(block, 0));
    Q8_0 q8_0::values;
    Q4_0 q4_0::values;
    Q4_1 q4_1::values;
    Q5_0 q5_0::values;
    Q5_1 q5_1::values;
    IQ4_NL iq4_nl::values;
    MXFP4 mxfp4::values;
    NVFP4 nvfp4::values;
    Q2_K q2_k::values;
    Q3_K q3_k::values;
    Q4_K q4_k::values;
    Q5_K q5_k::values;
    Q6_K q6_k::values;
    IQ4_XS iq4_xs::values;
    IQ2_XXS codebook::iq2_xxs;
    IQ2_XS codebook::iq2_xs;
    IQ2_S codebook::iq2_s;
    IQ3_XXS codebook::iq3_xxs;
    IQ3_S codebook::iq3_s;
    IQ1_S codebook::iq1_s;
    IQ1_M codebook::iq1_m;
    TQ1_0 ternary::tq1_0;
    TQ2_0 ternary::tq2_0;
    LANE3 |block, out| lane::values(3, block, out);
    LANE5 |block, out| lane::values(5, block, out);
    LANE7 |block, out| lane::values(7, block, out);
}

/// `values` of each block of `BYTES` bytes and `LEN` columns. Both are constants so that, with
/// `values` inlined, its indices are checked when it is compiled and not per block.
#[inline(always)]
fn each<const BYTES: usize, const LEN: usize>(
    row: &[u8],
    out: &mut [f32],
    values: impl Fn(&[u8], &mut [f32]),
) {
    let blocks = row.as_chunks::<BYTES>().0.iter();
    for (block, out) in blocks.zip(out.as_chunks_mut::<LEN>().0) {
        values(block, out);
    }
}

/// Converts numbers in half precision, which may be many: adapters' files have them.
fn halves(row: &[u8], out: &mut [f32]) {
    #[inline(always)]
    fn convert(row: &[u8], out: &mut [f32]) {
        for (half, out) in row.as_chunks::<2>().0.iter().zip(out) {
            *out = f16_to_f32(u16::from_le_bytes(*half));
        }
    }
    with_avx2!(convert(row: &[u8], out: &mut [f32]))
}

/// The half-precision number at `at`.
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16_at(block, at))
}

/// Where a scale of six bits is in packed bytes: its lower four bits, and its upper two.
#[derive(Clone, Copy, Debug)]
pub struct SixBits {
    /// Byte of the lower bits.
    pub low: usize,
    /// Their first bit in it.
    pub low_shift: usize,
    /// Byte of the upper bits.
    pub high: usize,
    /// Their first bit in it.
    pub high_shift: usize,
}

/// ORs `(byte >> shift) & mask`, shifted up by `up`, into each code of a run of columns.
#[inline(always)]
fn add_bits(codes: &mut [u8], bytes: &[u8], shift: usize, mask: u8, up: usize) {
    for (code, byte) in codes.iter_mut().zip(bytes) {
        *code |= (byte >> shift & mask) << up;
    }
}

/// 32 codes from 16 bytes: byte j holds column j (low nibble) and j + 16 (high).
#[inline(always)]
fn nibbles(qs: &[u8]) -> [u8; 32] {
    let mut codes = [0; 32];
    if let (Some(qs), [low, high]) = (qs.first_chunk::<16>(), codes.as_chunks_mut().0) {
        *low = qs.map(|q| q & 0xf);
        *high = qs.map(|q| q >> 4);
    }
    codes
}

/// Writes the low nibbles of 32 codes; the inverse of [`nibbles`].
fn set_nibbles(codes: &[u8], qs: &mut [u8]) {
    for j in 0..16 {
        qs[j] = (codes[j] & 0xf) | (codes[j + 16] & 0xf) << 4;
    }
}

/// 256 codes of two bits from 64 bytes: each 32 bytes hold four runs of 32 columns.
fn pairs(qs: &[u8]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (run, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        add_bits(codes, &qs[run / 4 * 32..], run % 4 * 2, 3, 0);
    }
    codes
}

/// Writes the low two bits of 256 codes; the inverse of [`pairs`].
fn set_pairs(codes: &[u8; 256], qs: &mut [u8]) {
    for (i, byte) in qs[..64].iter_mut().enumerate() {
        let c = i / 32 * 128 + i % 32;
        *byte = (0..4).fold(0, |bits, q| bits | (codes[c + 32 * q] & 3) << (2 * q));
    }
}

// Where the last field starts, and its bytes, make the block that GGUF files have.
const_assert_eq!(q8_0::QS + 32, GgmlType::Q8_0.block_bytes());
const_assert_eq!(q4_0::QS + 16, GgmlType::Q4_0.block_bytes());
const_assert_eq!(q4_1::QS + 16, GgmlType::Q4_1.block_bytes());
const_assert_eq!(q5_0::QH + 4 + 16, GgmlType::Q5_0.block_bytes());
const_assert_eq!(q5_1::QH + 4 + 16, GgmlType::Q5_1.block_bytes());
const_assert_eq!(mxfp4::QS + 16, GgmlType::MXFP4.block_bytes());
const_assert_eq!(nvfp4::QS + 32, GgmlType::NVFP4.block_bytes());
const_assert_eq!(lane::block_bytes(3), GgmlType::LANE3.block_bytes());
const_assert_eq!(lane::block_bytes(5), GgmlType::LANE5.block_bytes());
const_assert_eq!(lane::block_bytes(7), GgmlType::LANE7.block_bytes());
const_assert_eq!(q2_k::D + 4, GgmlType::Q2_K.block_bytes());
const_assert_eq!(q3_k::D + 2, GgmlType::Q3_K.block_bytes());
const_assert_eq!(q4_k::QS + 128, GgmlType::Q4_K.block_bytes());
const_assert_eq!(q5_k::QS + 128, GgmlType::Q5_K.block_bytes());
const_assert_eq!(q6_k::D + 2, GgmlType::Q6_K.block_bytes());
const_assert_eq!(iq4_xs::QS + 128, GgmlType::IQ4_XS.block_bytes());
