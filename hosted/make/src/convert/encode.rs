//! Rows of numbers, converted from safetensors types to GGUF types.
//!
//! This is the one place that knows which types can be written: floats here, all others by
//! [`sluice_core::kernels::quantize`]. No type takes a number that is not finite or beyond its range.
#![forbid(unsafe_code)]

use super::safetensors::Dtype;
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use sluice_core::kernels::quantize::{QuantizeError, Quantizer, can_quantize, max_abs};

/// Whether [`encode`] writes this type.
#[must_use]
pub const fn can_encode(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) || can_quantize(ty)
}

/// Appends whole rows to `out`. `x`: (rows, `columns`), row-major f32. Rounding to F16 and BF16 is
/// to nearest, ties to even.
///
/// # Errors
/// [`QuantizeError`], for example for a number that is not finite or out of the type's range.
///
/// # Panics
/// If the row length is not a whole number of blocks of a type that [`can_encode`].
pub fn encode(
    quantizer: Quantizer,
    ty: GgmlType,
    x: &[f32],
    columns: usize,
    out: &mut Vec<u8>,
) -> Result<(), QuantizeError> {
    if let GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 = ty {
        check_floats(ty, x)?;
    }
    match ty {
        GgmlType::F32 => out.extend(x.iter().flat_map(|x| x.to_le_bytes())),
        GgmlType::F16 => out.extend(x.iter().flat_map(|&x| f32_to_f16(x).to_le_bytes())),
        GgmlType::BF16 => out.extend(x.iter().flat_map(|&x| f32_to_bf16(x).to_le_bytes())),
        quantised => {
            let len = quantised.row_bytes(x.len() as u64);
            let len = len.and_then(|len| usize::try_from(len).ok());
            let start = out.len();
            out.resize(start + len.expect("rows are whole blocks"), 0);
            quantizer.quantize_rows(quantised, x, columns, None, &mut out[start..])?;
        }
    }
    Ok(())
}

/// Whether numbers are finite and in the range of a type of floats.
fn check_floats(ty: GgmlType, x: &[f32]) -> Result<(), QuantizeError> {
    let limit = max_abs(ty);
    let is_wrong = |x: &f32| x.is_nan() || x.abs() > limit;
    match x.iter().position(is_wrong) {
        Some(index) if x[index].is_finite() => Err(QuantizeError::ValueTooLarge { ty, index }),
        Some(index) => Err(QuantizeError::ValueNotFinite { index }),
        None => Ok(()),
    }
}

/// Appends the numbers in `bytes` to `x`; only for F32, F16, BF16 and F8_E4M3.
///
/// # Panics
/// For other types: they are refused when the folder is opened.
pub(crate) fn decode(dtype: Dtype, bytes: &[u8], x: &mut Vec<f32>) {
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
        Dtype::F8_E4M3 => x.extend(bytes.iter().map(|&byte| e4m3_to_f32(byte))),
        other => panic!("{other} is refused before"),
    }
}

/// Decodes an F8_E4M3 number: a sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, and all ones is NaN.
fn e4m3_to_f32(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match exponent {
        15 if byte & 7 == 7 => f32::NAN,
        0 => mantissa * 2f32.powi(-9),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_are_numbers() {
        for (byte, x) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(e4m3_to_f32(byte).to_bits(), f32::to_bits(x), "{byte:#x}");
        }
        assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(0xff).is_nan());
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
            encode(Quantizer::detect(), ty, &x, 3, &mut bytes).unwrap();
            decode(dtype, &bytes, &mut back);
            assert_eq!(back, x);
        }
    }

    #[test]
    fn what_cannot_be_quantised_is_an_error() {
        let mut x = [0.5; 64];
        let mut out = Vec::new();
        encode(Quantizer::detect(), GgmlType::Q8_0, &x, 32, &mut out).unwrap();
        assert_eq!(out.len(), 68);
        x[40] = f32::NAN;
        let types = [GgmlType::Q8_0, GgmlType::F32, GgmlType::F16, GgmlType::BF16];
        for ty in types {
            for bad in [f32::NAN, f32::INFINITY] {
                x[40] = bad;
                let error = encode(Quantizer::detect(), ty, &x, 32, &mut out).unwrap_err();
                assert_eq!(error, QuantizeError::ValueNotFinite { index: 40 }, "{ty}");
            }
        }
        x[40] = 1e6;
        let (ty, index) = (GgmlType::F16, 40);
        let error = encode(Quantizer::detect(), ty, &x, 32, &mut out).unwrap_err();
        assert_eq!(error, QuantizeError::ValueTooLarge { ty, index });
        assert!(!can_encode(GgmlType::I32));
    }
}
