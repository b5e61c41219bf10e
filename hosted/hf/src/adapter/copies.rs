//! Whether an adapter's copy of a tensor is the model's own.

use super::whole::WholeTensor;
use crate::safetensors::Dtype;
use sluice::adapter::AdapterLoadError;
use sluice::file::ModelFile;
use sluice_core::gguf::TensorInfo;
use sluice_core::gguf::source::TensorSource as _;
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::kernels::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use sluice_core::kernels::{GgmlType, WeightType};

/// The first row of a copy that is not the model's own; `None` if all are.
///
/// Numbers are equal if they are so in the coarser one of both types. Numbers of a quantized tensor may differ by a step
/// of its type, measured by the largest magnitude among 256 of both.
pub(super) fn first_difference(
    copy: &WholeTensor,
    model: &ModelFile,
    tensor: &TensorInfo<'_>,
) -> Result<Option<usize>, AdapterLoadError> {
    if WeightType::from_ggml(tensor.ty).is_none() {
        let what = format!("is {}, which cannot be compared", tensor.ty);
        return Err(AdapterLoadError::tensor(model.name(), tensor.name, what));
    }
    let n_cols = copy.n_cols();
    let step = (PIECE_LEN / n_cols).max(1);
    let (mut bytes, mut own, mut other) = (Vec::new(), Vec::new(), Vec::new());
    for first in (0..copy.n_rows()).step_by(step) {
        let end = (first + step).min(copy.n_rows());
        copy.read(first..end, &mut other)?;
        let row_bytes = tensor.row_bytes();
        bytes.resize(
            other.len() / n_cols * usize::try_from(row_bytes).unwrap_or(0),
            0,
        );
        let read = model.read(tensor.offset + first as u64 * row_bytes, &mut bytes);
        read.map_err(|error| AdapterLoadError::data(model.name(), tensor.name, error))?;
        own.resize(other.len(), 0.0);
        dequantize_row(tensor.ty, &bytes, &mut own);
        let mut rows = own.chunks_exact(n_cols).zip(other.chunks_exact(n_cols));
        if let Some(row) =
            rows.position(|(own, other)| !are_equal(own, other, tensor.ty, copy.dtype()))
        {
            return Ok(Some(first + row));
        }
    }
    Ok(None)
}

/// Numbers compared at once.
const PIECE_LEN: usize = 1 << 18;

#[expect(clippy::float_cmp, reason = "copies have the same numbers")]
fn are_equal(own: &[f32], copy: &[f32], ty: GgmlType, dtype: Dtype) -> bool {
    let rounded = |x: f32| match dtype {
        Dtype::F16 => f16_to_f32(f32_to_f16(x)),
        Dtype::BF16 => bf16_to_f32(f32_to_bf16(x)),
        _ => x,
    };
    let stored = |x: f32| match ty {
        GgmlType::F16 => f16_to_f32(f32_to_f16(x)),
        GgmlType::BF16 => bf16_to_f32(f32_to_bf16(x)),
        _ => x,
    };
    if matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
        let mut pairs = own.iter().zip(copy);
        return pairs.all(|(&own, &copy)| rounded(own) == copy || own == stored(copy));
    }
    let n_bits = ty.row_bytes(BLOCK_LEN as u64).unwrap_or(0) * 8 / BLOCK_LEN as u64;
    // Steps of 4-bit floats are wider where numbers are large.
    let wider = if matches!(ty, GgmlType::MXFP4 | GgmlType::NVFP4) {
        2.0
    } else {
        1.0
    };
    #[expect(clippy::cast_precision_loss, reason = "below 2^9")]
    let step = wider * 2.0 / ((1u64 << n_bits.min(8)) - 1).max(1) as f32;
    let blocks = own.chunks(BLOCK_LEN).zip(copy.chunks(BLOCK_LEN));
    blocks.into_iter().all(|(own, copy)| {
        let largest = own.iter().chain(copy).fold(0f32, |max, x| max.max(x.abs()));
        let mut pairs = own.iter().zip(copy);
        pairs.all(|(own, copy)| (own - copy).abs() <= step * largest)
    })
}

/// The longest block of any type.
const BLOCK_LEN: usize = 256;

#[cfg(test)]
mod tests {
    use super::super::turn::fits;
    use super::*;
    use sluice_core::kernels::quantize::Quantizer;

    fn numbers(n: usize) -> Vec<f32> {
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let number = |i: usize| (i as f32 * 1.7).sin() * 0.05;
        (0..n).map(number).collect()
    }

    #[test]
    fn a_rounded_copy_is_the_models_own_and_a_changed_one_is_not() {
        let x = numbers(512);
        let halves: Vec<f32> = x.iter().map(|x| f16_to_f32(f32_to_f16(*x))).collect();
        assert!(are_equal(&x, &halves, GgmlType::F32, Dtype::F16));
        assert!(are_equal(&halves, &x, GgmlType::F16, Dtype::F32));
        assert!(!are_equal(&x, &halves, GgmlType::F32, Dtype::F32));
        let mut changed = halves.clone();
        changed[300] *= 1.01;
        assert!(!are_equal(&halves, &changed, GgmlType::F16, Dtype::F16));
    }

    #[test]
    fn what_a_type_rounds_away_is_equal_and_a_trained_row_is_not() {
        for ty in [
            GgmlType::Q8_0,
            GgmlType::Q6_K,
            GgmlType::Q5_K,
            GgmlType::Q4_K,
            GgmlType::Q4_0,
            GgmlType::IQ4_NL,
            GgmlType::Q3_K,
            GgmlType::Q2_K,
        ] {
            let x = numbers(512);
            let mut bytes = vec![0; fits(ty.row_bytes(512).expect("whole blocks"))];
            Quantizer::detect()
                .quantize_rows(ty, &x, 512, None, &mut bytes)
                .expect("of whole blocks");
            let mut own = vec![0.0; 512];
            dequantize_row(ty, &bytes, &mut own);
            assert!(are_equal(&own, &x, ty, Dtype::BF16), "{ty}");
            let trained: Vec<f32> = x.iter().map(|x| x * 5.0).collect();
            assert!(!are_equal(&own, &trained, ty, Dtype::BF16), "{ty}");
            assert!(!are_equal(&[0.0; 512], &x, ty, Dtype::BF16), "{ty}");
        }
    }
}
