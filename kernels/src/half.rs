//! IEEE half precision and bfloat16: conversions by integer arithmetic.
//!
//! Rust's `f16` is not stable yet, and these must give the same bits as the CPU's own
//! conversion instructions on every machine. Rounding is to nearest, ties to even.

/// The f32 with the same value as the half-precision number with bits `h`. Exact.
#[inline(always)]
pub const fn f16_to_f32(h: u16) -> f32 {
    let sign = ((h & 0x8000) as u32) << 16;
    let magnitude = (h & 0x7fff) as u32;
    // Shifting puts the exponent 112 too low; the product with 2^112 mends that for normal
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
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | ((magnitude >> 13) & 0x3ff) as u16;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Subnormal result: adding 0.5 rounds at bit 2^-24, where a half's last bit is.
        let rounded = f32::from_bits(magnitude) + 0.5;
        return sign | (rounded.to_bits() - 0x3f00_0000) as u16;
    }
    let odd = (magnitude >> 13) & 1;
    let rounded = magnitude - 0x3800_0000 + 0xfff + odd;
    sign | (rounded >> 13) as u16
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_a_round_trip() {
        for h in 0..=u16::MAX {
            let x = f16_to_f32(h);
            if x.is_nan() {
                assert!(f16_to_f32(f32_to_f16(x)).is_nan());
            } else {
                assert_eq!(f32_to_f16(x), h, "{h:#06x} = {x}");
            }
        }
    }

    #[test]
    fn halves_round_to_nearest_even() {
        // Between neighbours a < b: below the middle gives a, above gives b, the middle the even.
        for h in 0..0x7bffu16 {
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
        for b in 0..0x7f7fu16 {
            let (a, c) = (u32::from(b) << 16, (u32::from(b) + 1) << 16);
            let middle = f32::from_bits(u32::midpoint(a, c));
            assert_eq!(f32_to_bf16(middle), if b % 2 == 0 { b } else { b + 1 });
            assert_eq!(f32_to_bf16(bf16_to_f32(b)), b);
        }
        assert!(bf16_to_f32(f32_to_bf16(f32::NAN)).is_nan());
    }
}
