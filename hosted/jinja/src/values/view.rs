//! Views: a dict's keys, values and items, and ranges.

use super::once::Once;
use core::fmt;
use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use std::sync::Arc;

/// Items with a representation other than a list's.
#[derive(Debug)]
pub(crate) struct View {
    shown: String,
    items: Vec<Value>,
    /// Whether it is a sequence, which can be indexed.
    is_range: bool,
}

impl View {
    /// Whether `value` is a view or a generator, which support neither addition nor ordering.
    pub(crate) fn is(value: &Value) -> bool {
        value.downcast_object_ref::<Self>().is_some() || Once::get(value).is_some()
    }

    /// Whether it cannot be indexed, although it has items.
    pub(crate) fn has_no_items_by_number(value: &Value) -> bool {
        value.kind() == ValueKind::Iterable && Self::is(value)
    }

    /// A view that cannot be indexed, printed as `shown`.
    pub(crate) fn of(shown: String, items: Vec<Value>) -> Value {
        let is_range = false;
        Value::from_object(Self {
            shown,
            items,
            is_range,
        })
    }

    /// A sequence, printed as `shown`.
    pub(crate) fn range(shown: String, items: Vec<Value>) -> Value {
        let is_range = true;
        Value::from_object(Self {
            shown,
            items,
            is_range,
        })
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        if self.is_range {
            ObjectRepr::Seq
        } else {
            ObjectRepr::Iterable
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = key.as_usize().filter(|_| self.is_range);
        self.items.get(at?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        if self.is_range {
            Enumerator::Seq(self.items.len())
        } else {
            Enumerator::Values(self.items.clone())
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !self.items.is_empty()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
