//! Numbers of safetensors files as f32.

use crate::safetensors::Dtype;
use sluice_core::kernels::half::{bf16_to_f32, f16_to_f32};

/// Appends the numbers in `bytes` to `x`; only for F32, F16, BF16 and F8_E4M3.
///
/// # Panics
/// For other types: they are refused when the folder is opened.
pub fn decode(dtype: Dtype, bytes: &[u8], x: &mut Vec<f32>) {
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
}
