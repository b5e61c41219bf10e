//! Numbers of a schema: 64-bit integers, and fractions as doubles.
//!
//! Doubles represent all integers up to 2^53, but not all beyond. So integers stay integers, and only
//! fractions, which are always below 2^53, become doubles.

use core::cmp::Ordering;
use core::hash::{Hash, Hasher};
use serde_json::Number;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Exact {
    Whole(i128),
    /// Not an integer.
    Fraction(f64),
}

// A fraction is never NaN, 0 or -0.
impl Eq for Exact {}

impl Hash for Exact {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        match self {
            Self::Whole(whole) => whole.hash(hasher),
            Self::Fraction(x) => x.to_bits().hash(hasher),
        }
    }
}

impl Exact {
    /// The number, or `None` if parsing may have rounded it: an integer of more than 64 bits, or a number with a
    /// point or an exponent beyond 2^53.
    pub(super) fn of(number: &Number) -> Option<Self> {
        let unsigned = || number.as_u64().map(i128::from);
        if let Some(whole) = number.as_i64().map(i128::from).or_else(unsigned) {
            return Some(Self::Whole(whole));
        }
        let x = number.as_f64().filter(|x| x.abs() < EXACT_BELOW)?;
        Some(match x.fract() == 0.0 {
            true => Self::Whole(integer(x)),
            false => Self::Fraction(x),
        })
    }

    pub(super) fn as_f64(self) -> f64 {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "the nearest double")]
            Self::Whole(whole) => whole as f64,
            Self::Fraction(x) => x,
        }
    }

    /// Whether doubles represent it and its neighbours exactly.
    pub(super) fn is_small(self) -> bool {
        match self {
            Self::Whole(whole) => whole.abs() <= SMALL_MAX,
            Self::Fraction(_) => true,
        }
    }

    /// The smallest integer that is not below it, excluding the number itself if `is_open`.
    pub(super) fn ceil(self, is_open: bool) -> i128 {
        match self {
            Self::Whole(whole) => whole + i128::from(is_open),
            Self::Fraction(x) => integer(x.ceil()),
        }
    }

    /// The largest integer that is not above it.
    pub(super) fn floor(self, is_open: bool) -> i128 {
        match self {
            Self::Whole(whole) => whole - i128::from(is_open),
            Self::Fraction(x) => integer(x.floor()),
        }
    }
}

impl PartialOrd for Exact {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => Some(a.cmp(b)),
            // A fraction is below 2^53, where rounding cannot move an integer past it.
            (a, b) => a.as_f64().partial_cmp(&b.as_f64()),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "whole and at most 2^53")]
fn integer(x: f64) -> i128 {
    x as i128
}

/// 2^53.
const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;
/// The largest whole number below it.
pub(super) const SMALL_MAX: i128 = (1 << 53) - 1;
