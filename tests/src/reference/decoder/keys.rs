//! The metadata of an architecture; remembers which keys were asked for.

use core::cell::RefCell;
use std::collections::BTreeSet;

use super::super::Unreadable;
use super::super::file::{File, Value};

pub(super) struct Keys<'f> {
    file: &'f File,
    /// What all keys begin with.
    prefix: String,
    asked: RefCell<BTreeSet<String>>,
}

/// What logits do not depend on, or what the tensors say as well.
const IDLE: [&str; 2] = ["vocab_size", "rope.scaling.finetuned"];

impl<'f> Keys<'f> {
    pub(super) fn new(file: &'f File, arch: &str) -> Self {
        Self {
            file,
            prefix: format!("{arch}."),
            asked: RefCell::default(),
        }
    }

    /// No key of the architecture is left over, which an evaluation would have ignored.
    pub(super) fn finish(self) -> Result<(), Unreadable> {
        let asked = self.asked.into_inner();
        let mut keys = self.file.keys().filter_map(|key| {
            let name = key.strip_prefix(&self.prefix)?;
            let is_known = asked.contains(key) || IDLE.contains(&name);
            (!is_known).then_some(key)
        });
        match keys.next() {
            Some(key) => Err(Unreadable::new(format!("key {key} would be ignored"))),
            None => Ok(()),
        }
    }

    pub(super) fn value(&self, name: &str) -> Option<&'f Value> {
        let key = format!("{}{name}", self.prefix);
        let value = self.file.value(&key);
        self.asked.borrow_mut().insert(key);
        value
    }

    pub(super) fn length(&self, name: &str) -> Result<usize, Unreadable> {
        self.value(name)
            .and_then(length)
            .ok_or_else(|| self.unsound(name, "a length"))
    }

    pub(super) fn length_or(&self, name: &str, default: usize) -> Result<usize, Unreadable> {
        match self.value(name) {
            Some(_) => self.length(name),
            None => Ok(default),
        }
    }

    pub(super) fn number(&self, name: &str) -> Result<f64, Unreadable> {
        match self.value(name) {
            Some(&Value::Integer(number)) => Ok(number as f64),
            Some(&Value::Float(number)) => Ok(number),
            _ => Err(self.unsound(name, "a number")),
        }
    }

    pub(super) fn number_or(&self, name: &str, default: f64) -> Result<f64, Unreadable> {
        match self.value(name) {
            Some(_) => self.number(name),
            None => Ok(default),
        }
    }

    pub(super) fn flag_or(&self, name: &str, default: bool) -> Result<bool, Unreadable> {
        match self.value(name) {
            Some(&Value::Bool(flag)) => Ok(flag),
            None => Ok(default),
            Some(_) => Err(self.unsound(name, "a truth value")),
        }
    }

    pub(super) fn text_or(&self, name: &str, default: &'f str) -> Result<&'f str, Unreadable> {
        match self.value(name) {
            Some(Value::Text(text)) => Ok(text),
            None => Ok(default),
            Some(_) => Err(self.unsound(name, "a text")),
        }
    }

    /// A length of every layer: one number, or a list.
    pub(super) fn lengths_or(
        &self,
        name: &str,
        default: usize,
        n_layer: usize,
    ) -> Result<Vec<usize>, Unreadable> {
        match self.value(name) {
            Some(Value::Array(listed)) => {
                let lengths: Option<Vec<usize>> = listed.iter().map(length).collect();
                let lengths = lengths.filter(|lengths| lengths.len() == n_layer);
                lengths.ok_or_else(|| self.unsound(name, "a length for each layer"))
            }
            _ => Ok(vec![self.length_or(name, default)?; n_layer]),
        }
    }

    /// A truth value of every layer, if the key is a list.
    pub(super) fn flags(
        &self,
        name: &str,
        n_layer: usize,
    ) -> Result<Option<Vec<bool>>, Unreadable> {
        let Some(Value::Array(listed)) = self.value(name) else {
            return Ok(None);
        };
        let flag = |value: &Value| match *value {
            Value::Bool(flag) => Some(flag),
            Value::Integer(number) => Some(number != 0),
            _ => None,
        };
        let flags: Option<Vec<bool>> = listed.iter().map(flag).collect();
        match flags.filter(|flags| flags.len() == n_layer) {
            Some(flags) => Ok(Some(flags)),
            None => Err(self.unsound(name, "a truth value for each layer")),
        }
    }

    fn unsound(&self, name: &str, what: &str) -> Unreadable {
        Unreadable::new(format!("{}{name} is not {what}", self.prefix))
    }
}

fn length(value: &Value) -> Option<usize> {
    match *value {
        Value::Integer(number) => usize::try_from(number).ok(),
        _ => None,
    }
}
