//! Eight numbers at a time, one per sub-block: lanes hold results, never partial sums, so that
//! a search gives the same bits however wide the machine is.

use crate::contract::round_ties_even;

/// Lanes of a [`Vector`].
pub(super) const LANES: usize = 8;

/// Eight f32 with single, correctly rounded operations in every lane.
pub(super) trait Vector: Copy {
    fn load(x: &[f32; LANES]) -> Self;
    fn store(self) -> [f32; LANES];
    fn splat(x: f32) -> Self {
        Self::load(&[x; LANES])
    }
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `if self < other { self } else { other }`.
    fn min(self, other: Self) -> Self;
    /// `if self > other { self } else { other }`.
    fn max(self, other: Self) -> Self;
    /// `if self < other { then } else { otherwise }`.
    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self;
    /// The table's entries for the integers nearest to `self`, which must be in 0..512.
    fn lookup(self, table: &[f32; 512]) -> Self;
    /// The eight vectors whose lane l holds `rows[l]`.
    fn transpose(rows: [&[f32; LANES]; LANES]) -> [Self; LANES];

    /// To the nearest integer, ties to even; exact for |x| < 2^22.
    #[inline(always)]
    fn round(self) -> Self {
        let magic = Self::splat(12_582_912.0);
        self.add(magic).sub(magic)
    }

    #[inline(always)]
    fn clamp(self, low: f32, high: f32) -> Self {
        self.max(Self::splat(low)).min(Self::splat(high))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        self.max(Self::splat(0.0).sub(self))
    }

    /// 1 / x, and 0 for 0.
    #[inline(always)]
    fn inverse(self) -> Self {
        let (zero, one) = (Self::splat(0.0), Self::splat(1.0));
        let safe = zero.if_less(self.abs(), self, one);
        zero.if_less(self.abs(), one.div(safe), zero)
    }

    /// self / other, and 0 where `other` is not above zero.
    #[inline(always)]
    fn ratio(self, other: Self) -> Self {
        let (zero, one) = (Self::splat(0.0), Self::splat(1.0));
        let quotient = self.div(zero.if_less(other, other, one));
        zero.if_less(other, quotient, zero)
    }
}

/// The definition.
///
/// Its operations are calls: inlined, the searches of all types were most of the crate's compile time, only for
/// machines without AVX2.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = self.0;
        for (a, b) in out.iter_mut().zip(other.0) {
            *a = f(*a, b);
        }
        Self(out)
    }
}

impl Vector for Portable {
    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Self {
        Self(*x)
    }

    #[inline(always)]
    fn store(self) -> [f32; LANES] {
        self.0
    }

    #[inline(never)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(never)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(never)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(never)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }

    #[inline(never)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(never)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(never)]
    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
        let mut out = otherwise.0;
        for (l, out) in out.iter_mut().enumerate() {
            if self.0[l] < other.0[l] {
                *out = then.0[l];
            }
        }
        Self(out)
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the integer is below 512")]
    #[expect(clippy::cast_sign_loss, reason = "the integer is not negative")]
    fn lookup(self, table: &[f32; 512]) -> Self {
        Self(self.0.map(|x| table[round_ties_even(x) as usize & 511]))
    }

    #[inline(never)]
    fn transpose(rows: [&[f32; LANES]; LANES]) -> [Self; LANES] {
        core::array::from_fn(|i| Self(rows.map(|row| row[i])))
    }
}
