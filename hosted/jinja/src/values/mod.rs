//! Python's values: `str`, `repr`, `==`, `<`, `iter` and so on, and the types that minijinja lacks.

mod group;
mod local;
mod number;
mod once;
mod view;

pub(crate) use group::Group;
pub(crate) use local::Local;
pub(crate) use number::number;
pub(crate) use once::Once;
pub(crate) use view::View;

use crate::error::fail;
use core::cmp::Ordering;
use core::fmt::Write as _;
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

/// `str(value)`.
pub(crate) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        ValueKind::Undefined => String::new(),
        _ => repr(value),
    }
}

/// `repr(value)`.
pub(crate) fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(&mut out, value);
    out
}

fn write_repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => {
            if value.is_safe() {
                out.push_str("Markup(");
            }
            quote(out, value.as_str().unwrap_or_default());
            if value.is_safe() {
                out.push(')');
            }
        }
        ValueKind::Map if !is_opaque(value) => {
            out.push('{');
            for (n, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if n > 0 { ", " } else { "" });
                write_repr(out, &key);
                out.push_str(": ");
                write_repr(out, &value.get_item(&key).unwrap_or_default());
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable if !is_opaque(value) => {
            let is_tuple = value.is_tuple();
            out.push(if is_tuple { '(' } else { '[' });
            let mut n = 0;
            for item in value.try_iter().into_iter().flatten() {
                out.push_str(if n > 0 { ", " } else { "" });
                write_repr(out, &item);
                n += 1;
            }
            out.push_str(match (is_tuple, n) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        _ => {
            let _infallible = write!(out, "{value}");
        }
    }
}

/// Whether a value has its own representation: a namespace, which is not a dict, or a sequence other than a list.
fn is_opaque(value: &Value) -> bool {
    View::is(value) || value.downcast_object_ref::<Group>().is_some() || is_namespace(value)
}

/// Whether a value is a `namespace()`.
pub(crate) fn is_namespace(value: &Value) -> bool {
    let object = value.as_object();
    object.is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

fn quote(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if !is_printable(c) => {
                let code = u32::from(c);
                let _infallible = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// `str.isprintable` of one character, except for unassigned ones.
pub(crate) fn is_printable(c: char) -> bool {
    let code = u32::from(c);
    let is_format = matches!(code, 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e
        | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff | 0xfff9..=0xfffb
        | 0xe000..=0xf8ff
        | 0xe0001..=0xe007f | 0xf0000..=0x0010_ffff);
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_format)
}

/// `text` as Markup if `of` is.
pub(crate) fn like(of: &Value, text: impl Into<String>) -> Value {
    if of.is_safe() {
        return Value::from_safe_string(text.into());
    }
    Value::from(text.into())
}

/// The escaped form of `value`, for joining it with Markup.
pub(crate) fn escaped(value: &Value) -> String {
    let text = text(value);
    if value.is_safe() {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// The value as a float, if Python accepts it as a number.
pub(crate) fn real(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// An integer; a bool counts as one.
pub(crate) fn whole(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

pub(crate) fn integer(what: &str, value: &Value) -> Result<i64, Error> {
    let number = whole(value).and_then(|number| i64::try_from(number).ok());
    number.map_or_else(|| fail(format!("{what} is not an integer")), Ok)
}

/// Python's name of the type.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Map => "dict",
        ValueKind::Seq | ValueKind::Iterable if value.is_tuple() => "tuple",
        ValueKind::Iterable if Once::get(value).is_some() => "generator",
        ValueKind::Seq | ValueKind::Iterable => "list",
        _ => "object",
    }
}

/// The items that `iter(value)` returns.
pub(crate) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    if let Some(once) = Once::get(value) {
        return once.take();
    }
    match value.kind() {
        ValueKind::Undefined => Ok(Vec::new()),
        ValueKind::String => {
            let chars = value.as_str().unwrap_or_default().chars();
            Ok(chars.map(|c| Value::from(c.to_string())).collect())
        }
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => Ok(value.try_iter()?.collect()),
        _ => fail(format!("'{}' object is not iterable", type_name(value))),
    }
}

/// `a == b`.
#[expect(clippy::float_cmp, reason = "that is what == means")]
pub(crate) fn equal(a: &Value, b: &Value) -> bool {
    if let (Some(a), Some(b)) = (whole(a), whole(b)) {
        return a == b;
    }
    if let (Some(a), Some(b)) = (real(a), real(b)) {
        return a == b;
    }
    if let (Some(a), Some(b)) = (Once::get(a), Once::get(b)) {
        return core::ptr::eq(a, b);
    }
    if Once::get(a).is_some() || Once::get(b).is_some() {
        return false;
    }
    match (a.kind(), b.kind()) {
        (ValueKind::String, ValueKind::String) => a.as_str() == b.as_str(),
        (ValueKind::Map, ValueKind::Map) => {
            a.len() == b.len()
                && a.try_iter().into_iter().flatten().all(|key| {
                    let (x, y) = (a.get_item(&key), b.get_item(&key));
                    x.ok().zip(y.ok()).is_some_and(|(x, y)| equal(&x, &y))
                })
        }
        (ValueKind::Seq | ValueKind::Iterable, ValueKind::Seq | ValueKind::Iterable) => {
            let (Ok(a_items), Ok(b_items)) = (items(a), items(b)) else {
                return false;
            };
            a.is_tuple() == b.is_tuple()
                && a_items.len() == b_items.len()
                && a_items.iter().zip(&b_items).all(|(a, b)| equal(a, b))
        }
        _ => a == b,
    }
}

/// The order of `a` and `b`, for `<` and `sorted`.
pub(crate) fn order(a: &Value, b: &Value) -> Result<Ordering, Error> {
    if let (Some(a), Some(b)) = (whole(a), whole(b)) {
        return Ok(a.cmp(&b));
    }
    if let (Some(a), Some(b)) = (real(a), real(b)) {
        return Ok(a.partial_cmp(&b).unwrap_or(Ordering::Greater));
    }
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(a.cmp(b));
    }
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let is_view = View::is(a) || View::is(b);
    if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() && !is_view {
        let (a, b) = (items(a)?, items(b)?);
        for (a, b) in a.iter().zip(&b) {
            if !equal(a, b) {
                return order(a, b);
            }
        }
        return Ok(a.len().cmp(&b.len()));
    }
    let (a, b) = (type_name(a), type_name(b));
    fail(format!(
        "'<' is not defined between instances of '{a}' and '{b}'"
    ))
}

/// `sorted`, which stops comparing after an error.
pub(crate) fn sort_by_key(items: &mut [(Value, Value)], reverse: bool) -> Result<(), Error> {
    let mut failed = None;
    items.sort_by(|(a, _), (b, _)| {
        let ordering = order(a, b).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            Ordering::Equal
        });
        if reverse {
            ordering.reverse()
        } else {
            ordering
        }
    });
    failed.map_or(Ok(()), Err)
}
