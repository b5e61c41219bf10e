//! Rows of numbers, converted from safetensors types to GGUF types.
//!
//! This is the one place that knows which types can be written: floats here, all others by
//! [`sluice_core::kernels::quantize`]. No type takes a number that is not finite or beyond its range.

use sluice_core::kernels::GgmlType;
use sluice_core::kernels::half::{f32_to_bf16, f32_to_f16};
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

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_hf::decode;
    use sluice_hf::safetensors::Dtype;

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
