//! The filter `tojson` as Hugging Face defines it: Python's `json.dumps(ensure_ascii=False)`.
//!
//! Models were trained on its exact spacing: `{"a": [1, 2.0]}`, with keys in the order given; and, with
//! `indent`, one item per line and no space after the comma.

use crate::limits::VALUE_BYTES_MAX;
use crate::values::{self, View};
use core::fmt::Write as _;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// The format that [`dumps`] writes.
struct Style {
    /// Spaces per level; `None` for a single line.
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    ascii: bool,
    sorted: bool,
}

/// The filter. It takes the arguments of `json.dumps` that templates use: `indent`,
/// `separators`, `ensure_ascii`, `sort_keys`.
pub(crate) fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")? {
        Some(value) if !value.is_none() => Some(width(&value)?),
        _ => None,
    };
    let ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let mut separators = Vec::new();
    if let Some(value) = kwargs.get::<Option<Value>>("separators")? {
        separators.extend(value.try_iter()?.take(2).map(|value| value.to_string()));
    }
    kwargs.assert_all_used()?;
    let mut separators = separators.into_iter();
    let plain = if indent.is_some() { "," } else { ", " };
    let style = Style {
        indent,
        item_separator: separators.next().unwrap_or_else(|| plain.into()),
        key_separator: separators.next().unwrap_or_else(|| ": ".into()),
        ascii,
        sorted,
    };
    let mut out = String::new();
    dumps(&mut out, value, &style, 0)?;
    Ok(Value::from(out))
}

/// An indentation width, bounded so that it cannot turn a small text into a large one.
fn width(value: &Value) -> Result<usize, Error> {
    let width = value.as_usize().filter(|width| *width <= INDENT_MAX);
    let error = || refused("indent is not a number from 0 to 16");
    width.ok_or_else(error)
}

fn refused(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

fn dumps(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if out.len() > VALUE_BYTES_MAX {
        return Err(refused("a value grows too large"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => quote(out, value.as_str().unwrap_or_default(), style.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            if View::is(value) {
                return Err(refused(
                    "this is not a list, and JSON has no other sequences; use | list",
                ));
            }
            let items = value.try_iter()?;
            list(out, ['[', ']'], items, style, depth, |out, item| {
                dumps(out, &item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let keys: Vec<Value> = value.try_iter()?.collect();
            let mut pairs = Vec::with_capacity(keys.len());
            for key in keys {
                let item = value.get_item(&key)?;
                pairs.push((key_text(&key)?, item));
            }
            if style.sorted {
                pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
            let items = pairs.into_iter();
            list(out, ['{', '}'], items, style, depth, |out, (key, item)| {
                quote(out, &key, style.ascii);
                out.push_str(&style.key_separator);
                dumps(out, &item, style, depth + 1)
            })?;
        }
        _ => {
            let kind = value.kind();
            let why = format!("tojson cannot write a value that is {kind}");
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
    }
    Ok(())
}

/// Writes the items between brackets.
fn list<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: impl Iterator<Item = T>,
    style: &Style,
    depth: usize,
    mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    let mut empty = true;
    for item in items {
        if !empty {
            out.push_str(&style.item_separator);
        }
        empty = false;
        new_line(out, style, depth + 1);
        write(out, item)?;
    }
    if !empty {
        new_line(out, style, depth);
    }
    out.push(close);
    Ok(())
}

fn new_line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = style.indent {
        out.push('\n');
        out.extend(core::iter::repeat_n(' ', indent * depth));
    }
}

/// A key as `json.dumps` converts it.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        _ => Err(refused("tojson cannot write this kind of key")),
    }
}

fn quote(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ascii && !c.is_ascii()) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect("a String takes everything");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A number as Python's `repr` writes it, except for non-finite ones.
fn number(value: &Value) -> String {
    match values::number(value).as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        other => other.to_owned(),
    }
}

/// Maximum indentation per level.
const INDENT_MAX: usize = 16;
