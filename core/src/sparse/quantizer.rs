//! The predecessor's quantisers of 3, 5 and 7 bits: a scale for each block, codes in containers of 4 or 8 bits.
//!
//! The scale is `s = max|x| / m` with m = 3, 15 or 63 (1 for a block of zeros), a code `round(x / s)`, half away from
//! zero. The lowest code is never made. Streams are stored in blocks of true 3, 5 and 7 bits instead.

use super::error::{check_finite, check_len, setting};
use super::{PrecisionLane, SparsityError};

/// Quantises rows in blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneQuantizer {
    lane: PrecisionLane,
    block_size: usize,
}

impl LaneQuantizer {
    /// For a lane of codes.
    ///
    /// # Errors
    /// A block of no elements; [`PrecisionLane::Float32`], which has no codes.
    pub const fn for_lane(lane: PrecisionLane, block_size: usize) -> Result<Self, SparsityError> {
        if block_size == 0 {
            return Err(setting("block_size", 0.0, "at least 1"));
        }
        if matches!(lane, PrecisionLane::Float32) {
            return Err(setting("lane bits", 32.0, "3, 5 or 7"));
        }
        Ok(Self { lane, block_size })
    }

    /// The lane.
    #[must_use]
    pub const fn lane(&self) -> PrecisionLane {
        self.lane
    }

    /// Elements of a block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks of `n` values: the number of scales. The last one may be short.
    #[must_use]
    pub const fn n_blocks(&self, n: usize) -> usize {
        n.div_ceil(self.block_size)
    }

    /// Writes the codes (one for each value) and the scales (one for each block).
    ///
    /// # Errors
    /// Lengths that do not go together; a value that is not finite.
    pub fn quantize(
        &self,
        values: &[f32],
        scales: &mut [f32],
        codes: &mut [i8],
    ) -> Result<(), SparsityError> {
        check_len("codes", codes.len(), values.len())?;
        check_len("scales", scales.len(), self.n_blocks(values.len()))?;
        check_finite("values", values)?;
        let (lowest, highest) = self.lane.value_range();
        let blocks = values.chunks(self.block_size);
        for ((block, codes), scale) in blocks.zip(codes.chunks_mut(self.block_size)).zip(scales) {
            let largest = block.iter().fold(0f32, |most, x| most.max(x.abs()));
            *scale = if largest > 0.0 {
                largest / highest as f32
            } else {
                1.0
            };
            for (code, x) in codes.iter_mut().zip(block) {
                // A scale that underflows to zero divides to infinity or NaN: `as` makes a code of it.
                *code = clamp(libm::roundf(x / *scale), lowest, highest);
            }
        }
        Ok(())
    }

    /// `scale · code` for each code, or the entry `code + 4` of `lut` for codes of 3 bits.
    ///
    /// # Errors
    /// Lengths that do not go together; a table for another lane than 3 bits.
    pub fn dequantize(
        &self,
        codes: &[i8],
        scales: &[f32],
        lut: Option<&[f32; 8]>,
        out: &mut [f32],
    ) -> Result<(), SparsityError> {
        check_len("out", out.len(), codes.len())?;
        check_len("scales", scales.len(), self.n_blocks(codes.len()))?;
        if lut.is_some() && self.lane != PrecisionLane::Bit3 {
            let bits = f64::from(self.lane.bits());
            return Err(setting("lane bits", bits, "3: a table has 8 entries"));
        }
        let blocks = codes.chunks(self.block_size);
        for ((codes, out), scale) in blocks.zip(out.chunks_mut(self.block_size)).zip(scales) {
            for (x, code) in out.iter_mut().zip(codes) {
                *x = match lut {
                    Some(lut) => lut[(i32::from(*code) + 4).clamp(0, 7).unsigned_abs() as usize],
                    None => f32::from(*code) * scale,
                };
            }
        }
        Ok(())
    }
}

/// Packs codes of 3 bits two to a byte, the first in the low half; a block of an odd size ends with half a byte.
///
/// # Errors
/// A length that is not [`packed_len`].
pub fn pack_nibbles(
    codes: &[i8],
    block_size: usize,
    bytes: &mut [u8],
) -> Result<(), SparsityError> {
    check_len("bytes", bytes.len(), packed_len(codes.len(), block_size))?;
    let blocks = codes.chunks(block_size.max(1));
    for (codes, bytes) in blocks.zip(bytes.chunks_mut(block_size.max(1).div_ceil(2))) {
        for (pair, byte) in codes.chunks(2).zip(bytes) {
            let [low, high] = [0, 1].map(|i| pair.get(i).copied().unwrap_or(0).cast_unsigned());
            *byte = high << 4 | low & 0xF;
        }
    }
    Ok(())
}

/// The inverse of [`pack_nibbles`].
///
/// # Errors
/// A length that is not [`packed_len`].
pub fn unpack_nibbles(
    bytes: &[u8],
    block_size: usize,
    codes: &mut [i8],
) -> Result<(), SparsityError> {
    check_len("bytes", bytes.len(), packed_len(codes.len(), block_size))?;
    let blocks = codes.chunks_mut(block_size.max(1));
    for (codes, bytes) in blocks.zip(bytes.chunks(block_size.max(1).div_ceil(2))) {
        for (pair, byte) in codes.chunks_mut(2).zip(bytes) {
            for (code, half) in pair.iter_mut().zip([*byte << 4, *byte]) {
                *code = half.cast_signed() >> 4;
            }
        }
    }
    Ok(())
}

/// Bytes of `n` packed codes of 3 bits.
#[must_use]
pub const fn packed_len(n: usize, block_size: usize) -> usize {
    let block = if block_size == 0 { 1 } else { block_size };
    n / block * block.div_ceil(2) + (n % block).div_ceil(2)
}

/// Adds a micro-LoRA's delta to codes of 7 bits: `clamp(round(base + delta · alpha), -64, 63)`.
///
/// # Errors
/// Lengths that differ; an `alpha` that is not finite.
pub fn apply_lora_delta(
    base: &[i8],
    delta: &[i8],
    alpha: f32,
    out: &mut [i8],
) -> Result<(), SparsityError> {
    check_len("delta", delta.len(), base.len())?;
    check_len("out", out.len(), base.len())?;
    check_finite("alpha", &[alpha])?;
    let (lowest, highest) = PrecisionLane::Bit7.value_range();
    for ((out, b), d) in out.iter_mut().zip(base).zip(delta) {
        let sum = libm::roundf(f32::from(*b) + f32::from(*d) * alpha);
        *out = clamp(sum, lowest, highest);
    }
    Ok(())
}

/// A rounded number as a code of 8 bits at most.
#[expect(
    clippy::cast_possible_truncation,
    reason = "saturates, then within ±64"
)]
fn clamp(x: f32, lowest: i32, highest: i32) -> i8 {
    (x as i32).clamp(lowest, highest) as i8
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::float_cmp,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "exact values are expected; numbers are small"
    )]

    extern crate std;

    use super::*;
    use std::vec;

    #[test]
    fn golden_codes() {
        // By the formulas of the predecessor, worked out by hand.
        for (lane, x, scale, codes) in [
            (
                PrecisionLane::Bit3,
                [3.0, -3.0, 1.5, -0.4],
                1.0,
                [3, -3, 2, 0],
            ),
            (
                PrecisionLane::Bit5,
                [7.5, -0.25, 0.26, -7.5],
                0.5,
                [15, -1, 1, -15],
            ),
            (
                PrecisionLane::Bit7,
                [63.0, 0.5, -0.5, 31.4],
                1.0,
                [63, 1, -1, 31],
            ),
        ] {
            let quantizer = LaneQuantizer::for_lane(lane, 4).unwrap();
            let (mut scales, mut found) = ([0.0], [0; 4]);
            quantizer.quantize(&x, &mut scales, &mut found).unwrap();
            assert_eq!((scales, found), ([scale], codes), "{lane:?}");
        }
    }

    #[test]
    fn every_block_size_reads_what_it_wrote() {
        let values: vec::Vec<f32> = (0..67).map(|i| (i as f32 - 30.0) * 0.37).collect();
        for block in [1, 3, 5, 32, 33, 100] {
            let quantizer = LaneQuantizer::for_lane(PrecisionLane::Bit3, block).unwrap();
            let mut scales = vec![0.0; quantizer.n_blocks(67)];
            let (mut codes, mut back) = ([0; 67], [0; 67]);
            quantizer
                .quantize(&values, &mut scales, &mut codes)
                .unwrap();
            assert!(!codes.contains(&-4), "the lowest code is never made");
            let mut bytes = vec![0; packed_len(67, block)];
            pack_nibbles(&codes, block, &mut bytes).unwrap();
            unpack_nibbles(&bytes, block, &mut back).unwrap();
            assert_eq!(codes, back, "{block}");
            let mut out = [0.0; 67];
            quantizer
                .dequantize(&codes, &scales, None, &mut out)
                .unwrap();
            for (i, (x, y)) in values.iter().zip(&out).enumerate() {
                assert!((x - y).abs() <= scales[i / block] * 0.50001, "{block} {i}");
            }
        }
    }

    #[test]
    fn a_table_replaces_values_and_ignores_the_scale() {
        let quantizer = LaneQuantizer::for_lane(PrecisionLane::Bit3, 4).unwrap();
        let lut = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0];
        let mut out = [9.0; 4];
        quantizer
            .dequantize(&[-4, -1, 1, 3], &[100.0], Some(&lut), &mut out)
            .unwrap();
        assert_eq!(out, [0.0, 0.0, 1.0, 3.0]);
        let other = LaneQuantizer::for_lane(PrecisionLane::Bit5, 4).unwrap();
        assert!(
            other
                .dequantize(&[0; 4], &[1.0], Some(&lut), &mut out)
                .is_err()
        );
    }

    #[test]
    fn deltas_saturate() {
        let mut out = [0; 5];
        apply_lora_delta(&[10, 20, 30, 63, -64], &[1, 2, 3, 9, -9], 0.5, &mut out).unwrap();
        assert_eq!(out, [11, 21, 32, 63, -64]);
        let error = apply_lora_delta(&[1], &[1], f32::NAN, &mut out[..1]).unwrap_err();
        assert_eq!(
            std::format!("{error}"),
            "alpha[0] is NaN: expected a finite number"
        );
    }

    #[test]
    fn zeros_and_numbers_that_are_not_finite() {
        let quantizer = LaneQuantizer::for_lane(PrecisionLane::Bit7, 2).unwrap();
        let (mut scales, mut codes) = ([0.0; 2], [1; 4]);
        quantizer
            .quantize(&[0.0; 4], &mut scales, &mut codes)
            .unwrap();
        assert_eq!((scales, codes), ([1.0; 2], [0; 4]));
        let bad = quantizer.quantize(&[0.0, 1.0, f32::INFINITY, 2.0], &mut scales, &mut codes);
        assert_eq!(
            std::format!("{}", bad.unwrap_err()),
            "values[2] is inf: expected a finite number"
        );
        assert!(LaneQuantizer::for_lane(PrecisionLane::Float32, 32).is_err());
        assert!(LaneQuantizer::for_lane(PrecisionLane::Bit3, 0).is_err());
    }
}
