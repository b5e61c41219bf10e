//! What a rendering may use, and the functions that ask for it.
//!
//! `super::rebuild` puts calls of these functions into a template; here is what they answer.
//! Filters and methods that make a large value of small arguments are asked beforehand,
//! everything else when it is done.

use super::marks;
use super::python::once::Once;
use super::python::view::View;
use super::python::{self, operators, values};
use super::slice::slice;
use super::{OUTPUT_BYTES_MAX, TOUCHED_BYTES_MAX, VALUE_BYTES_MAX};
use core::fmt::Write as _;
use core::sync::atomic::{AtomicUsize, Ordering};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};
use std::sync::Arc;

/// What one rendering has used.
#[derive(Debug, Default)]
pub(super) struct Guard {
    touched: AtomicUsize,
    written: AtomicUsize,
}

impl Guard {
    /// Puts the functions and guarded filters into `env`.
    pub(super) fn install(self: Arc<Self>, env: &mut Environment<'_>) {
        python::filters::install(env, &self);
        python::tests::install(env);
        env.remove_global("debug");
        python::globals::install(env);
        env.add_function(ITERATED, |value: Value| match value.kind() {
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                let name = values::type_name(&value);
                let why = format!("'{name}' object is not iterable");
                Err(Error::new(ErrorKind::InvalidOperation, why))
            }
            // A short text has a last character; of a long one minijinja does not know it.
            ValueKind::String if value.as_str().is_some_and(|text| text.len() < ITERATED_MAX) => {
                values::items(&value).map(Value::from)
            }
            _ if Once::get(&value).is_some() => values::items(&value).map(Value::from),
            _ => Ok(value),
        });
        let guard = Arc::clone(&self);
        env.set_unknown_method_callback(move |_, value, method, args| {
            guard.before_method(value, method, args)?;
            python::methods::call(value, method, args)
        });
        self.install_operators(env);
        let guard = Arc::clone(&self);
        env.set_formatter(move |out, _, value| guard.write(out, value));
        let guard = Arc::clone(&self);
        env.add_function(BOUNDED, move |value: Value| guard.bounded(value));
        let guard = Arc::clone(&self);
        env.add_function(INDEXED, move |value: Value| guard.indexed(value));
        let guard = Arc::clone(&self);
        env.add_function(
            SUBSCRIPTED,
            move |value: Value| match View::has_no_items_by_number(&value) {
                true => Ok(Value::from(Vec::<Value>::new())),
                false => guard.indexed(value),
            },
        );
        marks::install(env);
        env.add_function(ALONE, |why: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, why))
        });
        let guard = Arc::clone(&self);
        env.add_function(
            SLICED,
            move |value: Value, a: Value, b: Value, step: Value| {
                guard.touched_shallow(&value)?;
                guard.bounded(slice(&value, &a, &b, &step)?)
            },
        );
        let guard = Arc::clone(&self);
        env.add_function(STORABLE, move |value: Value, _namespace: Option<Value>| {
            guard.storable(value)
        });
        let guard = Arc::clone(&self);
        env.add_function(
            MULTIPLIED,
            move |state: &mut State<'_, '_>, a: Value, b: Value| {
                guard.before_multiply(&a, &b)?;
                guard.bounded(multiplied(state, a, b)?)
            },
        );
        let guard = self;
        env.add_function(TOUCHED, move |value: Value| guard.touched(value));
    }

    fn install_operators(self: &Arc<Self>, env: &mut Environment<'_>) {
        let guard = Arc::clone(self);
        env.add_function(
            ADDED,
            move |state: &mut State<'_, '_>, a: Value, b: Value| {
                guard.touched_both(&a, &b)?;
                let sum = match operators::add(&a, &b) {
                    Some(sum) => sum?,
                    None => outside(state, "a + b", a, b)?,
                };
                guard.bounded(sum)
            },
        );
        let guard = Arc::clone(self);
        env.add_function(CONCATENATED, move |a: Value, b: Value| {
            guard.touched_both(&a, &b)?;
            Once::refuse_to_print(&a)?;
            Once::refuse_to_print(&b)?;
            guard.bounded(operators::concatenated(&a, &b))
        });
        let guard = Arc::clone(self);
        env.add_function(
            REMAINDER,
            move |state: &mut State<'_, '_>, a: Value, b: Value| {
                if a.as_str().is_none() {
                    return outside(state, "a % b", a, b);
                }
                guard.before_format(&a, core::slice::from_ref(&b))?;
                guard.bounded(operators::formatted(&a, &b)?)
            },
        );
        let guard = Arc::clone(self);
        env.add_function(COMPARED, move |op: String, a: Value, b: Value| {
            guard.touched_both(&a, &b)?;
            operators::compare(&op, &a, &b)
        });
        env.add_function(NEGATED, |a: Value| operators::negated(&a));
    }

    pub(super) fn charge(&self, bytes: usize) -> Result<(), Error> {
        let before = self.touched.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > TOUCHED_BYTES_MAX {
            return refuse("the template takes too long");
        }
        Ok(())
    }

    /// A value that may be new.
    fn bounded(&self, value: Value) -> Result<Value, Error> {
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

    /// The comparisons of a list that is sorted, each of which may walk two items.
    pub(super) fn charge_comparisons(&self, value: &Value) -> Result<(), Error> {
        let once = Once::get(value).map(|once| once.peek().len());
        let n = once.or(value.len()).unwrap_or(1).max(2);
        let weight = self.weigh(value)?;
        self.charge(weight.saturating_mul(n.ilog2() as usize + 1))
    }

    fn touched_both(&self, a: &Value, b: &Value) -> Result<(), Error> {
        for value in [a, b] {
            self.weigh(value)?;
            self.charge(value.as_str().map_or(0, str::len))?;
        }
        Ok(())
    }

    /// A value that is walked as a whole.
    fn touched(&self, value: Value) -> Result<Value, Error> {
        self.weigh(&value)?;
        Ok(value)
    }

    /// A value that is looked into. A text is walked even so, as its characters are not all of
    /// one length.
    fn indexed(&self, value: Value) -> Result<Value, Error> {
        let len = value.as_str().map_or(1, str::len);
        self.charge(len)?;
        Ok(value)
    }

    /// A value that is put into a namespace, which must not hold a namespace in turn.
    fn storable(&self, value: Value) -> Result<Value, Error> {
        self.weigh(&value)?;
        if holds_namespace(&value) {
            return refuse("a namespace cannot hold a namespace");
        }
        Ok(value)
    }

    /// A value whose elements are looked at, but not what is in them.
    fn touched_shallow(&self, value: &Value) -> Result<(), Error> {
        let len = value.as_str().map(str::len).or(value.len()).unwrap_or(0);
        self.charge(len)
    }

    /// The weight of `value` as a tree, in bytes.
    fn weigh(&self, value: &Value) -> Result<usize, Error> {
        let mut weight = 0;
        let result = add_weight(value, 0, &mut weight);
        // The bytes of texts in a list are not walked, by most of what is done with it.
        self.charge(if value.as_str().is_some() {
            NODE_BYTES
        } else {
            weight / 8
        })?;
        result.map(|()| weight)
    }

    /// `count` more pieces of `len` bytes each.
    pub(super) fn room(&self, count: usize, len: usize) -> Result<(), Error> {
        match count.checked_mul(len) {
            Some(bytes) if bytes <= VALUE_BYTES_MAX => self.charge(bytes),
            _ => refuse("a value grows too large"),
        }
    }

    fn before_multiply(&self, value: &Value, other: &Value) -> Result<(), Error> {
        for (value, count) in [(value, other), (other, value)] {
            let count = count.as_usize().unwrap_or(1);
            if value.as_str().is_some() || value.as_object().is_some() {
                self.room(count, self.weigh(value)?)?;
            }
        }
        Ok(())
    }

    pub(super) fn before_replace(&self, value: &str, from: &str, len: usize) -> Result<(), Error> {
        self.charge(value.len())?;
        self.room(value.matches(from).count(), len)
    }

    /// A width or precision of five digits asks for no text.
    pub(super) fn before_format(&self, template: &Value, args: &[Value]) -> Result<(), Error> {
        let text = template.as_str().unwrap_or_default();
        let mut wide = text.as_bytes().windows(5);
        if wide.any(|digits| digits.iter().all(u8::is_ascii_digit)) {
            return refuse("a format asks for a field that is too wide");
        }
        let weights = args.iter().map(|arg| self.weigh(arg));
        let longest = weights.collect::<Result<Vec<_>, _>>()?.into_iter().max();
        let fields = text.matches(['{', '%']).count();
        self.room(fields, longest.unwrap_or(0).max(FIELD_BYTES_MAX))
    }

    fn before_method(&self, value: &Value, method: &str, args: &[Value]) -> Result<(), Error> {
        let Some(text) = value.as_str() else {
            // A list is counted, a map only looked into.
            return if method == "count" {
                self.weigh(value).map(drop)
            } else {
                Ok(())
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

    /// Prints a value as Python's `str` does.
    fn write(&self, out: &mut Output<'_>, value: &Value) -> Result<(), Error> {
        self.weigh(value)?;
        Once::refuse_to_print(value)?;
        let mut counted = Counted { out, guard: self };
        let written = match value.as_str() {
            Some(text) => counted.write_str(text),
            None => counted.write_str(&values::text(value)),
        };
        written.or_else(|_| refuse("the output is too long"))
    }
}

/// Counts what is printed, into a variable or in the end.
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

fn refuse<T>(why: &'static str) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, why))
}

/// The only way to an operator from outside.
fn outside(
    state: &State<'_, '_>,
    operation: &'static str,
    a: Value,
    b: Value,
) -> Result<Value, Error> {
    let operation = state.env().compile_expression(operation)?;
    operation.eval(minijinja::context! { a, b })
}

/// `a * b`: a text so often, none where that is below zero.
fn multiplied(state: &State<'_, '_>, a: Value, b: Value) -> Result<Value, Error> {
    for (text, count) in [(&a, &b), (&b, &a)] {
        let Some(text_of) = text.as_str() else {
            continue;
        };
        let count = values::integer("the factor of a text", count)?;
        let count = usize::try_from(count).unwrap_or(0);
        return Ok(values::like(text, text_of.repeat(count)));
    }
    for (list, count) in [(&a, &b), (&b, &a)] {
        if View::is(list) {
            return refuse("'*' is not defined for what goes over something else");
        }
        if list.kind() == ValueKind::Seq {
            let count = values::integer("the factor of a list", count)?;
            let (items, count) = (values::items(list)?, usize::try_from(count).unwrap_or(0));
            let items = core::iter::repeat_n(items, count);
            let items: Vec<Value> = items.flatten().collect();
            return Ok(match list.is_tuple() {
                true => Value::from(Tuple::from(items)),
                false => Value::from(items),
            });
        }
    }
    outside(state, "a * b", a, b)
}

fn add_weight(value: &Value, depth: usize, weight: &mut usize) -> Result<(), Error> {
    *weight += NODE_BYTES + value.as_str().map_or(0, str::len);
    if *weight > VALUE_BYTES_MAX {
        return refuse("a value grows too large");
    }
    let Some(object) = value.as_object() else {
        return Ok(());
    };
    if depth == DEPTH_MAX {
        return refuse("a value nests too deep");
    }
    if let Some(once) = Once::get(value) {
        let items = once.peek();
        let mut items = items.iter();
        return items.try_for_each(|item| add_weight(item, depth + 1, weight));
    }
    match value.kind() {
        ValueKind::Map => {
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                add_weight(&key, depth + 1, weight)?;
                add_weight(&value, depth + 1, weight)?;
            }
        }
        ValueKind::Seq | ValueKind::Iterable => {
            for value in object.try_iter().into_iter().flatten() {
                add_weight(&value, depth + 1, weight)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Whether `value`, which has been weighed, is or has in it a namespace.
fn holds_namespace(value: &Value) -> bool {
    let Some(object) = value.as_object() else {
        return false;
    };
    if let Some(once) = Once::get(value) {
        return once.peek().iter().any(holds_namespace);
    }
    let pairs = || object.try_iter_pairs().into_iter().flatten();
    object.type_name().ends_with("::Namespace") || pairs().any(|(_, value)| holds_namespace(&value))
}

/// Names that no template can write.
pub(super) const BOUNDED: &str = "bounded()";
pub(super) const TOUCHED: &str = "touched()";
pub(super) const INDEXED: &str = "indexed()";
pub(super) const SUBSCRIPTED: &str = "subscripted()";
pub(super) const SLICED: &str = "sliced()";
pub(super) const STORABLE: &str = "storable()";
pub(super) const ALONE: &str = "alone()";
pub(super) const ITERATED: &str = "iterated()";
pub(super) const ADDED: &str = "added()";
pub(super) const CONCATENATED: &str = "concatenated()";
pub(super) const REMAINDER: &str = "remainder()";
pub(super) const COMPARED: &str = "compared()";
pub(super) const NEGATED: &str = "negated()";
pub(super) const MULTIPLIED: &str = "multiplied()";
/// A value takes this much in a list or map.
const NODE_BYTES: usize = 32;
/// Of a text that becomes a list of characters to go through, in bytes.
const ITERATED_MAX: usize = VALUE_BYTES_MAX / NODE_BYTES;
/// How deep lists and maps nest; JSON of a tool's parameters has some ten levels.
const DEPTH_MAX: usize = 100;
/// Widths of up to four digits are let through.
const FIELD_BYTES_MAX: usize = 10_000;
