//! The fused multiply-add in software: what the instruction computes, for CPUs without it.
//!
//! `libm::fmaf` without the instruction rounds a sum to f64 and then to f32, and looks for ties of
//! normal numbers alone: 1.8·10^-38 and less come out one bit off now and then (0.2.16).

/// `a * b + c`, rounded once to the nearest, ties to even; the sign of a zero and infinities as
/// IEEE 754 has them.
///
/// The product of two f32 is exact in f64. The sum is rounded to odd there: whatever of it does
/// not fit leaves the last bit set, so that rounding again, with 29 bits less or with the fewer of
/// a denormal, sees on which side of a tie it is.
#[inline(always)]
pub(super) fn fma(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // What rounding took off, exactly (Knuth's TwoSum): nothing here is near f64's ends. NaN where
    // the sum is not finite.
    let of_c = sum - product;
    let error = (product - (sum - of_c)) + (c - of_c);
    let inexact = u64::from(error.abs() > 0.0);
    // Towards zero first, from where the last bit stands for everything beyond.
    let beyond = (sum.to_bits() ^ error.to_bits()) >> 63;
    let odd = f64::from_bits((sum.to_bits() - (inexact & beyond)) | inexact);
    #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
    let rounded = odd as f32;
    rounded
}

#[cfg(test)]
mod tests;
