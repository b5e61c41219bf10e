//! Python's slices: `value[start:stop:step]`.
//!
//! minijinja's own panic on `''[::-1]`, and are off by one for other negative steps.

use crate::error::fail;
use crate::values::{View, like};
use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

/// The slice of a string, list or tuple; `none` for a bound that is not given.
pub(crate) fn slice(value: &Value, [start, stop, step]: [&Value; 3]) -> Result<Value, Error> {
    let bounds = [bound(start)?, bound(stop)?, bound(step)?];
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        let picked = indices(chars.len(), bounds)?.map(|i| chars[i]);
        return Ok(like(value, picked.collect::<String>()));
    }
    let is_view = View::has_no_items_by_number(value);
    if is_view || !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return fail(format!("a value that is {} cannot be sliced", value.kind()));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let picked = indices(items.len(), bounds)?.map(|i| items[i].clone());
    let picked: Vec<Value> = picked.collect();
    Ok(match value.is_tuple() {
        true => Value::from(Tuple::from(picked)),
        false => Value::from(picked),
    })
}

fn bound(value: &Value) -> Result<Option<i64>, Error> {
    if value.is_none() || value.is_undefined() {
        return Ok(None);
    }
    i64::try_from(value.clone()).map(Some)
}

/// The indices below `len` in a slice, in order.
fn indices(
    len: usize,
    [start, stop, step]: [Option<i64>; 3],
) -> Result<impl Iterator<Item = usize>, Error> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return fail("the step of a slice cannot be 0");
    }
    // A value's length is far below 2^63.
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (first, last) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |bound: i64| match bound {
        ..0 => bound.saturating_add(len).max(first),
        _ => bound.min(last),
    };
    let (low, high) = (start.map(place), stop.map(place));
    let start = low.unwrap_or(if step > 0 { first } else { last });
    let stop = high.unwrap_or(if step > 0 { last } else { first });
    let inside = move |i: &i64| if step > 0 { *i < stop } else { *i > stop };
    let all = core::iter::successors(Some(start), move |i| i.checked_add(step));
    Ok(all
        .take_while(inside)
        .filter_map(|i| usize::try_from(i).ok()))
}
