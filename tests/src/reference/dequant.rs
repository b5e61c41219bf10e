//! Block formats of ggml, dequantised to f32 exactly as ggml does it.
//!
//! Source of the layouts: `ggml-common.h` and the `dequantize_row_*` functions of `ggml-quants.c`
//! in llama.cpp. Every product and sum is an f32 operation rounded on its own, in ggml's order.
//!
//! The types of most files are written out here, apart from the kernels' code. For the others
//! (four- and five-bit types with mins, 2 and 3 bits, codebooks, ternary, FP4) the kernels'
//! `dequantize_row` answers: the test below holds its output against ggml's, too.

use super::Unreadable;
use sluice_core::kernels::{GgmlType, WeightType, blocks};

/// The first `elements` elements in `data` of ggml type number `type_id`.
///
/// # Errors
/// [`Unreadable`] for a type without weights, a number of elements that is not a whole number of
/// blocks, or too few bytes.
pub fn dequantise(type_id: u32, data: &[u8], elements: usize) -> Result<Vec<f32>, Unreadable> {
    let mut out = vec![0.0; elements];
    if let Some(format) = FORMATS.iter().find(|format| format.type_id == type_id) {
        let blocks = whole_blocks(data, elements, format.block_len, format.block_bytes)?;
        let outs = out.chunks_exact_mut(format.block_len);
        for (block, out) in blocks.chunks_exact(format.block_bytes).zip(outs) {
            (format.dequantise)(block, out);
        }
        return Ok(out);
    }
    let ty = GgmlType::from_id(type_id)
        .filter(|ty| WeightType::from_ggml(*ty).is_some())
        .ok_or_else(|| Unreadable::new(format!("ggml type {type_id} is not supported")))?;
    let blocks = whole_blocks(data, elements, ty.block_len(), ty.block_bytes())?;
    blocks::dequantize_row(ty, blocks, &mut out);
    Ok(out)
}

/// The bytes of `elements` elements at the start of `data`.
fn whole_blocks(
    data: &[u8],
    elements: usize,
    block_len: usize,
    block_bytes: usize,
) -> Result<&[u8], Unreadable> {
    if !elements.is_multiple_of(block_len) {
        return Err(Unreadable::new(format!(
            "{elements} elements are not whole blocks"
        )));
    }
    let bytes_needed = elements / block_len * block_bytes;
    data.get(..bytes_needed)
        .ok_or_else(|| Unreadable::new(format!("{bytes_needed} bytes reach past the file")))
}

/// The value of a half-precision number; exact.
#[must_use]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from((bits >> 10) & 31);
    let fraction = f32::from(bits & 1023);
    sign * match exponent {
        0 => fraction * (-24f32).exp2(),
        31 if fraction > 0.0 => f32::NAN,
        31 => f32::INFINITY,
        // Powers of two multiply without rounding.
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

struct Format {
    type_id: u32,
    block_len: usize,
    block_bytes: usize,
    dequantise: fn(&[u8], &mut [f32]),
}

const FORMATS: &[Format] = &[
    Format {
        type_id: 0,
        block_len: 1,
        block_bytes: 4,
        dequantise: f32_value,
    },
    Format {
        type_id: 1,
        block_len: 1,
        block_bytes: 2,
        dequantise: f16,
    },
    Format {
        type_id: 2,
        block_len: 32,
        block_bytes: 18,
        dequantise: q4_0,
    },
    Format {
        type_id: 8,
        block_len: 32,
        block_bytes: 34,
        dequantise: q8_0,
    },
    Format {
        type_id: 12,
        block_len: 256,
        block_bytes: 144,
        dequantise: q4_k,
    },
    Format {
        type_id: 13,
        block_len: 256,
        block_bytes: 176,
        dequantise: q5_k,
    },
    Format {
        type_id: 14,
        block_len: 256,
        block_bytes: 210,
        dequantise: q6_k,
    },
    Format {
        type_id: 23,
        block_len: 256,
        block_bytes: 136,
        dequantise: iq4_xs,
    },
    Format {
        type_id: 30,
        block_len: 1,
        block_bytes: 2,
        dequantise: bf16,
    },
];

fn half_at(block: &[u8], offset: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([block[offset], block[offset + 1]]))
}

fn f32_value(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
}

fn f16(block: &[u8], out: &mut [f32]) {
    out[0] = half_at(block, 0);
}

fn bf16(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_bits(u32::from(u16::from_le_bytes([block[0], block[1]])) << 16);
}

/// d (f16), 32 signed bytes.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (out, &q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(q.cast_signed());
    }
}

/// d (f16), 16 bytes: low nibbles are elements 0..16, high nibbles 16..32, all offset by 8.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (i, &q) in block[2..].iter().enumerate() {
        out[i] = (f32::from(q & 15) - 8.0) * d;
        out[i + 16] = (f32::from(q >> 4) - 8.0) * d;
    }
}

/// d, dmin (f16), 8 six-bit scales and mins in 12 bytes, 128 bytes of nibbles.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let nibbles = &block[16..];
    for (sub_block, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = k_scale_and_min(block, sub_block);
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(k_nibble(nibbles, sub_block, i)) - min;
        }
    }
}

/// As Q4_K, with a fifth bit of every element in 32 bytes before the nibbles.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (high_bits, nibbles) = block[16..].split_at(32);
    for (sub_block, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = k_scale_and_min(block, sub_block);
        for (i, out) in out.iter_mut().enumerate() {
            let high = (high_bits[i] >> sub_block) & 1;
            *out = scale * f32::from(k_nibble(nibbles, sub_block, i) + 16 * high) - min;
        }
    }
}

/// Scale and min of a sub-block of 32 in Q4_K and Q5_K.
///
/// The low 4 or 6 bits of sub-blocks 4..8 share bytes 8..12 of the twelve; their two top bits
/// are the top bits of the bytes of sub-blocks 0..4.
fn k_scale_and_min(block: &[u8], sub_block: usize) -> (f32, f32) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let s = &block[4..16];
    let (scale, min) = if sub_block < 4 {
        (s[sub_block] & 63, s[sub_block + 4] & 63)
    } else {
        let low = s[sub_block + 4];
        let (top_of_scale, top_of_min) = (s[sub_block - 4] >> 6, s[sub_block] >> 6);
        (
            (low & 15) | (top_of_scale << 4),
            (low >> 4) | (top_of_min << 4),
        )
    };
    (d * f32::from(scale), dmin * f32::from(min))
}

/// Two sub-blocks share 32 bytes: the even one has the low nibbles.
fn k_nibble(nibbles: &[u8], sub_block: usize, i: usize) -> u8 {
    let byte = nibbles[sub_block / 2 * 32 + i];
    if sub_block.is_multiple_of(2) {
        byte & 15
    } else {
        byte >> 4
    }
}

/// 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d (f16); offset by 32.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    let d = half_at(d, 0);
    for (i, out) in out.iter_mut().enumerate() {
        // Each half of 128 has four runs of 32: nibbles low, low, high, high.
        let (half, run, at) = (i / 128, i % 128 / 32, i % 32);
        let byte = low[half * 64 + run % 2 * 32 + at];
        let nibble = if run < 2 { byte & 15 } else { byte >> 4 };
        let pair = (high[half * 32 + at] >> (2 * run)) & 3;
        let q = f32::from(nibble | (pair << 4)) - 32.0;
        *out = d * f32::from(scales[i / 16].cast_signed()) * q;
    }
}

/// d (f16), eight six-bit scales (upper two bits in a u16, lower four in 4 bytes) offset by 32,
/// then 16 bytes for each 32 elements: indices of [`IQ4_STEPS`], the low nibbles first.
fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let upper = u16::from_le_bytes([block[2], block[3]]);
    for (sub_block, out) in out.chunks_exact_mut(32).enumerate() {
        let top = f32::from((upper >> (2 * sub_block)) & 3);
        let pair = block[4 + sub_block / 2];
        let low = if sub_block.is_multiple_of(2) {
            pair & 15
        } else {
            pair >> 4
        };
        let scale = d * (16.0 * top + f32::from(low) - 32.0);
        for i in 0..16 {
            let byte = block[8 + 16 * sub_block + i];
            out[i] = scale * IQ4_STEPS[usize::from(byte & 15)];
            out[i + 16] = scale * IQ4_STEPS[usize::from(byte >> 4)];
        }
    }
}

/// The steps of the IQ4 types, `kvalues_iq4nl` in ggml.
const IQ4_STEPS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

#[cfg(test)]
mod tests {
    use super::{GgmlType, WeightType, dequantise, f16_to_f32};

    /// `fixtures/quant` was quantised and dequantised by ggml.
    #[test]
    fn every_type_dequantises_as_in_ggml() {
        let read = |name: String| {
            let path = crate::fixture("quant").join(name);
            std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let types = WeightType::ALL.into_iter().map(WeightType::ggml);
        // Lanes are ours alone.
        for ty in types.filter(|ty| *ty != GgmlType::F32 && !ty.is_lane()) {
            let (type_id, name) = (ty as u32, ty.name());
            let mut quantised = read(format!("{name}.q"));
            let expected_bytes = read(format!("{name}.f32"));
            // The values of the first rows.
            let elements = 16 * 256;
            quantised.truncate(elements / ty.block_len() * ty.block_bytes());
            let expected = dequantise(0, &expected_bytes, elements).expect("f32 reads as f32");
            let actual = dequantise(type_id, &quantised, elements).expect("whole blocks");
            for (i, (a, e)) in actual.iter().zip(&expected).enumerate() {
                assert_eq!(a.to_bits(), e.to_bits(), "{name} element {i}: {a} {e}");
            }
            let short = dequantise(type_id, &quantised[..quantised.len() - 1], elements);
            assert!(short.is_err(), "{name}");
        }
    }

    #[test]
    fn half_precision_values() {
        let cases = [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0400, 6.103_515_6e-5),
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0xfc00, f32::NEG_INFINITY),
        ];
        for (bits, value) in cases {
            assert_eq!(f16_to_f32(bits).to_bits(), value.to_bits(), "{bits:#x}");
        }
        assert!(f16_to_f32(0x7e00).is_nan());
        assert_eq!(f16_to_f32(0x8000).to_bits(), (-0.0f32).to_bits());
    }
}
