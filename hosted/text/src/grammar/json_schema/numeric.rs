//! What numbers may be.

#![expect(clippy::float_cmp, reason = "bounds are what the schema says")]

use super::digits::{STEP_MAX, Whole, strip};
use super::exact::{EXACT_BELOW, Exact, Integer, decimal};
use serde_json::Number;

/// Bounds and factors of a number.
#[derive(Clone, Debug, Default)]
pub(super) struct Numeric {
    /// With whether it is itself outside.
    pub least: Option<(Exact, bool)>,
    pub most: Option<(Exact, bool)>,
    pub integer: bool,
    pub multiples: Vec<Step>,
}

/// What a number is a multiple of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub number: Number,
    /// It is this many times 10 to the power of -`n_places`.
    units: u128,
    n_places: u32,
}

/// Numbers that are compiled in one way.
#[derive(Debug)]
pub(super) enum Part {
    /// Doubles are exact here: a schema can say it.
    Small(Numeric),
    /// Only digits are exact.
    Whole(Whole),
}

impl Numeric {
    pub(super) fn exactly(value: Exact) -> Self {
        let bound = Some((value, false));
        Self {
            least: bound.clone(),
            most: bound,
            ..Self::default()
        }
    }

    /// Both bounds and both lists of factors.
    pub(super) fn and(mut self, other: Self) -> Self {
        type Bound = Option<(Exact, bool)>;
        let tighter = |a: Bound, b: Bound, upper: bool| match (a, b) {
            (Some(a), Some(b)) if a.0 == b.0 => Some((a.0, a.1 || b.1)),
            (Some(a), Some(b)) if (a.0 < b.0) == upper => Some(a),
            (Some(_), Some(b)) => Some(b),
            (a, b) => a.or(b),
        };
        self.least = tighter(self.least, other.least, false);
        self.most = tighter(self.most, other.most, true);
        self.integer |= other.integer;
        for multiple in other.multiples {
            if !self.multiples.contains(&multiple) {
                self.multiples.push(multiple);
            }
        }
        self
    }

    /// The parts that together are all of it, none of them empty. Beyond 2^53 they are whole
    /// numbers alone: a fraction there would be rounded by whoever reads the document.
    ///
    /// # Errors
    /// The factors cannot be held to.
    pub(super) fn parts(&self) -> Result<Vec<Part>, String> {
        let is_small = |bound: &Option<(Exact, bool)>| {
            let bound = bound.as_ref();
            bound.is_none_or(|(x, _)| x.is_small())
        };
        let has_small_steps = self.has_small_steps();
        if is_small(&self.least) && is_small(&self.most) && has_small_steps {
            let small = (!self.is_empty_small()).then(|| Part::Small(self.clone()));
            return Ok(small.into_iter().collect());
        }
        let whole = Whole {
            least: self.least.as_ref().map(|(x, open)| x.ceil(*open)),
            most: self.most.as_ref().map(|(x, open)| x.floor(*open)),
            step: self.step()?,
        };
        let mut parts = Vec::new();
        let mut wholes = vec![whole.clone()];
        let is_whole = self.integer || self.multiples.iter().any(|step| step.n_places == 0);
        if !is_whole {
            if !has_small_steps {
                return Err(TOO_FINE.to_owned());
            }
            let last = Integer::of(EXACT_BELOW).minus(1);
            let bound = |x: &Integer| Some((Exact::Whole(x.clone()), false));
            let small = self.clone().and(Self {
                least: bound(&last.clone().negated()),
                most: bound(&last),
                ..Self::default()
            });
            if !small.is_empty_small() {
                parts.push(Part::Small(small));
            }
            let (mut below, mut above) = (whole.clone(), whole);
            let (down, up) = (last.clone().negated().minus(1), last.plus(1));
            below.most = Some(below.most.map_or(down.clone(), |most| most.min(down)));
            above.least = Some(above.least.map_or(up.clone(), |least| least.max(up)));
            wholes = vec![below, above];
        }
        wholes.retain(|whole| !whole.is_empty());
        parts.extend(wholes.into_iter().map(Part::Whole));
        Ok(parts)
    }

    /// Whether the compiler can hold to the factors, whose least common multiple it makes in 32
    /// bits.
    fn has_small_steps(&self) -> bool {
        let all = &self.multiples;
        let n_places = all.iter().map(|step| step.n_places).max().unwrap_or(0);
        let scaled = all.iter().map(|step| {
            let scale = 10_u128.checked_pow(n_places - step.n_places)?;
            step.units.checked_mul(scale)
        });
        let product = scaled.reduce(|a, b| a?.checked_mul(b?)).unwrap_or(Some(1));
        n_places <= PLACES_MAX && product.is_some_and(|product| product <= STEP_MAX)
    }

    /// What whole numbers are multiples of.
    fn step(&self) -> Result<u128, String> {
        let mut step: u128 = 1;
        for next in &self.multiples {
            let next = next.units / gcd(next.units, 10_u128.pow(next.n_places));
            let both = (step / gcd(step, next)).checked_mul(next);
            step = both.unwrap_or(u128::MAX);
            if step > STEP_LIMIT || strip(step).0 > STEP_MAX {
                return Err(TOO_FINE.to_owned());
            }
        }
        Ok(step)
    }

    /// The one number that is left, if there is only one.
    pub(super) fn only(&self) -> Option<&Exact> {
        match (&self.least, &self.most) {
            (Some(least), Some(most)) if least == most => Some(&least.0),
            _ => None,
        }
    }

    fn is_empty_small(&self) -> bool {
        let (Some((least, without_least)), Some((most, without_most))) = (&self.least, &self.most)
        else {
            return false;
        };
        let (least, most) = (least.as_f64(), most.as_f64());
        let inside = |x: f64| {
            (x > least || (x == least && !without_least))
                && (x < most || (x == most && !without_most))
        };
        if least > most || (least == most && !inside(least)) {
            return true;
        }
        let steps = self
            .multiples
            .iter()
            .filter_map(|step| step.number.as_f64());
        let mut steps = steps.chain(self.integer.then_some(1.0));
        // The first two multiples from the lower bound on, should it be outside.
        let misses = |step: f64| {
            let first = (least / step - 1e-9).ceil();
            ![first, first + 1.0].iter().any(|n| {
                let x = n * step;
                inside(x)
                    || (self
                        .only()
                        .is_some_and(|only| (only.as_f64() - x).abs() <= least.abs() * 1e-15))
            })
        };
        steps.any(misses)
    }
}

impl Step {
    /// What stands there, if it is above 0 and can be held to.
    pub(super) fn parse(literal: &str, number: &Number) -> Result<Self, String> {
        if literal.starts_with('-') || number.as_f64().is_none_or(|x| x <= 0.0) {
            return Err("it is no number above 0".to_owned());
        }
        let parsed = decimal(literal).and_then(|(digits, exponent)| {
            let unit = |units: u128, digit: &u8| {
                let more = units.checked_mul(10)?.checked_add(u128::from(*digit))?;
                (more <= STEP_LIMIT).then_some(more)
            };
            let units = digits.iter().try_fold(0, unit)?;
            let n_places = u32::try_from(exponent.unsigned_abs()).ok()?;
            let scale = 10_u128.checked_pow(n_places).filter(|&x| x <= STEP_LIMIT)?;
            if exponent < 0 {
                return Some((units, n_places));
            }
            let units = units.checked_mul(scale).filter(|&x| x <= STEP_LIMIT)?;
            Some((units, 0))
        });
        let is_wide = |units| strip(units).0 > STEP_MAX;
        match parsed {
            Some((units, n_places)) if !is_wide(units) && n_places <= PLACES_MAX => Ok(Self {
                number: number.clone(),
                units,
                n_places,
            }),
            _ => Err(format!("multiples of {literal} are not supported")),
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

const TOO_FINE: &str = "such factors of a number together are not supported";
/// Of the compiler's fractions.
const PLACES_MAX: u32 = 8;
/// So that a remainder with a digit more fits into 128 bits.
const STEP_LIMIT: u128 = 10_u128.pow(37);
