//! What goes over something else: a dict's keys, values and items, and ranges.

use super::fail;
use super::once::Once;
use super::values::{integer, repr};
use core::fmt;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, Value};
use std::sync::Arc;

/// Items that are printed by another name than a list's.
#[derive(Debug)]
pub(crate) struct View {
    name: String,
    items: Vec<Value>,
    /// Whether it is a sequence, with items by number.
    is_range: bool,
}

impl View {
    /// Whether `value` is one, or a generator: nothing that could be added to or compared.
    pub(crate) fn is(value: &Value) -> bool {
        value.downcast_object_ref::<Self>().is_some() || Once::get(value).is_some()
    }

    /// Whether a subscript finds nothing, though there are items.
    pub(crate) fn has_no_items_by_number(value: &Value) -> bool {
        value.kind() == ValueKind::Iterable && Self::is(value)
    }

    /// `NAME([...])`.
    pub(crate) fn of(name: &str, items: impl Iterator<Item = Value>) -> Value {
        let items: Vec<Value> = items.collect();
        let shown = repr(&Value::from(items.clone()));
        Value::from_object(Self {
            name: format!("{name}({shown})"),
            items,
            is_range: false,
        })
    }

    /// Python's `range`.
    ///
    /// # Errors
    /// The step is zero, or there are too many numbers.
    pub(crate) fn range(args: &[Value]) -> Result<Value, Error> {
        let number = |at: usize| integer("an argument of range", &args[at]);
        let (start, stop, step) = match args.len() {
            1 => (0, number(0)?, 1),
            2 => (number(0)?, number(1)?, 1),
            3 => (number(0)?, number(1)?, number(2)?),
            n => return fail(format!("range takes 1 to 3 arguments, not {n}")),
        };
        if step == 0 {
            return fail("range() arg 3 must not be zero");
        }
        let is_inside = |i: i64| if step > 0 { i < stop } else { i > stop };
        let mut items = Vec::new();
        let mut at = start;
        while is_inside(at) {
            if items.len() == RANGE_LEN_MAX {
                return fail(format!("a range has at most {RANGE_LEN_MAX} numbers"));
            }
            items.push(Value::from(at));
            at = at.saturating_add(step);
        }
        let name = match step {
            1 => format!("range({start}, {stop})"),
            _ => format!("range({start}, {stop}, {step})"),
        };
        Ok(Value::from_object(Self {
            name,
            items,
            is_range: true,
        }))
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
        f.write_str(&self.name)
    }
}

/// jinja2's bound in its sandbox.
const RANGE_LEN_MAX: usize = 100_000;
