//! Integers as patterns of digits, for ranges in which the schema compiler would round them.
//!
//! A schema cannot express such a pattern. So the schema has a mark in its place ([`super::marks`]): a 19-digit number
//! that occurs nowhere else in it.

use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use std::collections::HashMap;

/// The integers between two bounds that are multiples of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Whole {
    pub least: Option<i128>,
    pub most: Option<i128>,
    /// At least 1; at most [`STEP_MAX`] without the zeros that [`strip`] removes.
    pub step: i128,
}

impl Whole {
    pub(super) fn is_empty(&self) -> bool {
        let (Some(least), Some(most)) = (self.least, self.most) else {
            return false;
        };
        // The first multiple at or above the lower bound.
        least + (-least).rem_euclid(self.step) > most
    }

    fn pattern(&self) -> RegexAst {
        let mut parts = Vec::new();
        // From the lower bound or 0 upwards, and from the upper bound or -1 downwards.
        let from = self.least.filter(|&least| least >= 0);
        if self.most.is_none_or(|most| most >= 0) {
            parts.push(range(from.unwrap_or(0), self.most));
        }
        if from.is_none() {
            let down = self.most.filter(|&most| most < 0).unwrap_or(-1);
            parts.push(RegexAst::Concat(vec![byte(b'-'), range(down, self.least)]));
        }
        let within = RegexAst::Or(parts);
        if self.step == 1 {
            return within;
        }
        let (step, n_zeros) = strip(self.step);
        let factor = u32::try_from(step).unwrap_or(u32::MAX);
        let zeros = RegexAst::Literal("0".repeat(n_zeros));
        let multiple = RegexAst::Concat(vec![
            RegexAst::Repeat(Box::new(byte(b'-')), 0, 1),
            RegexAst::MultipleOf(factor, 0),
            zeros,
        ]);
        let multiple = RegexAst::Or(vec![byte(b'0'), multiple]);
        RegexAst::And(vec![within, multiple])
    }
}

/// `step` without its trailing zeros, and their number.
pub(super) fn strip(mut step: i128) -> (i128, usize) {
    let mut n_zeros = 0;
    while step > 0 && step % 10 == 0 {
        step /= 10;
        n_zeros += 1;
    }
    (step, n_zeros)
}

/// Matches the absolute values from |`least`| to |`most`|; without `most`, the range is unbounded.
fn range(least: i128, most: Option<i128>) -> RegexAst {
    let digits = |number: i128| -> Vec<u8> {
        let text = number.unsigned_abs().to_string();
        text.bytes().map(|byte| byte - b'0').collect()
    };
    let (least, most) = (&*digits(least), most.map(digits));
    let len = least.len();
    let nines = vec![9; len];
    match most.as_deref() {
        Some(most) if most.len() == len => between(least, most),
        Some(most) => {
            let mut tens = vec![0; most.len()];
            tens[0] = 1;
            let longer = longer(len, u32::try_from(most.len() - 2).unwrap_or(0));
            RegexAst::Or(vec![between(least, &nines), longer, between(&tens, most)])
        }
        None => RegexAst::Or(vec![between(least, &nines), longer(len, u32::MAX)]),
    }
}

/// Numbers with between `n` and `n_most` digits after the first one.
fn longer(n: usize, n_most: u32) -> RegexAst {
    let n = u32::try_from(n).unwrap_or(u32::MAX);
    if n_most < n {
        return RegexAst::NoMatch;
    }
    let more = RegexAst::Repeat(Box::new(any()), n, n_most);
    RegexAst::Concat(vec![RegexAst::Regex("[1-9]".to_owned()), more])
}

/// Numbers from `least` to `most`, which have the same number of digits.
fn between(least: &[u8], most: &[u8]) -> RegexAst {
    let n_same = least.iter().zip(most).take_while(|(a, b)| a == b).count();
    let same = digits(&least[..n_same]);
    let (least, most) = (&least[n_same..], &most[n_same..]);
    let (Some((&low, above)), Some((&high, below))) = (least.split_first(), most.split_first())
    else {
        return same;
    };
    let rest = RegexAst::Or(vec![
        RegexAst::Concat(vec![digits(&[low]), beyond(above, true)]),
        then_any(low + 1, high.wrapping_sub(1), above.len()),
        RegexAst::Concat(vec![digits(&[high]), beyond(below, false)]),
    ]);
    RegexAst::Concat(vec![same, rest])
}

/// Numbers with as many digits as `bound` that are not less than it, or not greater.
fn beyond(bound: &[u8], is_least: bool) -> RegexAst {
    let mut made = RegexAst::EmptyString;
    for (n, &digit) in bound.iter().rev().enumerate() {
        let free = if is_least {
            then_any(digit + 1, 9, n)
        } else {
            then_any(0, digit.wrapping_sub(1), n)
        };
        let tight = RegexAst::Concat(vec![digits(&[digit]), made]);
        made = RegexAst::Or(vec![tight, free]);
    }
    made
}

/// A digit from `low` to `high`, followed by `n` arbitrary digits.
fn then_any(low: u8, high: u8, n: usize) -> RegexAst {
    if low > high || high > 9 {
        return RegexAst::NoMatch;
    }
    let n = u32::try_from(n).unwrap_or(u32::MAX);
    let first = RegexAst::Regex(format!("[{low}-{high}]"));
    RegexAst::Concat(vec![first, RegexAst::Repeat(Box::new(any()), n, n)])
}

fn any() -> RegexAst {
    RegexAst::Regex("[0-9]".to_owned())
}

fn digits(values: &[u8]) -> RegexAst {
    RegexAst::Literal(
        values
            .iter()
            .map(|digit| char::from(b'0' + digit))
            .collect(),
    )
}

const fn byte(byte: u8) -> RegexAst {
    RegexAst::Byte(byte)
}

/// All patterns of a schema, and the numbers that each is for.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    known: HashMap<Vec<Whole>, usize>,
    all: Vec<RegexAst>,
}

impl Patterns {
    /// One pattern for the numbers of each place; places with the same numbers share it.
    pub(super) fn new(places: impl Iterator<Item = Vec<Whole>>) -> Result<Self, String> {
        let (mut made, mut builder) = (Self::default(), RegexBuilder::new());
        let mut compiled: HashMap<ExprRef, usize> = HashMap::new();
        for wholes in places.filter(|wholes| !wholes.is_empty()) {
            if made.known.contains_key(&wholes) {
                continue;
            }
            let pattern = RegexAst::Or(wholes.iter().map(Whole::pattern).collect());
            let expr = builder.mk(&pattern);
            let expr = expr.map_err(|error| format!("a number is too long: {error}"))?;
            let number = *compiled.entry(expr).or_insert(made.all.len());
            if number == made.all.len() {
                made.all.push(pattern);
            }
            made.known.insert(wholes, number);
        }
        if made.all.len() > PATTERNS_MAX {
            return Err(format!(
                "numbers beyond 2^53 at more than {PATTERNS_MAX} places are not supported"
            ));
        }
        Ok(made)
    }

    /// The number of the pattern for these integers.
    pub(super) fn of(&self, wholes: &[Whole]) -> Option<usize> {
        self.known.get(wholes).copied()
    }

    pub(super) fn into_all(self) -> Vec<RegexAst> {
        self.all
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}

/// Each remainder is a state of the lexer: compiling 65521 took 44 s.
pub(super) const STEP_MAX: i128 = 10_000;
pub(super) const PATTERNS_MAX: usize = 1_000;
