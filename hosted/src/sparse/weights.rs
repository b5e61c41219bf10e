//! Weights of 4 or 8 bits, and the predecessor's quantisers of lanes.

use super::error::{SparseInferenceError, SparseResult};
use sluice_core::sparse::quantizer::{apply_lora_delta, pack_nibbles, packed_len, unpack_nibbles};
use sluice_core::sparse::{LaneQuantizer, PrecisionLane, SparsityError, check_finite, check_len};

/// A matrix in 4 or 8 bits, with a scale and an offset for each group: `x = code · scale + offset`. Groups run over the flat
/// array; of two codes in a byte the first is in the low half.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedWeights {
    data: Vec<u8>,
    scales: Vec<f32>,
    offsets: Vec<f32>,
    group_size: usize,
    shape: (usize, usize),
    bits: u8,
}

impl QuantizedWeights {
    /// Quantises (rows, cols): `scale = (max - min) / (2^bits - 1)`, `offset = min`.
    ///
    /// # Errors
    /// Bits other than 4 or 8, a group of 0 or with numbers too far apart, another number of elements, one that is not
    /// finite.
    pub fn from_f32(
        data: &[f32],
        rows: usize,
        cols: usize,
        bits: u8,
        group_size: usize,
    ) -> SparseResult<Self> {
        if bits != 4 && bits != 8 {
            return Err(setting("bits", f64::from(bits), "4 or 8"));
        }
        if group_size == 0 {
            return Err(setting("group_size", 0.0, "at least 1"));
        }
        check_len("data", data.len(), rows.saturating_mul(cols))
            .and_then(|()| check_finite("data", data))
            .map_err(SparseInferenceError::Quantization)?;
        let most = f32::from(u8::MAX >> (8 - bits));
        let (mut codes, mut scales, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
        for group in data.chunks(group_size) {
            let least = group.iter().copied().fold(f32::INFINITY, f32::min);
            let range = group.iter().copied().fold(f32::NEG_INFINITY, f32::max) - least;
            if range == f32::INFINITY {
                let expected = "numbers at most 3.4e38 apart";
                return Err(setting("range of a group of data", f64::INFINITY, expected));
            }
            let scale = if range > 0.0 { range / most } else { 1.0 };
            scales.push(scale);
            offsets.push(least);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "within 0 and 255"
            )]
            let code = |x: &f32| ((x - least) / scale).round().clamp(0.0, most) as u8;
            codes.extend(group.iter().map(code));
        }
        let data = match bits {
            8 => codes,
            _ => codes
                .chunks(2)
                .map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4)
                .collect(),
        };
        Ok(Self {
            data,
            scales,
            offsets,
            group_size,
            shape: (rows, cols),
            bits,
        })
    }

    /// A row of values in 8 bits, one group.
    ///
    /// # Errors
    /// A value that is not finite.
    pub fn quantize_int8(values: &[f32]) -> SparseResult<Self> {
        Self::from_f32(values, 1, values.len(), 8, values.len().max(1))
    }

    /// A row of values in 4 bits, in groups.
    ///
    /// # Errors
    /// A group of 0, a value that is not finite.
    pub fn quantize_int4(values: &[f32], group_size: usize) -> SparseResult<Self> {
        Self::from_f32(values, 1, values.len(), 4, group_size)
    }

    /// All values, row by row.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        (0..self.shape.0 * self.shape.1)
            .map(|i| self.value(i))
            .collect()
    }

    /// The values of a row.
    ///
    /// # Errors
    /// A row that does not exist.
    pub fn dequantize_row(&self, row: usize) -> SparseResult<Vec<f32>> {
        let (rows, cols) = self.shape;
        if row >= rows {
            let expected = "a row of the matrix, counted from 0";
            return Err(setting("row", row as f64, expected));
        }
        Ok((row * cols..(row + 1) * cols)
            .map(|i| self.value(i))
            .collect())
    }

    fn value(&self, i: usize) -> f32 {
        let code = match self.bits {
            8 => self.data[i],
            _ => self.data[i / 2] >> (i % 2 * 4) & 0xF,
        };
        let group = i / self.group_size;
        f32::from(code) * self.scales[group] + self.offsets[group]
    }

    /// Rows and columns.
    #[must_use]
    pub const fn shape(&self) -> (usize, usize) {
        self.shape
    }

    /// Bytes of codes, scales and offsets.
    #[must_use]
    pub const fn memory_size(&self) -> usize {
        self.data.len() + 4 * (self.scales.len() + self.offsets.len())
    }
}

fn setting(name: &'static str, value: f64, expected: &'static str) -> SparseInferenceError {
    SparseInferenceError::Quantization(SparsityError::Setting {
        name,
        value,
        expected,
    })
}

/// The quantiser of a lane, with the scales of what it quantised last.
macro_rules! quantizer {
    ($(#[$doc:meta])* $name:ident, $lane:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name {
            /// The scale of each block of the last values.
            pub scales: Vec<f32>,
            quantizer: LaneQuantizer,
            lut: Option<[f32; 8]>,
            is_one_block: bool,
        }

        impl $name {
            /// In blocks of `block_size` elements.
            ///
            /// # Errors
            /// A block of 0.
            pub fn new(block_size: usize) -> SparseResult<Self> {
                let quantizer = LaneQuantizer::for_lane(PrecisionLane::$lane, block_size);
                Ok(Self {
                    scales: Vec::new(),
                    quantizer: quantizer.map_err(SparseInferenceError::Quantization)?,
                    lut: None,
                    is_one_block: false,
                })
            }

            fn codes(&mut self, values: &[f32]) -> SparseResult<Vec<i8>> {
                if self.is_one_block {
                    let lane = PrecisionLane::$lane;
                    self.quantizer = LaneQuantizer::for_lane(lane, values.len().max(1))
                        .map_err(SparseInferenceError::Quantization)?;
                }
                let mut codes = vec![0; values.len()];
                self.scales = vec![0.0; self.quantizer.n_blocks(values.len())];
                self.quantizer
                    .quantize(values, &mut self.scales, &mut codes)
                    .map_err(SparseInferenceError::Quantization)?;
                Ok(codes)
            }

            fn values(&self, codes: &[i8]) -> SparseResult<Vec<f32>> {
                let mut out = vec![0.0; codes.len()];
                self.quantizer
                    .dequantize(codes, &self.scales, self.lut.as_ref(), &mut out)
                    .map_err(SparseInferenceError::Quantization)?;
                Ok(out)
            }
        }
    };
}

quantizer! {
    /// 3 bits, two codes to a byte; a block of an odd size ends with half a byte.
    Quantizer3Bit, Bit3
}
quantizer! {
    /// 5 bits, a code to a byte.
    Quantizer5Bit, Bit5
}
quantizer! {
    /// 7 bits, a code to a byte.
    Quantizer7Bit, Bit7
}

impl Quantizer3Bit {
    /// Replaces values by an entry of a table, by code + 4.
    #[must_use]
    pub const fn with_activation_lut(mut self, lut: [f32; 8]) -> Self {
        self.lut = Some(lut);
        self
    }

    /// The codes, packed; keeps the scales.
    ///
    /// # Errors
    /// A value that is not finite.
    pub fn quantize(&mut self, values: &[f32]) -> SparseResult<Vec<u8>> {
        let codes = self.codes(values)?;
        let block = self.quantizer.block_size();
        let mut bytes = vec![0; packed_len(codes.len(), block)];
        pack_nibbles(&codes, block, &mut bytes).map_err(SparseInferenceError::Quantization)?;
        Ok(bytes)
    }

    /// The values of the codes that were quantised last.
    ///
    /// # Errors
    /// Another number of bytes or values.
    pub fn dequantize(&self, data: &[u8], num_values: usize) -> SparseResult<Vec<f32>> {
        let block = self.quantizer.block_size();
        check_len("bytes", data.len(), packed_len(num_values, block))
            .map_err(SparseInferenceError::Quantization)?;
        let mut codes = vec![0; num_values];
        unpack_nibbles(data, block, &mut codes).map_err(SparseInferenceError::Quantization)?;
        self.values(&codes)
    }
}

impl Quantizer5Bit {
    /// One scale for all values of a call, which is a channel. (The predecessor stores one for each value.)
    #[must_use]
    pub const fn with_per_channel(mut self) -> Self {
        self.is_one_block = true;
        self
    }

    /// The codes; keeps the scales.
    ///
    /// # Errors
    /// A value that is not finite.
    pub fn quantize(&mut self, values: &[f32]) -> SparseResult<Vec<i8>> {
        self.codes(values)
    }

    /// The values of the codes that were quantised last.
    ///
    /// # Errors
    /// Another number of codes.
    pub fn dequantize(&self, data: &[i8]) -> SparseResult<Vec<f32>> {
        self.values(data)
    }
}

impl Quantizer7Bit {
    /// The codes; keeps the scales.
    ///
    /// # Errors
    /// A value that is not finite.
    pub fn quantize(&mut self, values: &[f32]) -> SparseResult<Vec<i8>> {
        self.codes(values)
    }

    /// The values of the codes that were quantised last.
    ///
    /// # Errors
    /// Another number of codes.
    pub fn dequantize(&self, data: &[i8]) -> SparseResult<Vec<f32>> {
        self.values(data)
    }

    /// `clamp(round(base + delta · alpha), -64, 63)`
    ///
    /// # Errors
    /// Lengths that differ, an `alpha` that is not finite.
    pub fn apply_lora_delta(&self, base: &[i8], delta: &[i8], alpha: f32) -> SparseResult<Vec<i8>> {
        let mut out = vec![0; base.len()];
        apply_lora_delta(base, delta, alpha, &mut out)
            .map_err(SparseInferenceError::Quantization)?;
        Ok(out)
    }
}
