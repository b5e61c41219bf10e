//! Single-use iterators: the generators that `map`, `select`, `items` and similar filters return.
//!
//! As in Python, each is true, has neither a length nor indices, and is empty once it has been consumed.
//! Its items are computed at once, but an error among them is only returned when iteration reaches it.
//! One difference: a generator made from another one consumes it at once.

use crate::error::fail;
use core::fmt;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, Value};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The items that have not been taken yet.
#[derive(Debug)]
pub(crate) struct Once(Mutex<Rest>);

#[derive(Debug)]
struct Rest {
    items: VecDeque<Value>,
    /// The error after the last item.
    failure: Option<Error>,
}

impl Once {
    /// A generator of the items that `make` pushes to a list before it ends or fails.
    pub(crate) fn of(make: impl FnOnce(&mut Vec<Value>) -> Result<(), Error>) -> Value {
        let mut items = Vec::new();
        let failure = make(&mut items).err();
        let items = items.into();
        Value::from_object(Self(Mutex::new(Rest { items, failure })))
    }

    pub(crate) fn get(value: &Value) -> Option<&Self> {
        value.downcast_object_ref()
    }

    /// Takes the next item.
    pub(crate) fn next(&self) -> Result<Option<Value>, Error> {
        let mut rest = self.rest();
        match rest.items.pop_front() {
            Some(item) => Ok(Some(item)),
            None => rest.failure.take().map_or(Ok(None), Err),
        }
    }

    /// Takes all items.
    pub(crate) fn take(&self) -> Result<Vec<Value>, Error> {
        let mut rest = self.rest();
        let items = core::mem::take(&mut rest.items).into();
        rest.failure.take().map_or(Ok(items), Err)
    }

    /// The items, without taking them.
    pub(crate) fn peek(&self) -> Vec<Value> {
        self.rest().items.iter().cloned().collect()
    }

    /// jinja2 would print an address, so printing is refused.
    pub(crate) fn refuse_to_print(value: &Value) -> Result<(), Error> {
        match Self::get(value) {
            Some(_) => fail("a generator as a text is not supported; | list makes a list of it"),
            None => Ok(()),
        }
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object for Once {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let mut items = Vec::new();
        loop {
            match self.next() {
                Ok(Some(item)) => items.push(item),
                Ok(None) => return Enumerator::Values(items),
                // Push an invalid value: any use of it fails.
                Err(error) => items.push(Value::from(error)),
            }
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}
