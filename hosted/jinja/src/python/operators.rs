//! Operators on strings, and comparisons.

use super::format;
use crate::error::fail;
use crate::values::{Once, View, equal, escaped, items, order, repr, text, type_name, whole};
use core::cmp::Ordering;
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

/// `a + b` if one of them is a string; `None` for all others.
pub(crate) fn add(a: &Value, b: &Value) -> Option<Result<Value, Error>> {
    if View::is(a) || View::is(b) {
        return Some(fail("'+' is not defined for what goes over something else"));
    }
    if a.as_str().is_none() && b.as_str().is_none() {
        return None;
    }
    if a.as_str().is_none() || b.as_str().is_none() {
        let (a, b) = (type_name(a), type_name(b));
        return Some(fail(format!("'+' is not defined between '{a}' and '{b}'")));
    }
    if a.is_safe() || b.is_safe() {
        return Some(Ok(Value::from_safe_string(escaped(a) + &escaped(b))));
    }
    Some(Ok(concatenated(a, b)))
}

/// Whether it can be a key: not a list or a dict.
pub(crate) fn is_hashable(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Map => false,
        ValueKind::Iterable if Once::get(value).is_some() => true,
        ValueKind::Seq | ValueKind::Iterable => {
            value.is_tuple() && items(value).is_ok_and(|all| all.iter().all(is_hashable))
        }
        _ => true,
    }
}

/// `a ~ b`, which is not Markup when autoescaping is off.
pub(crate) fn concatenated(a: &Value, b: &Value) -> Value {
    Value::from(text(a) + &text(b))
}

/// `a % b` where `a` is a string.
pub(crate) fn formatted(template: &Value, values: &Value) -> Result<Value, Error> {
    format::percent(template, values)
}

/// `a OP b`.
pub(crate) fn compare(op: &str, a: &Value, b: &Value) -> Result<bool, Error> {
    let is_ordered = |wanted: &[Ordering]| order(a, b).map(|order| wanted.contains(&order));
    match op {
        "==" => Ok(equal(a, b)),
        "!=" => Ok(!equal(a, b)),
        "<" => is_ordered(&[Ordering::Less]),
        "<=" => is_ordered(&[Ordering::Less, Ordering::Equal]),
        ">" => is_ordered(&[Ordering::Greater]),
        ">=" => is_ordered(&[Ordering::Greater, Ordering::Equal]),
        "in" => contains(b, a),
        _ => contains(b, a).map(|is_in| !is_in),
    }
}

fn contains(whole: &Value, part: &Value) -> Result<bool, Error> {
    match (whole.kind(), part.as_str()) {
        (ValueKind::String, Some(part)) => Ok(whole.as_str().unwrap_or_default().contains(part)),
        (ValueKind::String, None) => fail(format!(
            "'in <string>' requires string, not {}",
            type_name(part)
        )),
        (ValueKind::Map, _) if !is_hashable(part) => {
            fail(format!("unhashable type: '{}'", type_name(part)))
        }
        (ValueKind::Map, _) => Ok(items(whole)?.iter().any(|key| equal(key, part))),
        (ValueKind::Iterable, _) if Once::get(whole).is_some() => {
            // As in Python, `in` stops after the item and leaves the rest of the generator.
            while let Some(item) = Once::get(whole).map_or(Ok(None), Once::next)? {
                if equal(&item, part) {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Ok(items(whole)?.iter().any(|item| equal(item, part))),
    }
}

/// The operand of unary `-`: a bool counts as a number.
pub(crate) fn negated(a: &Value) -> Value {
    match (a.kind(), whole(a)) {
        (ValueKind::Bool, Some(number)) => Value::from(number),
        _ => a.clone(),
    }
}

/// `pprint.pformat` of values that fit on one line.
pub(crate) fn pretty(value: &Value) -> Result<String, Error> {
    let line = repr(&sorted_keys(value)?);
    if line.chars().count() > LINE_CHARS {
        return fail("pprint of more than a line is not supported");
    }
    Ok(line)
}

fn sorted_keys(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            let keys = items(value)?.into_iter();
            let mut keys: Vec<_> = keys.map(|key| (key.clone(), key)).collect();
            crate::values::sort_by_key(&mut keys, false)?;
            let mut pairs = Vec::new();
            for (key, _) in keys {
                let item = sorted_keys(&value.get_item(&key)?)?;
                pairs.push((key, item));
            }
            Ok(Value::from_pairs(pairs))
        }
        ValueKind::Seq if !value.is_tuple() && !View::is(value) => {
            let items = items(value)?;
            let items: Result<Vec<_>, _> = items.iter().map(sorted_keys).collect();
            items.map(Value::from)
        }
        _ => Ok(value.clone()),
    }
}

const LINE_CHARS: usize = 80;
