//! Σ c · log2 c over a histogram: what its entropy takes.
//!
//! In whole numbers, so that the order of the sum does not matter.

use super::Counts;

/// Units of a sum are 2^-20: an entropy is then within 2^-21 · 256 / n bits, n the samples.
pub(crate) const FRACTION_BITS: i32 = 20;
/// Counts whose products are looked up. A power of two: a remainder costs nothing, and what counts
/// have in all is below it if each is.
const TABLE_LEN: usize = 2048;

static TABLE: [u64; TABLE_LEN] = {
    let mut table = [0; TABLE_LEN];
    let mut c = 2u32;
    while (c as usize) < TABLE_LEN {
        table[c as usize] = count_log2_count(c);
        c += 1;
    }
    table
};

/// Counts below are in [`SMALL`].
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) const SMALL_LEN: usize = 32;

/// The table's beginning for vectors. 256 of its products fit in 16 lanes of 32 bits.
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(crate) static SMALL: [u32; SMALL_LEN] = {
    let mut small = [0; SMALL_LEN];
    let mut c = 0;
    while c < SMALL_LEN {
        let [a, b, c0, d, 0, 0, 0, 0] = TABLE[c].to_le_bytes() else {
            panic!("a product of a small count has 32 bits");
        };
        small[c] = u32::from_le_bytes([a, b, c0, d]);
        c += 1;
    }
    small
};

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
const _: () = assert!(16 * SMALL[SMALL_LEN - 1] as u64 <= u32::MAX as u64);

/// [`crate::FrameKernels::sum_count_log2`].
pub(crate) fn sum_count_log2(counts: &Counts) -> u64 {
    let (mut sum, mut all) = (0, 0);
    for &count in counts {
        sum += TABLE[count as usize % TABLE_LEN];
        all |= count as usize;
    }
    if all < TABLE_LEN {
        sum
    } else {
        sum_of_large(counts)
    }
}

/// [`sum_count_log2`] with counts outside the table. Not inlined: otherwise all logarithms would be computed at once,
/// even when none is needed.
#[cold]
#[inline(never)]
fn sum_of_large(counts: &Counts) -> u64 {
    let product = |&count: &u32| match TABLE.get(count as usize) {
        Some(&product) => product,
        None => count_log2_count(count),
    };
    counts.iter().map(product).sum()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "at most 2^32 · 32 · 2^20, and not negative"
)]
const fn count_log2_count(count: u32) -> u64 {
    if count < 2 {
        return 0;
    }
    const UNIT: f64 = (1u64 << FRACTION_BITS) as f64;
    (count as f64 * log2(count as f64) * UNIT + 0.5) as u64
}

/// log2 x of a normal x ≥ 1; error below 1e-15 relative.
pub(crate) const fn log2(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff).cast_signed() - 1023;
    let mut whole = exponent as f64;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if m > core::f64::consts::SQRT_2 {
        m *= 0.5;
        whole += 1.0;
    }
    // Frames of 2^k samples are usual, and their logarithm is exact.
    if m.to_bits() == 1f64.to_bits() {
        return whole;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)); the quotient is at most 0.172, so 12 terms reach 1e-17.
    let s = (m - 1.0) / (m + 1.0);
    let s2 = s * s;
    let mut sum = 0.0;
    let mut k = 23.0;
    while k > 0.0 {
        sum = sum * s2 + 1.0 / k;
        k -= 2.0;
    }
    whole + 2.0 * s * sum * core::f64::consts::LOG2_E
}
