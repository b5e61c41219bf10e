//! Values of keyword arguments: what each kind accepts, and why others are refused.

use crate::arguments::Argument;
use core::fmt::Display;
use core::ops::RangeInclusive;
use core::str::FromStr;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;
use serde_json::{Map, Value};

/// Why a value is refused.
pub(super) enum Refusal {
    /// It has another type.
    Type(String),
    /// It is not one of the values that the argument takes.
    Value(String),
}

impl Refusal {
    pub(super) fn value(why: impl Display) -> Self {
        Self::Value(why.to_string())
    }

    /// The exception for the argument `name`.
    pub(super) fn of(self, name: &str, value: &Bound<'_, PyAny>) -> PyErr {
        let shown = value.repr();
        let shown = shown.map_or_else(|_| "invalid".into(), |shown| shown.to_string());
        match self {
            Self::Type(why) => PyTypeError::new_err(format!("{name} is {shown}, {why}")),
            Self::Value(why) => PyValueError::new_err(format!("{name} is {shown}, {why}")),
        }
    }
}

/// Reads what pyo3 converts; `what` describes it.
pub(super) fn any<'py, T: FromPyObjectOwned<'py>>(
    what: &str,
) -> impl Fn(&Bound<'py, PyAny>) -> Result<T, Refusal> {
    move |value| {
        let wrong = |_| Refusal::Type(format!("expected {what}"));
        value.extract().map_err(wrong)
    }
}

/// Reads an integer of a range.
pub(super) fn int<T: TryFrom<i64>>(
    range: RangeInclusive<i64>,
) -> impl Fn(&Bound<'_, PyAny>) -> Result<T, Refusal> {
    move |value| {
        let expected = format!(
            "expected an integer from {} to {}",
            range.start(),
            range.end()
        );
        let is_int =
            value.hasattr("__index__").unwrap_or(false) && !value.is_instance_of::<PyBool>();
        if !is_int {
            return Err(Refusal::Type(expected));
        }
        let number = value.extract::<i64>().ok();
        let number = number.filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or(Refusal::Value(expected))
    }
}

/// Reads a number of a range.
pub(super) fn float<'py, T: FromPyObjectOwned<'py> + PartialOrd + Display>(
    range: RangeInclusive<T>,
) -> impl Fn(&Bound<'py, PyAny>) -> Result<T, Refusal> {
    move |value| {
        let (start, end) = (range.start(), range.end());
        let expected = format!("expected a number from {start} to {end}");
        match value.extract::<T>() {
            Ok(number) if range.contains(&number) => Ok(number),
            Ok(_) => Err(Refusal::Value(expected)),
            Err(_) => Err(Refusal::Type(expected)),
        }
    }
}

/// Reads a name that `T` parses.
pub(super) fn name<T: FromStr<Err: Display>>(value: &Bound<'_, PyAny>) -> Result<T, Refusal> {
    let name: String = any("a name")(value)?;
    name.parse().map_err(Refusal::value)
}

/// Reads one of `names`.
pub(super) fn one_of<T>(
    from_name: fn(&str) -> Option<T>,
    names: &[&str],
) -> impl Fn(&Bound<'_, PyAny>) -> Result<T, Refusal> {
    let expected = format!("expected one of {}", names.join(", "));
    move |value| {
        let name: String = any("a name")(value)?;
        from_name(&name).ok_or_else(|| Refusal::value(&expected))
    }
}

/// Reads a list of names, or names separated by commas.
pub(super) fn names<T: FromStr<Err: Display>>(value: &Bound<'_, PyAny>) -> Result<Vec<T>, Refusal> {
    let names: Vec<String> = match value.extract::<String>() {
        Ok(text) => text.split(',').map(str::to_owned).collect(),
        Err(_) => any("a name, or a list of names")(value)?,
    };
    let parsed = names.iter().map(|name| name.parse());
    parsed.collect::<Result<_, _>>().map_err(Refusal::value)
}

/// Reads the pairs of a mapping, in its order.
pub(super) fn pairs<'py, K, V>(
    what: &str,
) -> impl Fn(&Bound<'py, PyAny>) -> Result<Vec<(K, V)>, Refusal>
where
    K: FromPyObjectOwned<'py>,
    V: FromPyObjectOwned<'py>,
{
    move |value| {
        let items = value.call_method0("items");
        let all = items.and_then(|items| items.try_iter()?.collect::<PyResult<Vec<_>>>());
        let pairs = all.map(|all| all.iter().map(|item| item.extract()).collect());
        match pairs {
            Ok(Ok(pairs)) => Ok(pairs),
            _ => Err(Refusal::Type(format!("expected {what}"))),
        }
    }
}

/// Reads a JSON object.
pub(super) fn json(value: &Bound<'_, PyAny>) -> Result<Map<String, Value>, Refusal> {
    let object = Argument::new("the value", value.clone()).object();
    object.map_err(|error| Refusal::Type(format!("expected JSON: {error}")))
}
