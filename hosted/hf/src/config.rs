//! `config.json` and similar files, read under the several names that families use for one setting.
//!
//! An object records which of its keys were read. The others are then checked ([`super::unread`]),
//! so nothing in a file is dropped silently.

use crate::HfError;
use core::cell::RefCell;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A JSON object of a file, with errors that name the file and the key.
#[derive(Clone, Debug)]
pub struct Config {
    path: PathBuf,
    /// Prefix of its keys in messages, such as `rope_scaling.`.
    prefix: String,
    map: Map<String, Value>,
    asked: RefCell<BTreeSet<String>>,
}

/// No honest dimension, count or context is as large; it bounds what a hostile one can ask for.
const COUNT_MAX: u64 = 1 << 24;

impl Config {
    /// The object `map` of the file `path`.
    #[must_use]
    pub fn new(path: &Path, map: Map<String, Value>) -> Self {
        Self {
            path: path.into(),
            prefix: String::new(),
            map,
            asked: RefCell::default(),
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of the first key that exists and is not null.
    pub fn find(&self, keys: &[&str]) -> Option<&Value> {
        let mut asked = self.asked.borrow_mut();
        asked.extend(keys.iter().map(|&key| key.to_owned()));
        let mut values = keys.iter().filter_map(|&key| self.map.get(key));
        values.find(|value| !value.is_null())
    }

    /// Entries that were not read and are not null.
    #[must_use]
    pub fn unread(&self) -> Vec<(&str, &Value)> {
        let asked = self.asked.borrow();
        let entries = self.map.iter();
        let rest = entries.filter(|(key, value)| !asked.contains(*key) && !value.is_null());
        rest.map(|(key, value)| (key.as_str(), value)).collect()
    }

    /// An object within, or an empty one.
    #[must_use]
    pub fn part(&self, key: &str) -> Self {
        let map = self.find(&[key]).and_then(Value::as_object);
        Self {
            path: self.path.clone(),
            prefix: format!("{}{key}.", self.prefix),
            map: map.cloned().unwrap_or_default(),
            asked: RefCell::default(),
        }
    }

    /// The same part of the file with other entries.
    pub(crate) fn with(&self, map: Map<String, Value>) -> Self {
        Self {
            path: self.path.clone(),
            prefix: self.prefix.clone(),
            map,
            asked: RefCell::default(),
        }
    }

    /// Whether it has no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The whole map; reading it does not mark any key as read.
    #[must_use]
    pub const fn map(&self) -> &Map<String, Value> {
        &self.map
    }

    /// A text.
    #[must_use]
    pub fn str(&self, key: &str) -> Option<&str> {
        self.find(&[key])?.as_str()
    }

    /// A truth value.
    #[must_use]
    pub fn bool(&self, key: &str) -> Option<bool> {
        self.find(&[key])?.as_bool()
    }

    /// A count of at least 1.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn count(&self, keys: &[&str]) -> Result<u32, HfError> {
        let found = self.maybe_count(keys)?;
        found.ok_or_else(|| self.error(keys, "is missing"))
    }

    /// A count of at least 1, if a key is there.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn maybe_count(&self, keys: &[&str]) -> Result<Option<u32>, HfError> {
        let Some(value) = self.find(keys) else {
            return Ok(None);
        };
        let n = whole(value).filter(|n| (1..=COUNT_MAX).contains(n));
        let n = n.and_then(|n| u32::try_from(n).ok());
        let told = || {
            self.error(
                keys,
                &format!("is {value}, not an integer in 1..={COUNT_MAX}"),
            )
        };
        n.map(Some).ok_or_else(told)
    }

    /// A count that may be 0, if a key is there.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn maybe_whole(&self, keys: &[&str]) -> Result<Option<u32>, HfError> {
        match self.find(keys) {
            Some(value) if whole(value) == Some(0) => Ok(Some(0)),
            _ => self.maybe_count(keys),
        }
    }

    /// A number.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn number(&self, keys: &[&str]) -> Result<f64, HfError> {
        let found = self.maybe_number(keys)?;
        found.ok_or_else(|| self.error(keys, "is missing"))
    }

    /// A number, if a key is there.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn maybe_number(&self, keys: &[&str]) -> Result<Option<f64>, HfError> {
        let Some(value) = self.find(keys) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|x| x.is_finite());
        let told = || self.error(keys, &format!("is {value}, not a number"));
        number.map(Some).ok_or_else(told)
    }

    /// A list of numbers.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f32>>, HfError> {
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

    /// A list of texts.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, HfError> {
        let Some(value) = self.find(&[key]) else {
            return Ok(None);
        };
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let texts: Option<Vec<_>> = list.iter().map(Value::as_str).collect();
        let told = || self.error(&[key], "is not a list of strings");
        texts
            .filter(|_| value.is_array())
            .map(Some)
            .ok_or_else(told)
    }

    /// An error about the value of a key.
    #[must_use]
    pub fn error(&self, keys: &[&str], what: &str) -> HfError {
        let named: Vec<_> = keys
            .iter()
            .map(|key| format!("{}{key}", self.prefix))
            .collect();
        HfError::Config {
            path: self.path.clone(),
            key: named.join(" or "),
            what: what.into(),
        }
    }

    /// A key's name in messages.
    #[must_use]
    pub fn named(&self, key: &str) -> String {
        format!("{}: {}{key}", self.path.display(), self.prefix)
    }
}

/// A whole number, including `128.0`, which Python writes after a division.
#[must_use]
pub fn whole(value: &Value) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, and in the range that f64 is exact in"
    )]
    let from_float = |x: f64| {
        let is_whole = x.fract() == 0.0 && (0.0..9e15).contains(&x);
        is_whole.then_some(x as u64)
    };
    value.as_u64().or_else(|| from_float(value.as_f64()?))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "rounded, as every reader of f32 does"
)]
fn as_f32(value: &Value) -> Option<f32> {
    Some(value.as_f64()? as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_not_asked_for_is_known() {
        let map = json!({"a": 1, "b": {"c": 128.0, "d": 0.5}, "e": null, "f": [1]});
        let map = map.as_object().expect("an object").clone();
        let config = Config::new(Path::new("config.json"), map);
        assert_eq!(config.count(&["x", "a"]).expect("a count"), 1);
        let part = config.part("b");
        assert_eq!(part.count(&["c"]).expect("a whole float"), 128);
        let names = |config: &Config| {
            let unread = config.unread();
            unread
                .iter()
                .map(|(key, _)| (*key).to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (names(&config), names(&part)),
            (vec!["f".into()], vec!["d".to_owned()])
        );
        let error = part.count(&["d"]).expect_err("half a head").to_string();
        assert!(
            error.contains("config.json: b.d is 0.5, not an integer"),
            "{error}"
        );
        assert!(config.part("absent").is_empty());
    }
}
