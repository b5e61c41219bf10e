//! IEEE half precision and bfloat16: conversions by integer arithmetic.
//!
//! Rust's `f16` is not stable yet, and these must give the same bits as the CPU's own
//! conversion instructions on every machine. Rounding is to nearest, ties to even.

/// The f32 with the same value as the half-precision number with bits `h`. Exact.
#[inline(always)]
pub const fn f16_to_f32(h: u16) -> f32 {
    let sign = ((h & 0x8000) as u32) << 16;
    let magnitude = (h & 0x7fff) as u32;
    // Shifting puts the exponent 112 too low; the product with 2^112 corrects that for normal
    // and subnormal inputs alike, and is exact. Selects, not branches, so that loops vectorise.
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits((112 + 127) << 23);
    let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
    let quiet = if magnitude > 0x7c00 { 0x0040_0000 } else { 0 };
    f32::from_bits(sign | scaled.to_bits() | special | quiet)
}

/// The half-precision number nearest to `x`, ties to even. Overflow gives infinity.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the shifted values have 16 bits"
)]
pub const fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    // Selects, as above. A subnormal result: adding 0.5 rounds at bit 2^-24, where a half's last
    // bit is.
    let sum = f32::from_bits(magnitude) + 0.5;
    let subnormal = sum.to_bits().wrapping_sub(0x3f00_0000);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(0x3800_0000 - 0xfff - odd) >> 13;
    let is_small = magnitude < 0x3880_0000;
    let finite = if is_small { subnormal } else { normal };
    let nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    let special = if magnitude > 0x7f80_0000 { nan } else { 0x7c00 };
    let is_special = magnitude >= 0x4780_0000;
    sign | (if is_special { special } else { finite }) as u16
}

/// The f32 with the same value as the bfloat16 with bits `b`. Exact.
#[inline(always)]
pub const fn bf16_to_f32(b: u16) -> f32 {
    f32::from_bits((b as u32) << 16)
}

/// The bfloat16 nearest to `x`, ties to even; NaN stays NaN (quiet).
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the shifted values have 16 bits"
)]
pub const fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return ((bits >> 16) | 0x40) as u16;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// The f32 with the same value as the FP8 number (E4M3, OCP) with bits `b`. Exact; 0x7f and 0xff are NaN, and the
/// format has no infinity.
#[inline(always)]
pub const fn e4m3_to_f32(b: u8) -> f32 {
    if b & 0x7f == 0x7f {
        return f32::NAN;
    }
    // As a half it has the same digits, and an exponent that is 8 too low.
    let half = (b as u16 & 0x80) << 8 | (b as u16 & 0x7f) << 7;
    f16_to_f32(half) * 256.0
}

/// The FP8 number (E4M3) nearest to `x`, ties to even. Finite numbers saturate at ±448; what is
/// not finite gives NaN.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the shifted values have 8 bits"
)]
pub const fn f32_to_e4m3(x: f32) -> u8 {
    const MAX: u32 = 0x7e;
    let bits = x.to_bits();
    let sign = ((bits >> 24) & 0x80) as u8;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude >= 0x7f80_0000 {
        return sign | 0x7f;
    }
    if magnitude < 0x3c80_0000 {
        // Subnormal result: adding 2^14 rounds at bit 2^-9, where the last bit is.
        let rounded = f32::from_bits(magnitude) + 16384.0;
        return sign | (rounded.to_bits() - 0x4680_0000) as u8;
    }
    let odd = (magnitude >> 20) & 1;
    let rounded = (magnitude - 0x3c00_0000 + 0x7_ffff + odd) >> 20;
    sign | if rounded > MAX { MAX } else { rounded } as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Miri is slow, and all numbers take the same ways.
    const STEP: usize = if cfg!(miri) { 61 } else { 1 };

    /// The definition: sign, 4 bits of exponent with bias 7, 3 bits of mantissa.
    #[test]
    fn fp8_numbers_have_their_values() {
        for b in 0..=u8::MAX {
            let (exponent, mantissa) = (i32::from(b >> 3 & 0xf), f64::from(b & 7));
            let value = match exponent {
                0 => mantissa * 2f64.powi(-9),
                e => (8.0 + mantissa) * 2f64.powi(e - 10),
            };
            let value = if b & 0x80 == 0 { value } else { -value };
            if b & 0x7f == 0x7f {
                assert!(e4m3_to_f32(b).is_nan());
                assert!(e4m3_to_f32(f32_to_e4m3(f32::NAN)).is_nan());
            } else {
                assert_eq!(f64::from(e4m3_to_f32(b)).to_bits(), value.to_bits());
                assert_eq!(f32_to_e4m3(e4m3_to_f32(b)), b);
            }
        }
    }

    #[test]
    fn fp8_rounds_to_nearest_even_and_saturates() {
        for b in 0..0x7eu8 {
            let middle = f32::midpoint(e4m3_to_f32(b), e4m3_to_f32(b + 1));
            assert_eq!(f32_to_e4m3(middle), if b % 2 == 0 { b } else { b + 1 });
            assert_eq!(f32_to_e4m3(f32::from_bits(middle.to_bits() - 1)), b);
            assert_eq!(
                f32_to_e4m3(-f32::from_bits(middle.to_bits() + 1)),
                0x80 | (b + 1)
            );
        }
        for (x, expected) in [
            (448.0, 0x7e),
            (1e9, 0x7e),
            (-1e9, 0xfe),
            (f32::INFINITY, 0x7f),
        ] {
            assert_eq!(f32_to_e4m3(x), expected);
        }
    }

    #[test]
    fn every_half_survives_a_round_trip() {
        for h in (0..=u16::MAX).step_by(STEP) {
            let x = f16_to_f32(h);
            if x.is_nan() {
                assert!(f16_to_f32(f32_to_f16(x)).is_nan());
            } else {
                assert_eq!(f32_to_f16(x), h, "{h:#06x} = {x}");
            }
        }
    }

    /// A row has the numbers that it has one by one, whatever the CPU's vectors are.
    #[test]
    fn rows_of_halves_are_converted_one_by_one() {
        extern crate std;
        let halves: std::vec::Vec<u16> = (0..=u16::MAX).step_by(STEP).collect();
        let row: std::vec::Vec<u8> = halves.iter().flat_map(|h| h.to_le_bytes()).collect();
        let mut out = std::vec![0f32; halves.len()];
        crate::blocks::dequantize_row(crate::GgmlType::F16, &row, &mut out);
        for (x, h) in out.iter().zip(halves) {
            assert_eq!(x.to_bits(), f16_to_f32(h).to_bits(), "{h:#06x}");
        }
    }

    #[test]
    fn halves_round_to_nearest_even() {
        // Between neighbours a < b: below the middle gives a, above gives b, the middle the even.
        for h in (0..0x7bffu16).step_by(STEP) {
            let (a, b) = (f16_to_f32(h), f16_to_f32(h + 1));
            let middle = f32::midpoint(a, b);
            let even = if h % 2 == 0 { h } else { h + 1 };
            assert_eq!(f32_to_f16(middle), even);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() - 1)), h);
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() + 1)), h + 1);
        }
        assert_eq!(f32_to_f16(65_519.0), 0x7bff);
        assert_eq!(f32_to_f16(65_520.0), 0x7c00);
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for b in (0..0x7f7fu16).step_by(STEP) {
            let (a, c) = (u32::from(b) << 16, (u32::from(b) + 1) << 16);
            let middle = f32::from_bits(u32::midpoint(a, c));
            assert_eq!(f32_to_bf16(middle), if b % 2 == 0 { b } else { b + 1 });
            assert_eq!(f32_to_bf16(bf16_to_f32(b)), b);
        }
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
    }
}
