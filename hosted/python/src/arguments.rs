//! Reads arguments, which are plain Python values. An error names the argument by its path.

use crate::answers::RefusedError;
use core::fmt::Display;
use core::ops::RangeInclusive;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::{Map, Number, Value};

/// Arguments by name. None is the same as absence.
pub(crate) struct Arguments<'p> {
    values: Bound<'p, PyDict>,
    /// The path that their names follow; empty at the top.
    prefix: String,
    n_read: usize,
}

/// An argument, or an item of one.
pub(crate) struct Argument<'p> {
    path: String,
    value: Bound<'p, PyAny>,
}

impl<'p> Arguments<'p> {
    pub(crate) const fn new(values: Bound<'p, PyDict>) -> Self {
        Self {
            values,
            prefix: String::new(),
            n_read: 0,
        }
    }

    pub(crate) fn get(&mut self, name: &str) -> PyResult<Option<Argument<'p>>> {
        let Some(value) = self.values.get_item(name)? else {
            return Ok(None);
        };
        self.n_read += 1;
        let value = plain(value)?;
        Ok((!value.is_none()).then(|| Argument {
            path: format!("{}{name}", self.prefix),
            value,
        }))
    }

    /// The first of `names` that is there.
    pub(crate) fn first(&mut self, names: &[&str]) -> PyResult<Option<Argument<'p>>> {
        let mut found = None;
        for name in names {
            let argument = self.get(name)?;
            found = found.or(argument);
        }
        Ok(found)
    }

    /// # Errors
    /// TypeError if there are arguments that were not read; `is_known` tells which names could have been.
    pub(crate) fn check(&self, is_known: impl Fn(&str) -> bool) -> PyResult<()> {
        if self.n_read == self.values.len() {
            return Ok(());
        }
        for name in self.values.keys() {
            let name: String = name.extract()?;
            if !is_known(&name) {
                return Err(PyTypeError::new_err(format!(
                    "unexpected argument {name:?}"
                )));
            }
        }
        Ok(())
    }
}

impl<'p> Argument<'p> {
    pub(crate) fn new(path: &str, value: Bound<'p, PyAny>) -> Self {
        Self {
            path: path.to_owned(),
            value,
        }
    }

    pub(crate) fn bool(&self) -> PyResult<bool> {
        let value = self.value.cast::<PyBool>();
        value.map_or_else(
            |_| Err(self.wrong("true or false")),
            |value| Ok(value.is_true()),
        )
    }

    pub(crate) fn is_text(&self) -> bool {
        self.value.is_instance_of::<PyString>()
    }

    pub(crate) fn is_number(&self) -> bool {
        self.whole().is_some() || self.value.is_instance_of::<PyFloat>()
    }

    pub(crate) fn text(&self) -> PyResult<String> {
        match self.value.cast::<PyString>() {
            Ok(text) => unicode(text),
            Err(_) => Err(self.wrong("a string")),
        }
    }

    /// One of `words`.
    pub(crate) fn word(&self, words: &[&str]) -> PyResult<String> {
        let text = self.text()?;
        match words.contains(&&*text) {
            true => Ok(text),
            false => Err(self.wrong(&format!("one of {}", words.join(", ")))),
        }
    }

    /// The items of a list or tuple.
    pub(crate) fn items(&self, expected: &str) -> PyResult<Vec<Self>> {
        let value = &self.value;
        if !value.is_instance_of::<PyList>() && !value.is_instance_of::<PyTuple>() {
            return Err(self.wrong(expected));
        }
        let item = |(i, value): (usize, PyResult<_>)| {
            Ok(Self {
                path: format!("{}[{i}]", self.path),
                value: plain(value?)?,
            })
        };
        value.try_iter()?.enumerate().map(item).collect()
    }

    /// A text, or a list of texts.
    pub(crate) fn texts(&self) -> PyResult<Vec<String>> {
        if self.is_text() {
            return Ok(vec![self.text()?]);
        }
        let items = self.items("a string or a list of strings")?;
        items.iter().map(Self::text).collect()
    }

    /// A list of tokens.
    pub(crate) fn tokens(&self) -> PyResult<Vec<u32>> {
        if let Some(tokens) = self.plain_tokens() {
            return Ok(tokens);
        }
        let items = self.items("a list of token ids")?;
        items.iter().map(Self::token).collect()
    }

    /// The tokens of a list of integers, which most lists are.
    pub(crate) fn plain_tokens(&self) -> Option<Vec<u32>> {
        let list = self.value.cast::<PyList>().ok()?;
        let token = |value: Bound<'_, PyAny>| value.cast_exact::<PyInt>().ok()?.extract().ok();
        list.iter().map(token).collect()
    }

    pub(crate) fn token(&self) -> PyResult<u32> {
        let token = self.whole().and_then(|number| u32::try_from(number).ok());
        token.ok_or_else(|| self.wrong("a token id"))
    }

    /// The arguments in a dictionary.
    pub(crate) fn arguments(&self) -> PyResult<Arguments<'p>> {
        Ok(Arguments {
            values: self.dictionary()?.clone(),
            prefix: format!("{}.", self.path),
            n_read: 0,
        })
    }

    /// The keys and values of a dictionary. Errors of both name the dictionary.
    pub(crate) fn pairs(&self) -> PyResult<Vec<[Self; 2]>> {
        let of = |value| -> PyResult<Self> {
            let value = plain(value)?;
            let path = self.path.clone();
            Ok(Self { path, value })
        };
        let pairs = self.dictionary()?.iter();
        let pairs = pairs.map(|(key, value)| Ok([of(key)?, of(value)?]));
        pairs.collect()
    }

    fn dictionary(&self) -> PyResult<&Bound<'p, PyDict>> {
        self.value.cast().map_err(|_| self.wrong("a dictionary"))
    }

    /// An integer in `range`. A float may be one.
    pub(crate) fn int(&self, range: RangeInclusive<i64>) -> PyResult<i64> {
        let number = self.whole().ok_or_else(|| self.wrong("an integer"))?;
        match range.contains(&number) {
            true => Ok(number),
            false => Err(self.outside(&range)),
        }
    }

    /// An integer from 0 to `max`.
    pub(crate) fn count(&self, max: usize) -> PyResult<usize> {
        self.int(0..=i64::try_from(max).unwrap_or(i64::MAX))
            .map(|n| usize::try_from(n).unwrap_or(usize::MAX))
    }

    /// A number in `range`.
    pub(crate) fn float(&self, range: RangeInclusive<f32>) -> PyResult<f32> {
        let is_bool = self.value.is_instance_of::<PyBool>();
        let number: Option<f64> = self.value.extract().ok().filter(|_| !is_bool);
        let number = number.ok_or_else(|| self.wrong("a number"))?;
        if !number.is_finite() {
            return Err(self.not_finite());
        }
        #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
        let number = number as f32;
        match range.contains(&number) {
            true => Ok(number),
            false => Err(self.outside(&range)),
        }
    }

    /// Whether it is minus infinity, or False, which stands for that.
    pub(crate) fn is_never(&self) -> bool {
        let infinite = self
            .value
            .extract()
            .is_ok_and(|x: f64| x == f64::NEG_INFINITY);
        infinite || self.bool().is_ok_and(|is| !is)
    }

    /// The integer, also of a float that is one; one above 63 bits is the largest of them.
    pub(crate) fn whole(&self) -> Option<i64> {
        let value = &self.value;
        if value.is_instance_of::<PyBool>() {
            return None;
        }
        if let Ok(float) = value.cast::<PyFloat>() {
            let number = float.value();
            let is_whole = number.fract() == 0.0 && number.abs() < EXACT;
            #[expect(clippy::cast_possible_truncation, reason = "it is whole and small")]
            return is_whole.then_some(number as i64);
        }
        let clamped = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let number = value.extract().ok();
        number.or_else(|| value.extract().ok().map(clamped))
    }

    /// A list of JSON values.
    pub(crate) fn list(&self) -> PyResult<Vec<Value>> {
        match self.json()? {
            Value::Array(list) => Ok(list),
            _ => Err(self.wrong("a list")),
        }
    }

    /// A JSON object.
    pub(crate) fn object(&self) -> PyResult<Map<String, Value>> {
        match self.json()? {
            Value::Object(map) => Ok(map),
            _ => Err(self.wrong("a dictionary")),
        }
    }

    /// A value that its user has as JSON.
    pub(crate) fn json(&self) -> PyResult<Value> {
        self.json_of(&self.value, 0)
    }

    fn json_of(&self, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
        if depth > DEPTH_MAX {
            return Err(self.refused("is nested too deeply"));
        }
        let inner = |value: &Bound<'_, PyAny>| self.json_of(value, depth + 1);
        Ok(if value.is_none() {
            Value::Null
        } else if let Ok(value) = value.cast::<PyBool>() {
            value.is_true().into()
        } else if let Ok(text) = value.cast::<PyString>() {
            unicode(text)?.into()
        } else if let Ok(number) = value.extract::<i64>() {
            number.into()
        } else if value.is_instance_of::<PyInt>() || value.is_instance_of::<PyFloat>() {
            let number = Number::from_f64(value.extract()?);
            Value::Number(number.ok_or_else(|| self.not_finite())?)
        } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
            let items = value.try_iter()?;
            items.map(|item| inner(&item?)).collect::<PyResult<_>>()?
        } else if let Ok(items) = value.cast::<PyDict>() {
            let item = |(key, value)| {
                let key = match inner(&key)? {
                    Value::String(text) => text,
                    key => key.to_string(),
                };
                Ok((key, inner(&value)?))
            };
            items.iter().map(item).collect::<PyResult<_>>()?
        } else {
            let listed = plain(value.clone())?;
            if listed.is(value) {
                return Err(self.not_plain(value));
            }
            inner(&listed)?
        })
    }

    /// The error for a value of the wrong type.
    pub(crate) fn wrong(&self, expected: &str) -> PyErr {
        // A value that no argument takes is an error of its type.
        match self.json_of(&self.value, 0) {
            Err(error) if error.is_instance_of::<PyTypeError>(self.value.py()) => error,
            _ => self.refused(format!("{} is not {expected}", self.shown())),
        }
    }

    /// The error for a value that is wrong for another reason.
    pub(crate) fn refused(&self, what: impl Display) -> PyErr {
        let path = &self.path;
        RefusedError::new_err((format!("{path}: {what}"), "Invalid", path.clone()))
    }

    fn outside<T: Display>(&self, range: &RangeInclusive<T>) -> PyErr {
        let (least, most) = (range.start(), range.end());
        self.refused(format!(
            "{} is not between {least} and {most}",
            self.shown()
        ))
    }

    fn not_finite(&self) -> PyErr {
        let path = &self.path;
        RefusedError::new_err((format!("{path}: a number is not finite"), "", path.clone()))
    }

    fn not_plain(&self, value: &Bound<'_, PyAny>) -> PyErr {
        let name = value.get_type().to_string();
        PyTypeError::new_err(format!("{}: {name} is not supported", self.path))
    }

    fn shown(&self) -> String {
        let text = self.value.to_string();
        match text.char_indices().nth(SHOWN_CHARS) {
            None => text,
            Some((end, _)) => format!("{}…", &text[..end]),
        }
    }
}

/// Numbers and arrays of numpy and of packages like it as Python's own: they have `tolist`.
fn plain(value: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    let is_own = value.is_none()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyList>()
        || value.is_exact_instance_of::<PyDict>();
    match is_own {
        true => Ok(value),
        false => match value.getattr_opt("tolist")? {
            Some(listed) => listed.call0(),
            None => Ok(value),
        },
    }
}

fn unicode(text: &Bound<'_, PyString>) -> PyResult<String> {
    text.extract().map_err(|error: PyErr| {
        let message = format!("a string is not Unicode: {error}");
        RefusedError::new_err((message, "", None::<String>))
    })
}

/// Integral floats below this are exact.
const EXACT: f64 = 9_007_199_254_740_992.0;
const DEPTH_MAX: usize = 128;
const SHOWN_CHARS: usize = 80;
