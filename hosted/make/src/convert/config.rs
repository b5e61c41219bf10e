//! `config.json`, asked by the several names that families have for one thing.
#![forbid(unsafe_code)]

use super::ConvertError;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// A JSON object of a file, with errors that name the file and the key.
#[derive(Clone, Debug)]
pub(super) struct Config {
    path: PathBuf,
    map: Map<String, Value>,
}

/// No honest dimension, count or context is as large; it bounds what a hostile one can ask for.
const COUNT_MAX: u64 = 1 << 24;

impl Config {
    pub(super) fn new(path: &Path, map: Map<String, Value>) -> Self {
        Self {
            path: path.into(),
            map,
        }
    }

    /// The value of the first key that is there and not null.
    pub(super) fn find(&self, keys: &[&str]) -> Option<&Value> {
        let mut values = keys.iter().filter_map(|&key| self.map.get(key));
        values.find(|value| !value.is_null())
    }

    /// A part of the configuration with a name of its own, such as `rope_scaling`.
    pub(super) fn part(&self, map: Map<String, Value>) -> Self {
        Self::new(&self.path, map)
    }

    pub(super) fn str(&self, key: &str) -> Option<&str> {
        self.find(&[key])?.as_str()
    }

    pub(super) fn bool(&self, key: &str) -> Option<bool> {
        self.find(&[key])?.as_bool()
    }

    /// A count of at least 1.
    pub(super) fn count(&self, keys: &[&str]) -> Result<u32, ConvertError> {
        let found = self.maybe_count(keys)?;
        found.ok_or_else(|| self.error(keys, "is missing"))
    }

    pub(super) fn maybe_count(&self, keys: &[&str]) -> Result<Option<u32>, ConvertError> {
        let Some(value) = self.find(keys) else {
            return Ok(None);
        };
        let n = value.as_u64().filter(|n| (1..=COUNT_MAX).contains(n));
        let n = n.and_then(|n| u32::try_from(n).ok());
        let told = || {
            self.error(
                keys,
                &format!("is {value}, not a number in 1..={COUNT_MAX}"),
            )
        };
        n.map(Some).ok_or_else(told)
    }

    pub(super) fn number(&self, keys: &[&str]) -> Result<f64, ConvertError> {
        let found = self.maybe_number(keys)?;
        found.ok_or_else(|| self.error(keys, "is missing"))
    }

    pub(super) fn maybe_number(&self, keys: &[&str]) -> Result<Option<f64>, ConvertError> {
        let Some(value) = self.find(keys) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|x| x.is_finite());
        let told = || self.error(keys, &format!("is {value}, not a number"));
        number.map(Some).ok_or_else(told)
    }

    /// A list of numbers.
    pub(super) fn numbers(&self, key: &str) -> Result<Option<Vec<f32>>, ConvertError> {
        let Some(value) = self.find(&[key]) else {
            return Ok(None);
        };
        let elements = value
            .as_array()
            .filter(|list| list.len() as u64 <= COUNT_MAX);
        let numbers = elements.and_then(|list| list.iter().map(as_f32).collect());
        let told = || self.error(&[key], "is not a list of numbers");
        numbers.map(Some).ok_or_else(told)
    }

    pub(super) fn error(&self, keys: &[&str], what: &str) -> ConvertError {
        ConvertError::Config {
            path: self.path.clone(),
            key: keys.join(" or "),
            what: what.into(),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounded, as every reader of f32 does"
)]
fn as_f32(value: &Value) -> Option<f32> {
    Some(value.as_f64()? as f32)
}
