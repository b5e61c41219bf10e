//! jinja2's numeric filters, and conversions to numbers.

use super::arguments::bound;
use super::texts;
use crate::error::fail;
use crate::guard::Guard;
use crate::values::{integer, real, text, whole};
use minijinja::{Error, State, Value};

pub(super) fn int(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, other, base] = bound("int", ["value", "default", "base"], 1, args)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return fail("undefined is not a number");
    }
    let base = base.map_or(Ok(10), |base| integer("int: base", &base))?;
    let other = other.unwrap_or_else(|| Value::from(0));
    if let Some(number) = whole(&value) {
        return Ok(Value::from(number));
    }
    let parsed = value
        .as_str()
        .and_then(|text| whole_of(text.trim_matches(texts::is_space), base));
    if let Some(number) = parsed {
        return Ok(Value::from(number));
    }
    let number = real(&value).or_else(|| value.as_str().and_then(real_of));
    match number {
        Some(x) if x.is_finite() && x.abs() < 1e38 => {
            #[expect(clippy::cast_possible_truncation, reason = "within 128 bits")]
            let number = x.trunc() as i128;
            Ok(Value::from(number))
        }
        Some(_) if value.as_str().is_none() => fail("cannot convert float infinity to integer"),
        _ => Ok(other),
    }
}

/// `int(text, base)`.
fn whole_of(text: &str, base: i64) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix(['+', '-']) {
        Some(digits) => (if text.starts_with('-') { -1 } else { 1 }, digits),
        None => (1, text),
    };
    let lower = digits.to_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)];
    let found = prefixed
        .iter()
        .find(|(prefix, of)| lower.starts_with(prefix) && (*of == base || base == 0));
    let (digits, base) = match found {
        Some((prefix, of)) => (&lower[prefix.len()..], *of),
        None => (&*lower, if base == 0 { 10 } else { base }),
    };
    let well_placed = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    let digits = digits.replace('_', "");
    let base = u32::try_from(base)
        .ok()
        .filter(|base| (2..=36).contains(base))?;
    if !well_placed || digits.starts_with(['+', '-']) {
        return None;
    }
    i128::from_str_radix(&digits, base)
        .ok()
        .map(|number| sign * number)
}

/// `float(text)`.
fn real_of(text: &str) -> Option<f64> {
    let text = text.trim_matches(texts::is_space).to_lowercase();
    text.replace('_', "").parse().ok()
}

pub(super) fn float(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, other] = bound("float", ["value", "default"], 1, args)?;
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return fail("undefined is not a number");
    }
    let number = real(&value).or_else(|| value.as_str().and_then(real_of));
    Ok(number.map_or_else(|| other.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

pub(super) fn round(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, precision, method] = bound("round", ["value", "precision", "method"], 1, args)?;
    let value = value.unwrap_or_default();
    let precision = precision.map_or(Ok(0), |precision| integer("round: precision", &precision))?;
    let Ok(places) = i32::try_from(precision.clamp(-300, 300)) else {
        return fail("round: precision is out of range");
    };
    let method = method.map_or_else(|| "common".to_owned(), |method| text(&method));
    let Some(x) = real(&value) else {
        return fail("round is for numbers");
    };
    let scale = 10f64.powi(places);
    match &*method {
        "common" if whole(&value).is_some() && places >= 0 => Ok(Value::from(whole(&value))),
        "common" if places >= 0 => {
            let places = usize::try_from(places).unwrap_or(0);
            Ok(Value::from(
                format!("{x:.places$}").parse::<f64>().unwrap_or(x),
            ))
        }
        "common" => {
            let rounded = (x * scale).round_ties_even() / scale;
            #[expect(clippy::cast_possible_truncation, reason = "it was a whole number")]
            let number = rounded as i64;
            Ok(if whole(&value).is_some() {
                Value::from(number)
            } else {
                Value::from(rounded)
            })
        }
        "ceil" => Ok(Value::from((x * scale).ceil() / scale)),
        "floor" => Ok(Value::from((x * scale).floor() / scale)),
        _ => fail("method must be common, ceil or floor"),
    }
}

pub(super) fn abs(_: &Guard, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value] = bound("abs", ["x"], 1, args)?;
    let value = value.unwrap_or_default();
    match (whole(&value), real(&value)) {
        (Some(number), _) => Ok(Value::from(number.saturating_abs())),
        (None, Some(x)) => Ok(Value::from(x.abs())),
        _ => fail("bad operand type for abs()"),
    }
}

#[expect(clippy::float_cmp, reason = "one byte is exactly one")]
pub(super) fn filesizeformat(
    _: &Guard,
    _: &mut State<'_, '_>,
    args: &[Value],
) -> Result<Value, Error> {
    let [value, binary] = bound("filesizeformat", ["value", "binary"], 1, args)?;
    let value = value.unwrap_or_default();
    let Some(bytes) = real(&value).or_else(|| value.as_str().and_then(real_of)) else {
        return fail("filesizeformat is for numbers");
    };
    let is_binary = binary.is_some_and(|binary| binary.is_true());
    let base = if is_binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{} Bytes", bytes.trunc())));
    }
    let mut unit = base;
    for (n, letter) in "kMGTPEZY".chars().enumerate() {
        unit *= base;
        if bytes < unit || n == 7 {
            let letter = if is_binary {
                letter.to_ascii_uppercase()
            } else {
                letter
            };
            let i = if is_binary { "i" } else { "" };
            return Ok(Value::from(format!(
                "{:.1} {letter}{i}B",
                base * bytes / unit
            )));
        }
    }
    Ok(value)
}
