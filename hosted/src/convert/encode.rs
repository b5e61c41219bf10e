//! Rows of numbers, from the types of safetensors to those of GGUF.
//!
//! This is the one place that knows which types can be written: a quantiser joins by an arm in
//! [`can_encode`] and [`encode`].
#![forbid(unsafe_code)]

use super::safetensors::Dtype;
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Whether [`encode`] writes this type.
#[must_use]
pub const fn can_encode(ty: GgmlType) -> bool {
    use GgmlType::{BF16, F16, F32, Q8_0};
    matches!(ty, F32 | F16 | BF16 | Q8_0)
}

/// Appends whole rows to `out`. `x`: one or more rows of any shape, whose length is a whole number
/// of blocks of the type. Rounding is to nearest, ties to even (F16, BF16).
///
/// # Panics
/// If the type is none that [`can_encode`], or `x` is no whole number of blocks.
pub fn encode(ty: GgmlType, x: &[f32], out: &mut Vec<u8>) {
    match ty {
        GgmlType::F32 => out.extend(x.iter().flat_map(|x| x.to_le_bytes())),
        GgmlType::F16 => out.extend(x.iter().flat_map(|&x| f32_to_f16(x).to_le_bytes())),
        GgmlType::BF16 => out.extend(x.iter().flat_map(|&x| f32_to_bf16(x).to_le_bytes())),
        GgmlType::Q8_0 => {
            let (blocks, rest) = x.as_chunks::<32>();
            assert!(rest.is_empty());
            blocks.iter().for_each(|block| encode_q8_0(block, out));
        }
        other => panic!("{other} cannot be written"),
    }
}

/// One block: a half-precision scale and 32 bytes, as ggml's reference rounds them
/// (`quantize_row_q8_0_ref`): to nearest, ties away from zero.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the quotient is at most 127"
)]
fn encode_q8_0(block: &[f32; 32], out: &mut Vec<u8>) {
    let max = block.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let d = max / 127.0;
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    out.extend(f32_to_f16(d).to_le_bytes());
    let quants = block.iter().map(|x| (x * inverse).round() as i8);
    out.extend(quants.flat_map(i8::to_le_bytes));
}

/// Appends the numbers in `bytes` to `x`; only for F32, F16 and BF16.
///
/// # Panics
/// For other types: they are refused when the folder is opened.
pub(super) fn decode(dtype: Dtype, bytes: &[u8], x: &mut Vec<f32>) {
    let halves = || {
        bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|b| u16::from_le_bytes(*b))
    };
    match dtype {
        Dtype::F32 => {
            let numbers = bytes.as_chunks::<4>().0.iter();
            x.extend(numbers.map(|b| f32::from_le_bytes(*b)));
        }
        Dtype::F16 => x.extend(halves().map(f16_to_f32)),
        Dtype::BF16 => x.extend(halves().map(bf16_to_f32)),
        other => panic!("{other} is refused before"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q8_0_rounds_as_ggml_does() {
        let mut x = [0.0; 32];
        // The scale is 1, so quotients are exact: ties go away from zero.
        x[..6].copy_from_slice(&[127.0, -127.0, 0.5, -0.5, 1.5, 2.49]);
        let mut out = Vec::new();
        encode(GgmlType::Q8_0, &x, &mut out);
        assert_eq!(out.len(), 34);
        assert_eq!(out[..2], 0x3c00u16.to_le_bytes());
        let quants: Vec<i8> = out[2..8].iter().map(|&b| i8::from_le_bytes([b])).collect();
        assert_eq!(quants, [127, -127, 1, -1, 2, 2]);
        out.clear();
        encode(GgmlType::Q8_0, &[0.0; 32], &mut out);
        assert_eq!(out, [0; 34]);
    }

    #[test]
    fn floats_survive() {
        let (x, mut back, mut bytes) = ([1.0, -0.5, 3.140_625], Vec::new(), Vec::new());
        let types = [
            (GgmlType::F32, Dtype::F32),
            (GgmlType::F16, Dtype::F16),
            (GgmlType::BF16, Dtype::BF16),
        ];
        for (ty, dtype) in types {
            bytes.clear();
            back.clear();
            encode(ty, &x, &mut bytes);
            decode(dtype, &bytes, &mut back);
            assert_eq!(back, x);
        }
    }
}
