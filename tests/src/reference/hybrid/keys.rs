//! The metadata of a family: values by name, and which names were asked for.

use std::collections::BTreeSet;

use super::super::Unreadable;
use super::super::file::{File, Value};

/// The keys under a file's architecture. One that was never read is an error at the end.
pub(super) struct Keys<'f> {
    file: &'f File,
    pub(super) arch: &'f str,
    used: BTreeSet<String>,
}

impl<'f> Keys<'f> {
    pub(super) fn new(file: &'f File) -> Result<Self, Unreadable> {
        let Some(Value::Text(arch)) = file.value("general.architecture") else {
            return Err(Unreadable::new("no architecture"));
        };
        let used = BTreeSet::new();
        Ok(Self { file, arch, used })
    }

    pub(super) fn finish(self) -> Result<(), Unreadable> {
        let prefix = format!("{}.", self.arch);
        let mut names = self.file.keys().filter(|name| name.starts_with(&prefix));
        match names.find(|&name| !self.used.contains(name)) {
            Some(name) => Err(Unreadable::new(format!("key {name} would be ignored"))),
            None => Ok(()),
        }
    }

    /// Skips keys that only repeat what tensors and other keys determine.
    pub(super) fn skip(&mut self, names: &[&str]) {
        for name in names {
            self.value(name);
        }
    }

    pub(super) fn length(&mut self, name: &str) -> Result<usize, Unreadable> {
        self.optional_length(name)?
            .ok_or_else(|| self.missing(name))
    }

    pub(super) fn optional_length(&mut self, name: &str) -> Result<Option<usize>, Unreadable> {
        let value = self.value(name);
        value.map(|value| length(name, value)).transpose()
    }

    /// One length for every layer, or a list of them.
    pub(super) fn lengths(&mut self, name: &str, n: usize) -> Result<Vec<usize>, Unreadable> {
        match self.value(name) {
            Some(Value::Array(listed)) if listed.len() == n => {
                listed.iter().map(|value| length(name, value)).collect()
            }
            Some(value) => Ok(vec![length(name, value)?; n]),
            None => Err(self.missing(name)),
        }
    }

    pub(super) fn number(&mut self, name: &str) -> Result<f64, Unreadable> {
        self.optional_number(name).ok_or_else(|| self.missing(name))
    }

    pub(super) fn optional_number(&mut self, name: &str) -> Option<f64> {
        match self.value(name)? {
            Value::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// Whether the key exists and is set.
    pub(super) fn is_set(&mut self, name: &str) -> bool {
        self.value(name) == Some(&Value::Bool(true))
    }

    /// A truth value for every layer.
    pub(super) fn flags(&mut self, name: &str, n: usize) -> Result<Option<Vec<bool>>, Unreadable> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(listed)) if listed.len() == n => {
                let flags = listed.iter().map(|value| *value == Value::Bool(true));
                Ok(Some(flags.collect()))
            }
            Some(value) => Err(Unreadable::new(format!("{name} is {value:?}"))),
        }
    }

    pub(super) fn text(&mut self, name: &str) -> Option<&'f str> {
        match self.value(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn has(&mut self, name: &str) -> bool {
        self.value(name).is_some()
    }

    fn value(&mut self, name: &str) -> Option<&'f Value> {
        let key = format!("{}.{name}", self.arch);
        let value = self.file.value(&key);
        self.used.insert(key);
        value
    }

    fn missing(&self, name: &str) -> Unreadable {
        Unreadable::new(format!("{}.{name} is missing", self.arch))
    }
}

fn length(name: &str, value: &Value) -> Result<usize, Unreadable> {
    match value {
        Value::Integer(number) => usize::try_from(*number).ok(),
        _ => None,
    }
    .ok_or_else(|| Unreadable::new(format!("{name} is not a length but {value:?}")))
}
