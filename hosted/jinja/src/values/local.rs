//! Lists that a template wrote itself, which may grow. Those of the caller stay as they are.

use super::items;
use core::sync::atomic::{AtomicUsize, Ordering};
use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, Value};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A list that was written as `[..]`. A loop over it sees the items that it had before.
#[derive(Debug)]
pub(crate) struct Local {
    items: Mutex<Vec<Value>>,
    /// The most values that were around it when it, or what holds it, was added to a list that grows.
    pub(crate) depth: AtomicUsize,
}

impl Local {
    /// A list of the items of another.
    pub(crate) fn of(list: &Value) -> Result<Value, Error> {
        Ok(Value::from_object(Self {
            items: Mutex::new(items(list)?),
            depth: AtomicUsize::default(),
        }))
    }

    pub(crate) fn get(value: &Value) -> Option<&Self> {
        value.downcast_object_ref()
    }

    pub(crate) fn items(&self) -> MutexGuard<'_, Vec<Value>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that it is inside of `depth` values, and returns the number that counts.
    pub(crate) fn sink(&self, depth: usize) -> usize {
        self.depth.fetch_max(depth, Ordering::Relaxed).max(depth)
    }
}

impl Object for Local {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items().clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items().len())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !self.items().is_empty()
    }
}
