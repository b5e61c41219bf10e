//! Tracks and limits the resources of one rendering.
//!
//! Filters and methods that make a large value from small arguments check beforehand, all others afterwards.

use crate::error::fail;
use crate::limits::{OUTPUT_BYTES_MAX, TOUCHED_BYTES_MAX, VALUE_BYTES_MAX};
use crate::values::{Local, Once, View, text};
use core::fmt::Write as _;
use core::sync::atomic::{AtomicUsize, Ordering};
use minijinja::value::{DynObject, ValueKind};
use minijinja::{Error, Output, Value};

/// The resources used by one rendering.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    touched: AtomicUsize,
    written: AtomicUsize,
}

impl Guard {
    pub(crate) fn charge(&self, bytes: usize) -> Result<(), Error> {
        let before = self.touched.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > TOUCHED_BYTES_MAX {
            return fail("the template takes too long");
        }
        Ok(())
    }

    /// Checks and charges a value that may be new.
    pub(crate) fn bounded(&self, value: Value) -> Result<Value, Error> {
        let value = if value.kind() == ValueKind::Iterable && !View::is(&value) {
            let mut items = Vec::new();
            for item in value.try_iter()?.take(VALUE_BYTES_MAX / NODE_BYTES + 1) {
                items.push(item);
            }
            Value::from(items)
        } else {
            value
        };
        if let Some(text) = value.as_str() {
            self.charge(text.len())?;
        }
        self.touched(value)
    }

    /// Charges the comparisons of sorting a list, each of which may walk two items.
    pub(crate) fn charge_comparisons(&self, value: &Value) -> Result<(), Error> {
        let once = Once::get(value).map(|once| once.peek().len());
        let n = once.or(value.len()).unwrap_or(1).max(2);
        let weight = self.weigh(value)?;
        self.charge(weight.saturating_mul(n.ilog2() as usize + 1))
    }

    pub(crate) fn touched_both(&self, a: &Value, b: &Value) -> Result<(), Error> {
        for value in [a, b] {
            self.weigh(value)?;
            self.charge(value.as_str().map_or(0, str::len))?;
        }
        Ok(())
    }

    /// Charges a value that is read completely.
    pub(crate) fn touched(&self, value: Value) -> Result<Value, Error> {
        self.weigh(&value)?;
        Ok(value)
    }

    /// Charges a value of which only a part is read. A string is charged completely, since its characters vary in
    /// length.
    pub(crate) fn indexed(&self, value: Value) -> Result<Value, Error> {
        let len = value.as_str().map_or(1, str::len);
        self.charge(len)?;
        Ok(value)
    }

    /// Checks a value to be stored in a namespace: it must not contain a namespace itself.
    pub(crate) fn storable(&self, value: Value) -> Result<Value, Error> {
        self.weigh(&value)?;
        refuse_owners(&value)?;
        Ok(value)
    }

    /// Charges a value whose elements are read, but not their contents.
    pub(crate) fn touched_shallow(&self, value: &Value) -> Result<(), Error> {
        let len = value.as_str().map(str::len).or(value.len()).unwrap_or(0);
        self.charge(len)
    }

    /// The size of `value`, counted as a tree, in bytes.
    fn weigh(&self, value: &Value) -> Result<usize, Error> {
        let mut weight = 0;
        let result = add_weight(value, &mut weight);
        // Most operations on a list do not read the bytes of the strings in it.
        self.charge(if value.as_str().is_some() {
            NODE_BYTES
        } else {
            weight / 8
        })?;
        result.map(|()| weight)
    }

    /// Checks that there is room for `count` more pieces of `len` bytes each.
    pub(crate) fn room(&self, count: usize, len: usize) -> Result<(), Error> {
        match count.checked_mul(len) {
            Some(bytes) if bytes <= VALUE_BYTES_MAX => self.charge(bytes),
            _ => fail("a value grows too large"),
        }
    }

    pub(crate) fn before_multiply(&self, value: &Value, other: &Value) -> Result<(), Error> {
        for (value, count) in [(value, other), (other, value)] {
            let count = count.as_usize().unwrap_or(1);
            if value.as_str().is_some() || value.as_object().is_some() {
                self.room(count, self.weigh(value)?)?;
            }
        }
        Ok(())
    }

    pub(crate) fn before_replace(&self, value: &str, from: &str, len: usize) -> Result<(), Error> {
        self.charge(value.len())?;
        self.room(value.matches(from).count(), len)
    }

    /// Refuses widths and precisions of five or more digits.
    pub(crate) fn before_format(&self, template: &Value, args: &[Value]) -> Result<(), Error> {
        let text = template.as_str().unwrap_or_default();
        let mut wide = text.as_bytes().windows(5);
        if wide.any(|digits| digits.iter().all(u8::is_ascii_digit)) {
            return fail("a format asks for a field that is too wide");
        }
        let weights = args.iter().map(|arg| self.weigh(arg));
        let longest = weights.collect::<Result<Vec<_>, _>>()?.into_iter().max();
        let fields = text.matches(['{', '%']).count();
        self.room(fields, longest.unwrap_or(0).max(FIELD_BYTES_MAX))
    }

    pub(crate) fn before_method(
        &self,
        value: &Value,
        method: &str,
        args: &[Value],
    ) -> Result<(), Error> {
        let Some(text) = value.as_str() else {
            // The elements of a list are compared, those in a map are only looked up.
            return match (method, Local::get(value)) {
                ("count", _) => self.weigh(value).map(drop),
                ("append" | "extend" | "insert" | "pop", Some(list)) => {
                    self.before_change(list, args)
                }
                _ => Ok(()),
            };
        };
        self.charge(text.len())?;
        match method {
            "replace" => {
                let part = |i: usize| args.get(i).and_then(Value::as_str).unwrap_or_default();
                let longest = args
                    .iter()
                    .filter_map(|arg| arg.as_str().map(str::len))
                    .max();
                self.before_replace(text, part(0), longest.unwrap_or(0))
            }
            "join" => {
                let Some(items) = args.first() else {
                    return Ok(());
                };
                self.weigh(items)?;
                let count = items.as_str().map(str::len).or(items.len()).unwrap_or(0);
                self.room(count, text.len())
            }
            "format" => self.before_format(value, args),
            "zfill" | "ljust" | "rjust" | "center" | "expandtabs" => {
                let widths = args.iter().filter_map(Value::as_usize);
                self.room(text.len().max(1), widths.max().unwrap_or(8))
            }
            _ => args.iter().try_for_each(|arg| self.weigh(arg).map(drop)),
        }
    }

    /// Checks that a list may grow by `args`, or by what is in them.
    fn before_change(&self, list: &Local, args: &[Value]) -> Result<(), Error> {
        let len = list.items().len();
        self.charge(len)?;
        for arg in args {
            let n_new = arg.len().filter(|_| arg.as_str().is_none()).unwrap_or(1);
            if (len + n_new) * NODE_BYTES > VALUE_BYTES_MAX {
                return fail("a value grows too large");
            }
            self.weigh(arg)?;
            refuse_owners(arg)?;
            walk(arg, list.sink(0) + 1, &mut |value, depth| {
                let Some(inner) = Local::get(value) else {
                    return Ok(depth);
                };
                // Neither a list in itself nor a long chain of lists could be freed.
                if core::ptr::eq(inner, list) || depth > DEPTH_MAX {
                    return fail("a value nests too deep");
                }
                Ok(inner.sink(depth))
            })?;
        }
        Ok(())
    }

    /// Prints a value as Python's `str` does.
    pub(crate) fn write(&self, out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
        self.weigh(value)?;
        Once::refuse_to_print(value)?;
        let mut counted = Counted { out, guard: self };
        let written = match value.as_str() {
            Some(text) => counted.write_str(text),
            None => counted.write_str(&text(value)),
        };
        written.or_else(|_| fail("the output is too long"))
    }
}

/// Counts the output, both into variables and of the template.
struct Counted<'o, 'w> {
    out: &'o mut Output<'w>,
    guard: &'o Guard,
}

impl core::fmt::Write for Counted<'_, '_> {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let before = self.guard.written.fetch_add(text.len(), Ordering::Relaxed);
        if before.saturating_add(text.len()) > OUTPUT_BYTES_MAX {
            return Err(core::fmt::Error);
        }
        self.out.write_str(text)
    }
}

fn add_weight(value: &Value, weight: &mut usize) -> Result<(), Error> {
    walk(value, 0, &mut |value, depth| {
        *weight += NODE_BYTES + value.as_str().map_or(0, str::len);
        if *weight > VALUE_BYTES_MAX {
            return fail("a value grows too large");
        }
        if depth >= DEPTH_MAX && value.as_object().is_some() {
            return fail("a value nests too deep");
        }
        Ok(depth)
    })
}

/// Calls `visit` with a value and all values in it, each with the number of values around it; `visit` returns the number
/// that counts for what is inside.
fn walk(
    value: &Value,
    depth: usize,
    visit: &mut dyn FnMut(&Value, usize) -> Result<usize, Error>,
) -> Result<(), Error> {
    let depth = visit(value, depth)? + 1;
    let Some(object) = value.as_object() else {
        return Ok(());
    };
    if let Some(once) = Once::get(value) {
        let items = once.peek();
        let mut items = items.iter();
        return items.try_for_each(|item| walk(item, depth, visit));
    }
    match value.kind() {
        ValueKind::Map => {
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                walk(&key, depth, visit)?;
                walk(&value, depth, visit)?;
            }
        }
        ValueKind::Seq | ValueKind::Iterable => {
            for value in object.try_iter().into_iter().flatten() {
                walk(&value, depth, visit)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Refuses namespaces, loops (which keep their items), and values that contain one: they could contain themselves, and
/// would never be freed.
fn refuse_owners(value: &Value) -> Result<(), Error> {
    walk(value, 0, &mut |value, depth| {
        let object = value.as_object();
        match object.map(DynObject::type_name) {
            Some(name) if name.ends_with("::Namespace") || name.ends_with("::Loop") => fail(
                "a namespace or a loop cannot be inside of a namespace or of a list that grows",
            ),
            _ => Ok(depth),
        }
    })
}

/// Size of a value in a list or map, in bytes.
pub(crate) const NODE_BYTES: usize = 32;
/// Maximum nesting of lists and maps; the JSON of a tool's parameters has about ten levels.
const DEPTH_MAX: usize = 100;
/// Limit of widths and precisions: up to four digits are allowed.
const FIELD_BYTES_MAX: usize = 10_000;
