//! Numbers as a schema writes them: whole ones digit by digit, and fractions as doubles.
//!
//! Doubles hold every whole number up to 2^53 and no longer every one beyond. So what is whole
//! stays its digits, and only what is not, which is always below 2^53, is a double.

use core::cmp::Ordering;
use core::hash::{Hash, Hasher};

/// A whole number of any length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Integer {
    is_negative: bool,
    /// From the first on, 0 to 9 each. No zero leads but that of 0, which is not negative.
    digits: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Exact {
    Whole(Integer),
    /// Not whole.
    Fraction(f64),
}

impl Integer {
    pub(super) fn new(is_negative: bool, mut digits: Vec<u8>) -> Self {
        let n_zeros = digits.iter().take_while(|&&digit| digit == 0).count();
        digits.drain(..n_zeros);
        if digits.is_empty() {
            return Self {
                is_negative: false,
                digits: vec![0],
            };
        }
        Self {
            is_negative,
            digits,
        }
    }

    /// What stands there, if it is a sign and digits alone.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let values = || digits.bytes().map(|b| b - b'0').collect();
        is_whole.then(|| Self::new(text.starts_with('-'), values()))
    }

    /// A double that is whole, which formatting writes to its last digit.
    pub(super) fn of(x: f64) -> Self {
        Self::parse(&format!("{x:.0}")).unwrap_or_else(|| Self::new(false, Vec::new()))
    }

    pub(super) fn is_negative(&self) -> bool {
        self.is_negative
    }

    pub(super) fn digits(&self) -> &[u8] {
        &self.digits
    }

    pub(super) fn negated(self) -> Self {
        Self::new(!self.is_negative, self.digits)
    }

    /// Exact below 2^53, else the nearest.
    pub(super) fn as_f64(&self) -> f64 {
        let value = self
            .digits
            .iter()
            .map(|digit| char::from(b'0' + digit))
            .collect::<String>()
            .parse()
            .unwrap_or(f64::INFINITY);
        if self.is_negative { -value } else { value }
    }

    /// `n` more, at most 10^37.
    pub(super) fn plus(&self, n: u128) -> Self {
        if !self.is_negative {
            return Self::new(false, add(&self.digits, n));
        }
        // Of as few digits it fits, and else it is more than n.
        let is_short = self.digits.len() <= 38;
        let size = self.digits.iter().take(38).fold(0, appended);
        if is_short && size <= n {
            return Self::new(false, add(&[0], n - size));
        }
        Self::new(true, subtract(&self.digits, n))
    }

    /// `n` less, at most 10^37.
    pub(super) fn minus(&self, n: u128) -> Self {
        self.clone().negated().plus(n).negated()
    }

    /// The least multiple of `step` (1 to 10^37) that is not less.
    pub(super) fn first_multiple(&self, step: u128) -> Self {
        let over = self
            .digits
            .iter()
            .fold(0, |rest, digit| appended(rest, digit) % step);
        match (over, self.is_negative) {
            (0, _) => self.clone(),
            (over, false) => self.plus(step - over),
            (over, true) => self.plus(over),
        }
    }
}

fn appended(number: u128, digit: &u8) -> u128 {
    number * 10 + u128::from(*digit)
}

fn low_digit(n: u128) -> u8 {
    u8::try_from(n % 10).unwrap_or(0)
}

fn add(digits: &[u8], n: u128) -> Vec<u8> {
    let (mut made, mut carry) = (Vec::with_capacity(digits.len() + 1), n);
    for digit in digits.iter().rev() {
        carry += u128::from(*digit);
        made.push(low_digit(carry));
        carry /= 10;
    }
    while carry > 0 {
        made.push(low_digit(carry));
        carry /= 10;
    }
    made.reverse();
    made
}

/// Of what is at least `n`.
fn subtract(digits: &[u8], mut n: u128) -> Vec<u8> {
    let mut made = digits.to_vec();
    for digit in made.iter_mut().rev() {
        let less = low_digit(n);
        n /= 10;
        n += u128::from(*digit < less);
        *digit = (*digit + 10 - less) % 10;
    }
    made
}

impl Ord for Integer {
    fn cmp(&self, other: &Self) -> Ordering {
        let sizes = |a: &Self, b: &Self| {
            let lengths = a.digits.len().cmp(&b.digits.len());
            lengths.then_with(|| a.digits.cmp(&b.digits))
        };
        match (self.is_negative, other.is_negative) {
            (false, false) => sizes(self, other),
            (true, true) => sizes(other, self),
            (negative, _) if negative => Ordering::Less,
            _ => Ordering::Greater,
        }
    }
}

impl PartialOrd for Integer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

// A fraction is no NaN, and neither 0 nor -0.
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
    /// The number that stands there, or `None` if a double would not be the same. Below 2^53 a
    /// point or an exponent means the nearest double, as it does to whoever reads the document.
    pub(super) fn parse(literal: &str) -> Option<Self> {
        if let Some(whole) = Integer::parse(literal) {
            return Some(Self::Whole(whole));
        }
        let value: f64 = literal.parse().ok()?;
        if value.abs() < EXACT_BELOW {
            return Some(if value.fract() == 0.0 {
                Self::Whole(Integer::of(value))
            } else {
                Self::Fraction(value)
            });
        }
        let (digits, exponent) = decimal(literal)?;
        let n_zeros = usize::try_from(exponent).ok().filter(|&n| n <= 400)?;
        let zeros = core::iter::repeat_n(0, n_zeros);
        let written = Integer::new(value < 0.0, digits.into_iter().chain(zeros).collect());
        (written == Integer::of(value)).then_some(Self::Whole(written))
    }

    pub(super) fn as_f64(&self) -> f64 {
        match self {
            Self::Whole(whole) => whole.as_f64(),
            Self::Fraction(x) => *x,
        }
    }

    /// Whether it is a double and so are its neighbours.
    pub(super) fn is_small(&self) -> bool {
        self.as_f64().abs() < EXACT_BELOW
    }

    /// The least whole number from here on, without the number itself if `is_outside`.
    pub(super) fn ceil(&self, is_outside: bool) -> Integer {
        match self {
            Self::Whole(whole) => whole.plus(u128::from(is_outside)),
            Self::Fraction(x) => Integer::of(x.ceil()),
        }
    }

    /// The greatest whole number up to here.
    pub(super) fn floor(&self, is_outside: bool) -> Integer {
        match self {
            Self::Whole(whole) => whole.minus(u128::from(is_outside)),
            Self::Fraction(x) => Integer::of(x.floor()),
        }
    }
}

impl PartialOrd for Exact {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => Some(a.cmp(b)),
            // A fraction lies below 2^53, where rounding moves no whole number past it.
            (a, b) => a.as_f64().partial_cmp(&b.as_f64()),
        }
    }
}

/// The digits without zeros at either end, and how many places the last is before the point.
pub(super) fn decimal(literal: &str) -> Option<(Vec<u8>, i64)> {
    let text = literal.trim_start_matches('-');
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let mut exponent: i64 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    exponent = exponent.checked_sub(i64::try_from(fraction.len()).ok()?)?;
    let digits = format!("{whole}{fraction}");
    let kept = digits.trim_end_matches('0');
    exponent = exponent.checked_add(i64::try_from(digits.len() - kept.len()).ok()?)?;
    let Integer { digits, .. } = Integer::parse(kept)?;
    Some((digits, exponent))
}

/// 2^53.
pub(super) const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;
