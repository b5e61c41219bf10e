//! Filters that return single-use iterators: [`Once`].

use super::arguments::{bound, split};
use super::lists::{attribute, flag, keyed};
use super::operators::is_hashable;
use crate::error::fail;
use crate::guard::Guard;
use crate::values::{Once, equal, integer, items, like, real, text, whole};
use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

pub(super) fn unique(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "case_sensitive", "attribute"];
    let [value, is_cased, path] = bound("unique", names, 1, args)?;
    let (value, is_cased) = (value.unwrap_or_default(), flag(is_cased));
    Ok(Once::of(|left| {
        unique_of(guard, keyed(guard, &value, is_cased, path.as_ref())?, left)
    }))
}

/// The first item for each key, in the order of the list of keys and items.
fn unique_of(guard: &Guard, made: Vec<(Value, Value)>, left: &mut Vec<Value>) -> Result<(), Error> {
    let mut seen: Vec<Value> = Vec::new();
    let mut scalars = std::collections::HashSet::new();
    for (key, item) in made {
        // Equal numbers have the same text, except -0.
        let scalar = match (key.as_str(), whole(&key), real(&key)) {
            (Some(text), ..) => Some(format!("'{text}")),
            (None, Some(number), _) => Some(number.to_string()),
            (None, None, Some(x)) => Some((x + 0.0).to_string()),
            _ => None,
        };
        let is_new = match scalar {
            Some(scalar) => scalars.insert(scalar),
            None if !is_hashable(&key) => return fail("unique: an item is a list or a dict"),
            None => {
                guard.charge(seen.len().saturating_mul(CHARGE_OF_EQUAL))?;
                !seen.iter().any(|before| equal(before, &key))
            }
        };
        if is_new {
            if real(&key).is_none() && key.as_str().is_none() {
                seen.push(key);
            }
            left.push(item);
        }
    }
    Ok(())
}

pub(super) fn reverse(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bound("reverse", ["value"], 1, args)?;
    let value = value.unwrap_or_default();
    if let Some(text) = value.as_str() {
        return Ok(like(&value, text.chars().rev().collect::<String>()));
    }
    // A value that cannot be iterated in reverse becomes a list.
    let is_list = Once::get(&value).is_some();
    let items: Vec<Value> = items(&value)?.into_iter().rev().collect();
    if is_list {
        return Ok(Value::from(items));
    }
    Ok(Once::of(|made| {
        *made = items;
        Ok(())
    }))
}

pub(super) fn pairs(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bound("items", ["value"], 1, args)?;
    let value = value.unwrap_or_default();
    Ok(Once::of(|made| match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::Map => {
            *made = items(&super::methods::call(&value, "items", &[])?)?;
            Ok(())
        }
        _ => fail("Can only get item pairs from a mapping."),
    }))
}

pub(super) fn batch(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, size, fill] = bound("batch", ["value", "linecount", "fill_with"], 2, args)?;
    let (value, size) = (value.unwrap_or_default(), size.unwrap_or_default());
    Ok(Once::of(|made| {
        *made = batches(guard, &value, &size, fill)?;
        Ok(())
    }))
}

fn batches(
    guard: &Guard,
    value: &Value,
    size: &Value,
    fill: Option<Value>,
) -> Result<Vec<Value>, Error> {
    let (mut rows, mut row) = (Vec::new(), Vec::new());
    // A size that cannot equal a length never splits.
    let full = whole(size).and_then(|size| usize::try_from(size).ok());
    for item in items(value)? {
        if Some(row.len()) == full {
            rows.push(core::mem::take(&mut row));
        }
        row.push(item);
    }
    if let (Some(fill), false) = (fill.filter(|fill| !fill.is_none()), row.is_empty()) {
        let len = usize::try_from(integer("batch: linecount", size)?).unwrap_or(0);
        guard.room(len, 32)?;
        row.resize(len.max(row.len()), fill);
    }
    if !row.is_empty() {
        rows.push(row);
    }
    Ok(rows.into_iter().map(Value::from).collect())
}

pub(super) fn slice(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, count, fill] = bound("slice", ["value", "slices", "fill_with"], 2, args)?;
    let (value, count) = (value.unwrap_or_default(), count.unwrap_or_default());
    Ok(Once::of(|made| {
        *made = slices(guard, &value, &count, fill)?;
        Ok(())
    }))
}

fn slices(
    guard: &Guard,
    value: &Value,
    count: &Value,
    fill: Option<Value>,
) -> Result<Vec<Value>, Error> {
    let count = integer("slice: slices", count)?;
    let all = items(value)?;
    let Some(count) = usize::try_from(count).ok().filter(|count| *count > 0) else {
        return fail("slice: slices is not a number above 0");
    };
    guard.room(count, 64)?;
    let (each, longer) = (all.len() / count, all.len() % count);
    let mut rest = all.into_iter();
    let mut rows = Vec::new();
    for n in 0..count {
        let mut row: Vec<Value> = rest.by_ref().take(each + usize::from(n < longer)).collect();
        if let Some(fill) = fill
            .as_ref()
            .filter(|fill| !fill.is_none() && n >= longer && longer > 0)
        {
            row.push(fill.clone());
        } else if let (Some(fill), 0) = (fill.as_ref().filter(|fill| !fill.is_none()), longer) {
            row.push(fill.clone());
        }
        rows.push(Value::from(row));
    }
    Ok(rows)
}

/// The items; a false value has none, regardless of its type.
fn items_if_true(value: Option<&Value>) -> Result<Vec<Value>, Error> {
    match value.filter(|value| value.is_true()) {
        Some(value) => items(value),
        None => Ok(Vec::new()),
    }
}

pub(super) fn map(_: &Guard, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Once::of(|made| mapped(state, args, made)))
}

fn mapped(state: &mut State<'_, '_>, args: &[Value], made: &mut Vec<Value>) -> Result<(), Error> {
    let (places, named) = split(args)?;
    let all = items_if_true(places.first())?;
    if places.len() < 2 {
        let get = |name: &str| {
            named
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value)
        };
        let Some(path) = get("attribute") else {
            return match all.is_empty() && named.is_empty() {
                true => Ok(()),
                false => fail("map requires a filter argument"),
            };
        };
        if named
            .iter()
            .any(|(name, _)| name != "attribute" && name != "default")
        {
            return fail("map: unexpected keyword argument");
        }
        for item in &all {
            made.push(attribute(item, Some(path), get("default"))?);
        }
        return Ok(());
    }
    let name = text(&places[1]);
    for item in all {
        let call: Vec<Value> = [item]
            .into_iter()
            .chain(args[2..].iter().cloned())
            .collect();
        made.push(state.apply_filter(&name, &call)?);
    }
    Ok(())
}

fn chosen(
    state: &mut State<'_, '_>,
    args: &[Value],
    by_attribute: bool,
    wanted: bool,
    left: &mut Vec<Value>,
) -> Result<(), Error> {
    let all = items_if_true(args.first())?;
    let mut rest = args[1.min(args.len())..].iter();
    let path = if by_attribute {
        let Some(path) = rest.next() else {
            return fail("Missing parameter for attribute name");
        };
        Some(path)
    } else {
        None
    };
    let rest: Vec<Value> = rest.cloned().collect();
    for item in all {
        let value = attribute(&item, path, None)?;
        let holds = match rest.split_first() {
            None => value.is_true(),
            Some((name, more)) => {
                let call: Vec<Value> = [value].into_iter().chain(more.iter().cloned()).collect();
                state.perform_test(&text(name), &call)?
            }
        };
        if holds == wanted {
            left.push(item);
        }
    }
    Ok(())
}

pub(super) fn select(_: &Guard, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Once::of(|left| chosen(state, args, false, true, left)))
}

pub(super) fn reject(_: &Guard, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Once::of(|left| chosen(state, args, false, false, left)))
}

pub(super) fn selectattr(
    _: &Guard,
    state: &mut State<'_, '_>,
    args: &[Value],
) -> Result<Value, Error> {
    Ok(Once::of(|left| chosen(state, args, true, true, left)))
}

pub(super) fn rejectattr(
    _: &Guard,
    state: &mut State<'_, '_>,
    args: &[Value],
) -> Result<Value, Error> {
    Ok(Once::of(|left| chosen(state, args, true, false, left)))
}

/// The charge in bytes for one comparison of two lists.
const CHARGE_OF_EQUAL: usize = 200;
