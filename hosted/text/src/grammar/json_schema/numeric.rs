//! The range of a number.

#![expect(clippy::float_cmp, reason = "bounds are what the schema says")]

use super::digits::{STEP_MAX, Whole, strip};
use super::exact::{Exact, SMALL_MAX};
use serde_json::Number;

/// Bounds and factors of a number.
#[derive(Clone, Debug, Default)]
pub(super) struct Numeric {
    pub least: Option<Bound>,
    pub most: Option<Bound>,
    pub integer: bool,
    pub multiples: Vec<Step>,
}

/// A lower or upper bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    pub at: Exact,
    /// Whether the number itself is excluded.
    pub is_open: bool,
}

/// A factor of a number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub number: Number,
    /// The factor in units of 10 to the power of -`n_places`.
    units: i128,
    n_places: u32,
}

/// A range of numbers that is compiled in one way.
#[derive(Debug)]
pub(super) enum Part {
    /// Doubles are exact here, so a schema can express it.
    Small(Numeric),
    /// Only digits are exact here.
    Whole(Whole),
}

impl Numeric {
    pub(super) fn exactly(at: Exact) -> Self {
        let is_open = false;
        let bound = Some(Bound { at, is_open });
        Self {
            least: bound,
            most: bound,
            ..Self::default()
        }
    }

    /// Combines bounds and factors.
    pub(super) fn and(mut self, other: Self) -> Self {
        let tighter = |a: Option<Bound>, b: Option<Bound>, is_upper: bool| match (a, b) {
            (Some(a), Some(b)) if a.at == b.at => Some(if a.is_open { a } else { b }),
            (Some(a), Some(b)) if (a.at < b.at) == is_upper => Some(a),
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

    /// Non-empty parts that together cover all numbers. Beyond 2^53 there are only integers, because a
    /// reader of the document would round a fraction.
    ///
    /// # Errors
    /// The factors cannot be enforced.
    pub(super) fn parts(&self) -> Result<Vec<Part>, String> {
        let is_small = |bound: Option<Bound>| bound.is_none_or(|bound| bound.at.is_small());
        let has_small_steps = self.has_small_steps();
        if is_small(self.least) && is_small(self.most) && has_small_steps {
            let small = (!self.is_empty_small()).then(|| Part::Small(self.clone()));
            return Ok(small.into_iter().collect());
        }
        let whole = Whole {
            least: self.least.map(|bound| bound.at.ceil(bound.is_open)),
            most: self.most.map(|bound| bound.at.floor(bound.is_open)),
            step: self.step()?,
        };
        let mut parts = Vec::new();
        let mut wholes = vec![whole];
        let is_whole = self.integer || self.multiples.iter().any(|step| step.n_places == 0);
        if !is_whole {
            if !has_small_steps {
                return Err(TOO_FINE.to_owned());
            }
            let within = |at| Self::exactly(Exact::Whole(at)).least;
            let small = self.clone().and(Self {
                least: within(-SMALL_MAX),
                most: within(SMALL_MAX),
                ..Self::default()
            });
            if !small.is_empty_small() {
                parts.push(Part::Small(small));
            }
            let beyond = SMALL_MAX + 1;
            let most = Some(whole.most.map_or(-beyond, |most| most.min(-beyond)));
            let least = Some(whole.least.map_or(beyond, |least| least.max(beyond)));
            wholes = vec![Whole { most, ..whole }, Whole { least, ..whole }];
        }
        wholes.retain(|whole| !whole.is_empty());
        parts.extend(wholes.into_iter().map(Part::Whole));
        Ok(parts)
    }

    /// Whether the compiler can enforce the factors: it computes their least common multiple in 32
    /// bits.
    fn has_small_steps(&self) -> bool {
        let all = &self.multiples;
        let n_places = all.iter().map(|step| step.n_places).max().unwrap_or(0);
        let scaled = all.iter().map(|step| {
            let scale = 10_i128.checked_pow(n_places - step.n_places)?;
            step.units.checked_mul(scale)
        });
        let product = scaled.reduce(|a, b| a?.checked_mul(b?)).unwrap_or(Some(1));
        n_places <= PLACES_MAX && product.is_some_and(|product| product <= STEP_MAX)
    }

    /// The factor of integers.
    fn step(&self) -> Result<i128, String> {
        let mut step: i128 = 1;
        for next in &self.multiples {
            let next = next.units / gcd(next.units, 10_i128.pow(next.n_places));
            let both = (step / gcd(step, next)).checked_mul(next);
            step = both.unwrap_or(i128::MAX);
            if step > STEP_LIMIT || strip(step).0 > STEP_MAX {
                return Err(TOO_FINE.to_owned());
            }
        }
        Ok(step)
    }

    /// The only possible number, if there is just one.
    pub(super) fn only(&self) -> Option<Exact> {
        let least = self.least.filter(|_| self.least == self.most);
        least.map(|least| least.at)
    }

    fn is_empty_small(&self) -> bool {
        let (Some(lower), Some(upper)) = (self.least, self.most) else {
            return false;
        };
        let (least, most) = (lower.at.as_f64(), upper.at.as_f64());
        let inside = |x: f64| {
            (x > least || (x == least && !lower.is_open))
                && (x < most || (x == most && !upper.is_open))
        };
        if least > most || (least == most && !inside(least)) {
            return true;
        }
        let steps = self
            .multiples
            .iter()
            .filter_map(|step| step.number.as_f64());
        let mut steps = steps.chain(self.integer.then_some(1.0));
        // The first two multiples above the lower bound, in case the first one is excluded.
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
    /// The factor, if it is above 0 and can be enforced.
    pub(super) fn of(number: &Number) -> Result<Self, String> {
        if number.as_f64().is_none_or(|x| x <= 0.0) {
            return Err("not a number above 0".to_owned());
        }
        let parsed = Exact::of(number).and_then(|exact| match exact {
            Exact::Whole(units) => Some((units, 0)),
            Exact::Fraction(_) => decimal(&number.to_string()),
        });
        match parsed {
            Some((units, n_places)) if strip(units).0 <= STEP_MAX && n_places <= PLACES_MAX => {
                Ok(Self {
                    number: number.clone(),
                    units,
                    n_places,
                })
            }
            _ => Err(format!("multiples of {number} are not supported")),
        }
    }
}

/// The shortest digits of a double, and the number of decimal places.
fn decimal(text: &str) -> Option<(i128, u32)> {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let n_places = i32::try_from(fraction.len()).ok()? - exponent.parse::<i32>().ok()?;
    let units = format!("{whole}{fraction}").parse().ok()?;
    Some((units, u32::try_from(n_places).ok()?))
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

const TOO_FINE: &str = "this combination of multipleOf factors is not supported";
/// Maximum number of decimal places of the compiler's fractions.
const PLACES_MAX: u32 = 8;
/// Chosen so that the sum of a bound and a step fits into 128 bits.
const STEP_LIMIT: i128 = 10_i128.pow(37);
