//! Filters that iterate over the items of a value.

use super::arguments::bound;
use super::methods::pair;
use super::operators::add;
use crate::error::fail;
use crate::guard::Guard;
use crate::values::{
    Group, Once, View, equal, escaped, items, order, real, sort_by_key, text, whole,
};
use core::cmp::Ordering;
use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

/// `environment.getitem`: undefined if the item does not exist; an error for items of undefined.
fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return fail(format!("undefined has no {}", text(key)));
    }
    match View::has_no_items_by_number(value) {
        true => Ok(Value::UNDEFINED),
        false => Ok(value.get_item(key).unwrap_or_default()),
    }
}

/// The value that `attribute="a.b.0"` refers to.
pub(super) fn attribute(
    value: &Value,
    path: Option<&Value>,
    other: Option<&Value>,
) -> Result<Value, Error> {
    let Some(path) = path.filter(|path| !path.is_none()) else {
        return Ok(value.clone());
    };
    let keys: Vec<Value> = match path.as_str() {
        Some(path) => path
            .split('.')
            .map(|part| {
                part.parse::<i64>()
                    .map_or_else(|_| Value::from(part), Value::from)
            })
            .collect(),
        None => vec![path.clone()],
    };
    let mut value = value.clone();
    for key in keys {
        value = item(&value, &key)?;
        if let (true, Some(other)) = (value.is_undefined(), other) {
            value = other.clone();
        }
    }
    Ok(value)
}

fn without_case(value: Value, is_cased: bool) -> Value {
    match value.as_str() {
        Some(text) if !is_cased => Value::from(text.to_lowercase()),
        _ => value,
    }
}

pub(super) fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

/// The items with their sort keys, charged for comparing all of them n log n times.
pub(super) fn keyed(
    guard: &Guard,
    value: &Value,
    is_cased: bool,
    path: Option<&Value>,
) -> Result<Vec<(Value, Value)>, Error> {
    guard.charge_comparisons(value)?;
    let mut made = Vec::new();
    for item in items(value)? {
        let key = attribute(&item, path, None)?;
        made.push((without_case(key, is_cased), item));
    }
    Ok(made)
}

pub(super) fn sort(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "reverse", "case_sensitive", "attribute"];
    let [value, reverse, is_cased, path] = bound("sort", names, 1, args)?;
    let (value, is_cased) = (value.unwrap_or_default(), flag(is_cased));
    let mut made = keyed(guard, &value, true, None)?;
    // Multiple attributes are compared in order.
    let paths: Vec<Option<Value>> = match path.as_ref().and_then(Value::as_str) {
        Some(paths) => paths
            .split(',')
            .map(|path| Some(Value::from(path)))
            .collect(),
        None => vec![path],
    };
    for (key, item) in &mut made {
        let mut keys = Vec::new();
        for path in &paths {
            keys.push(without_case(
                attribute(item, path.as_ref(), None)?,
                is_cased,
            ));
        }
        // As in jinja2, a single key is wrapped in a list, too: list comparison skips equal items without ordering
        // them.
        *key = Value::from(keys);
    }
    sort_by_key(&mut made, flag(reverse))?;
    Ok(made.into_iter().map(|(_, item)| item).collect())
}

fn extreme(guard: &Guard, args: &[Value], what: &str, wanted: Ordering) -> Result<Value, Error> {
    let names = ["value", "case_sensitive", "attribute"];
    let [value, is_cased, path] = bound(what, names, 1, args)?;
    let made = keyed(
        guard,
        &value.unwrap_or_default(),
        flag(is_cased),
        path.as_ref(),
    )?;
    let mut best: Option<(Value, Value)> = None;
    for (key, item) in made {
        let is_better = match &best {
            Some((best, _)) => order(&key, best)? == wanted,
            None => true,
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

pub(super) fn min(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    extreme(guard, args, "min", Ordering::Less)
}

pub(super) fn max(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    extreme(guard, args, "max", Ordering::Greater)
}

pub(super) fn groupby(
    guard: &Guard,
    _: &mut State<'_, '_>,
    args: &[Value],
) -> Result<Value, Error> {
    let names = ["value", "attribute", "default", "case_sensitive"];
    let [value, path, other, is_cased] = bound("groupby", names, 2, args)?;
    let (value, is_cased) = (value.unwrap_or_default(), flag(is_cased));
    guard.charge_comparisons(&value)?;
    let mut made = Vec::new();
    for item in items(&value)? {
        let key = attribute(&item, path.as_ref(), other.as_ref())?;
        made.push((without_case(key, is_cased), item));
    }
    sort_by_key(&mut made, false)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in made {
        match groups.last_mut() {
            Some((last, group)) if equal(last, &key) => group.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut pairs = Vec::new();
    for (key, group) in groups {
        // A group is named after its first item, in that item's case.
        let name = match is_cased {
            true => key,
            false => attribute(&group[0], path.as_ref(), other.as_ref())?,
        };
        pairs.push(Group::of(name, Value::from(group)));
    }
    Ok(Value::from(pairs))
}

pub(super) fn dictsort(
    guard: &Guard,
    _: &mut State<'_, '_>,
    args: &[Value],
) -> Result<Value, Error> {
    let names = ["value", "case_sensitive", "by", "reverse"];
    let [value, is_cased, by, reverse] = bound("dictsort", names, 1, args)?;
    let (value, is_cased) = (value.unwrap_or_default(), flag(is_cased));
    if value.kind() != ValueKind::Map {
        return fail("dictsort is for dicts");
    }
    let by_value = match by.as_ref().map(Value::as_str) {
        None | Some(Some("key")) => false,
        Some(Some("value")) => true,
        _ => return fail("dictsort: by is either 'key' or 'value'"),
    };
    guard.charge_comparisons(&value)?;
    let mut made = Vec::new();
    for key in items(&value)? {
        let item = value.get_item(&key)?;
        let by = if by_value { item.clone() } else { key.clone() };
        made.push((without_case(by, is_cased), pair(key, item)));
    }
    sort_by_key(&mut made, flag(reverse))?;
    Ok(made.into_iter().map(|(_, pair)| pair).collect())
}

pub(super) fn sum(_: &Guard, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, path, start] = bound("sum", ["iterable", "attribute", "start"], 1, args)?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    if total.as_str().is_some() {
        return fail("sum() can't sum strings");
    }
    let plus = state.env().compile_expression("a + b")?;
    for item in items(&value.unwrap_or_default())? {
        let item = attribute(&item, path.as_ref(), None)?;
        if item.is_undefined() || item.is_none() {
            return fail("sum: an item is not a number");
        }
        total = match add(&total, &item) {
            Some(made) => made?,
            None => {
                plus.eval(minijinja::context! { a => number_of(&total), b => number_of(&item) })?
            }
        };
    }
    Ok(total)
}

/// A bool as a number.
fn number_of(value: &Value) -> Value {
    match (value.kind(), whole(value)) {
        (ValueKind::Bool, Some(number)) => Value::from(number),
        _ => value.clone(),
    }
}

pub(super) fn join(guard: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, separator, path] = bound("join", ["value", "d", "attribute"], 1, args)?;
    let separator = separator.unwrap_or_else(|| Value::from(""));
    let mut parts = Vec::new();
    for item in items(&value.unwrap_or_default())? {
        parts.push(text(&attribute(&item, path.as_ref(), None)?));
    }
    let separator = text(&separator);
    guard.room(parts.len(), separator.len())?;
    Ok(Value::from(parts.join(&separator)))
}

pub(super) fn first(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bound("first", ["seq"], 1, args)?;
    let value = value.unwrap_or_default();
    if let Some(text) = value.as_str() {
        return Ok(text
            .chars()
            .next()
            .map(|c| Value::from(c.to_string()))
            .unwrap_or_default());
    }
    if let Some(once) = Once::get(&value) {
        return once.next().map(Option::unwrap_or_default);
    }
    Ok(items(&value)?.into_iter().next().unwrap_or_default())
}

pub(super) fn last(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bound("last", ["seq"], 1, args)?;
    let value = value.unwrap_or_default();
    if let Some(text) = value.as_str() {
        return Ok(text
            .chars()
            .next_back()
            .map(|c| Value::from(c.to_string()))
            .unwrap_or_default());
    }
    if Once::get(&value).is_some() {
        return fail("'generator' object is not reversible");
    }
    Ok(items(&value)?.pop().unwrap_or_default())
}

pub(super) fn list(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bound("list", ["value"], 1, args)?;
    Ok(Value::from(items(&value.unwrap_or_default())?))
}

pub(super) fn length(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bound("length", ["obj"], 1, args)?;
    len(&value.unwrap_or_default()).map(Value::from)
}

/// `len(value)`.
pub(super) fn len(value: &Value) -> Result<usize, Error> {
    match value.as_str() {
        Some(text) => Ok(text.chars().count()),
        None if real(value).is_some() => fail("a number has no length"),
        None if Once::get(value).is_some() => fail("object of type 'generator' has no len()"),
        None => Ok(items(value)?.len()),
    }
}

pub(super) fn xmlattr(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, space] = bound("xmlattr", ["d", "autospace"], 1, args)?;
    let value = value.unwrap_or_default();
    if value.kind() != ValueKind::Map {
        return fail("xmlattr is for dicts");
    }
    let mut parts = Vec::new();
    for key in items(&value)? {
        let item = value.get_item(&key)?;
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let name = text(&key);
        if name.contains(|c: char| super::texts::is_space(c) || "/>=".contains(c)) {
            return fail(format!("Invalid character in attribute name: {name:?}"));
        }
        parts.push(format!("{}=\"{}\"", escaped(&key), escaped(&item)));
    }
    let space = space.is_none_or(|space| space.is_true()) && !parts.is_empty();
    Ok(Value::from(
        (if space { " " } else { "" }).to_owned() + &parts.join(" "),
    ))
}
