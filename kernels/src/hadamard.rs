//! Walsh–Hadamard rotation of vectors: spreads what a few dimensions hold over all of them.
//!
//! Keys, values and queries are rotated before a cache stores them in few bits: a dimension much larger than
//! the others would take the whole range of a scale. The matrix is `H_n / sqrt(n)`, where `H_1 = 1` and
//! `H_2n = [[H_n, H_n], [H_n, -H_n]]` (Sylvester's construction). It is orthonormal and symmetric: rotating two vectors
//! preserves their dot product, and rotating twice gives back the vector, both up to rounding.
//!
//! Additions and subtractions alone, in an order that no vector length changes: the bits are the same on
//! every machine, and there is one function for all kernel tables.

/// Dimensions of the shortest rotation, and what a head's length has to be a multiple of.
pub const HADAMARD_MIN: usize = 64;

/// Dimensions that are rotated together in heads of `head_dim`: the largest power of two that divides it, or
/// 0, none, where that is below [`HADAMARD_MIN`].
pub const fn hadamard_len(head_dim: usize) -> usize {
    if head_dim == 0 || !head_dim.is_multiple_of(HADAMARD_MIN) {
        return 0;
    }
    1 << head_dim.trailing_zeros()
}

/// Rotates each `len` elements of `x` in place; a no-op if `len` is 0.
///
/// Strides increase from 1, each pair `(a, b)` becomes `(a + b, a - b)`, and the factor `1 / sqrt(len)`, rounded to
/// f32, is applied last.
///
/// # Panics
/// If `len` is neither 0 nor a power of two of at least [`HADAMARD_MIN`], or the length of `x` is not a multiple of it.
pub fn hadamard(x: &mut [f32], len: usize) {
    if len == 0 {
        return;
    }
    assert!(len.is_power_of_two() && len >= HADAMARD_MIN);
    assert!(x.len().is_multiple_of(len), "whole rotations");
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let factor = 1.0 / libm::sqrtf(len as f32);
    for x in x.chunks_exact_mut(len) {
        for x in x.as_chunks_mut::<4>().0 {
            let [a, b, c, d] = *x;
            let ([a, b], [c, d]) = ([a + b, a - b], [c + d, c - d]);
            *x = [a + c, b + d, a - c, b - d];
        }
        let mut stride = 4;
        while stride < len {
            for pair in x.chunks_exact_mut(2 * stride) {
                let (a, b) = pair.split_at_mut(stride);
                for (a, b) in a.iter_mut().zip(b) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            stride *= 2;
        }
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_powers_of_two_that_divide() {
        for (head_dim, len) in [
            (0, 0),
            (32, 0),
            (64, 64),
            (80, 0),
            (96, 0),
            (128, 128),
            (192, 64),
            (256, 256),
            (512, 512),
            (576, 64),
        ] {
            assert_eq!(hadamard_len(head_dim), len, "{head_dim}");
        }
    }

    /// The matrix by its definition: the sign of an entry is the parity of the bits that row and column share.
    #[test]
    #[expect(clippy::cast_precision_loss, reason = "few bits")]
    fn equals_the_matrix() {
        let mut state = 7u32;
        for len in [64, 128, 256] {
            let x: [f32; 512] = core::array::from_fn(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            });
            let mut turned = x;
            hadamard(&mut turned, len);
            for (x, turned) in x.chunks_exact(len).zip(turned.chunks_exact(len)) {
                for (row, &found) in turned.iter().enumerate() {
                    let sign =
                        |column: usize| 1.0 - 2.0 * f64::from((row & column).count_ones() % 2);
                    let sum: f64 = (0..len).map(|i| sign(i) * f64::from(x[i])).sum();
                    let expected = sum / (len as f64).sqrt();
                    assert!((f64::from(found) - expected).abs() < 2e-6, "{len} {row}");
                }
            }
            hadamard(&mut turned, len);
            let off = x.iter().zip(&turned).map(|(x, y)| (x - y).abs());
            assert!(off.fold(0.0, f32::max) < 2e-6, "{len}");
        }
    }

    #[test]
    fn without_a_length_nothing_happens() {
        let mut x = [1.0, 2.0, 3.0];
        hadamard(&mut x, 0);
        assert_eq!(x.map(f32::to_bits), [1.0f32, 2.0, 3.0].map(f32::to_bits));
    }
}
