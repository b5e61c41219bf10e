//! Reads the fields of a request: absent and null are the same. A value of the wrong type or outside its range is an
//! error that names the field, the value and the range. Unknown fields are ignored.

use crate::api::ApiError;
use core::cell::RefCell;
use core::fmt::Display;
use core::ops::RangeInclusive;
use serde_json::{Map, Value};

/// The fields of a JSON object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'v> {
    map: &'v Map<String, Value>,
}

type Result<T> = core::result::Result<T, ApiError>;

impl<'v> Fields<'v> {
    /// The fields of a request's body.
    pub(crate) fn of_body(body: &'v Value) -> Result<Self> {
        match body {
            Value::Object(map) => Ok(Self { map }),
            _ => Err(ApiError::invalid("the body must be a JSON object")),
        }
    }

    /// The fields of a nested object.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Self>> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { map })),
            Some(other) => Err(wrong(name, other, "an object")),
        }
    }

    /// The value of a field, unless it is null.
    pub(crate) fn value(&self, name: &str) -> Option<&'v Value> {
        ASKED.with_borrow_mut(|asked| {
            if let Some(asked) = asked {
                asked.push(name.to_owned());
            }
        });
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The first of `names` that is present, with its name.
    pub(crate) fn first<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names
            .iter()
            .copied()
            .find(|name| self.value(name).is_some())
    }

    /// The object itself.
    pub(crate) const fn map(&self) -> &'v Map<String, Value> {
        self.map
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Option<bool>> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => Err(wrong(name, other, "true or false")),
        }
    }

    pub(crate) fn str(&self, name: &str) -> Result<Option<&'v str>> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, other, "a string")),
        }
    }

    /// A string that has to be one of `words`.
    pub(crate) fn word(&self, name: &str, words: &[&str]) -> Result<Option<&'v str>> {
        let Some(text) = self.str(name)? else {
            return Ok(None);
        };
        if words.contains(&text) {
            return Ok(Some(text));
        }
        let what = format!("{} is not one of {}", shown(&text.into()), words.join(", "));
        Err(ApiError::field(name, what))
    }

    /// An integer within `range`. A float with an integral value is accepted.
    pub(crate) fn int(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        let Some(number) = whole(value) else {
            return Err(wrong(name, value, "an integer"));
        };
        if range.contains(&number) {
            return Ok(Some(number));
        }
        Err(outside(name, value, &range))
    }

    /// A non-negative integer within `range`. A float with an integral value is accepted.
    pub(crate) fn count(&self, name: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        let least = i64::try_from(*range.start()).unwrap_or(i64::MAX);
        let most = i64::try_from(*range.end()).unwrap_or(i64::MAX);
        let number = self.int(name, least..=most)?;
        Ok(number.and_then(|number| usize::try_from(number).ok()))
    }

    /// A number within `range`.
    pub(crate) fn float(&self, name: &str, range: RangeInclusive<f32>) -> Result<Option<f32>> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        let Some(number) = value.as_f64() else {
            return Err(wrong(name, value, "a number"));
        };
        #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
        let number = number as f32;
        if range.contains(&number) {
            return Ok(Some(number));
        }
        Err(outside(name, value, &range))
    }

    /// A string, or a list of strings.
    pub(crate) fn texts(&self, name: &str) -> Result<Vec<String>> {
        match self.value(name) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text.clone()]),
            Some(Value::Array(list)) => {
                let text = |value: &Value| value.as_str().map(str::to_owned);
                let each = list.iter().enumerate();
                let texts = each.map(|(i, value)| {
                    text(value).ok_or_else(|| wrong(&format!("{name}[{i}]"), value, "a string"))
                });
                texts.collect()
            }
            Some(other) => Err(wrong(name, other, "a string or a list of strings")),
        }
    }

    /// A list of tokens.
    pub(crate) fn tokens(&self, name: &str) -> Result<Option<Vec<u32>>> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(list)) => tokens(name, list).map(Some),
            Some(other) => Err(wrong(name, other, "a list of token ids")),
        }
    }

    /// A list of any values; empty if absent.
    pub(crate) fn list(&self, name: &str) -> Result<Vec<Value>> {
        match self.value(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok(list.clone()),
            Some(other) => Err(wrong(name, other, "a list")),
        }
    }

    /// The objects of a list, each with its path; empty if absent. `what` is what each should be.
    pub(crate) fn objects(&self, name: &str, what: &str) -> Result<Vec<(String, Self)>> {
        let list = match self.value(name) {
            None => &[][..],
            Some(Value::Array(list)) => list,
            Some(other) => return Err(wrong(name, other, "a list")),
        };
        let each = list.iter().enumerate().map(|(i, value)| {
            let path = format!("{name}[{i}]");
            match value {
                Value::Object(map) => Ok((path, Self { map })),
                other => Err(wrong(&path, other, what)),
            }
        });
        each.collect()
    }

    /// Refuses an unsupported field, unless its value is `harmless`: one that asks for what is done anyway.
    pub(crate) fn refuse(&self, name: &str, harmless: &[Value], why: &str) -> Result<()> {
        match self.value(name) {
            Some(value) if !harmless.contains(value) => Err(ApiError::field(name, why)),
            _ => Ok(()),
        }
    }
}

/// Runs `read`, and returns the names of all fields that it asked for as well.
pub(super) fn asked_by<T>(read: impl FnOnce() -> T) -> (T, Vec<String>) {
    ASKED.set(Some(Vec::new()));
    let value = read();
    (value, ASKED.take().unwrap_or_default())
}

thread_local! {
    /// The names of fields that were asked for.
    static ASKED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Overwrites a field if the request sets it.
pub(super) fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

/// An error of a field within the object `object`, with its whole path.
pub(crate) fn within(object: &str, error: ApiError) -> ApiError {
    let field = match &error.field {
        Some(field) => format!("{object}.{field}"),
        None => object.to_owned(),
    };
    ApiError {
        field: Some(field),
        ..error
    }
}

/// The error for a value of the wrong type.
pub(crate) fn wrong(name: &str, value: &Value, expected: &str) -> ApiError {
    ApiError::field(name, format!("{} is not {expected}", shown(value)))
}

fn outside<T: Display>(name: &str, value: &Value, range: &RangeInclusive<T>) -> ApiError {
    let (least, most) = (range.start(), range.end());
    let what = format!("{} is not between {least} and {most}", shown(value));
    ApiError::field(name, what)
}

/// A token ID.
pub(crate) fn token(name: &str, value: &Value) -> Result<u32> {
    let number = whole(value).and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| wrong(name, value, "a token id"))
}

/// A list of token IDs.
pub(crate) fn tokens(name: &str, list: &[Value]) -> Result<Vec<u32>> {
    let each = list.iter().enumerate();
    each.map(|(i, value)| token(&format!("{name}[{i}]"), value))
        .collect()
}

fn whole(value: &Value) -> Option<i64> {
    let of_float = || {
        let number = value.as_f64()?;
        let is_whole = number.fract().abs() <= 0.0 && number.abs() < EXACT;
        #[expect(clippy::cast_possible_truncation, reason = "it is whole and small")]
        let number = number as i64;
        is_whole.then_some(number)
    };
    // 64-bit seeds may be sent as unsigned numbers.
    let clamped = value
        .as_u64()
        .map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    value.as_i64().or(clamped).or_else(of_float)
}

/// A value for an error message, shortened.
pub(crate) fn shown(value: &Value) -> String {
    let text = match value {
        Value::Array(_) => return "a list".to_owned(),
        Value::Object(_) => return "an object".to_owned(),
        value => value.to_string(),
    };
    if text.len() <= SHOWN_BYTES {
        return text;
    }
    format!("{}…", &text[..text.floor_char_boundary(SHOWN_BYTES)])
}

/// Integral floats below this are exact.
const EXACT: f64 = 9_007_199_254_740_992.0;
const SHOWN_BYTES: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message(result: Result<impl core::fmt::Debug>) -> String {
        result.expect_err("is invalid").to_string()
    }

    #[test]
    fn values_are_read_by_type() {
        let body = json!({"a": 3, "b": 2.0, "c": null, "d": "x", "e": ["x", "y"], "f": true});
        let fields = Fields::of_body(&body).unwrap();
        assert_eq!(fields.int("a", 0..=5).unwrap(), Some(3));
        assert_eq!(fields.int("b", 0..=5).unwrap(), Some(2));
        assert_eq!(fields.int("c", 0..=5).unwrap(), None);
        assert_eq!(fields.texts("d").unwrap(), ["x"]);
        assert_eq!(fields.texts("e").unwrap(), ["x", "y"]);
        assert_eq!(fields.bool("f").unwrap(), Some(true));
        assert_eq!(fields.first(&["c", "z", "b"]), Some("b"));
    }

    #[test]
    fn errors_name_field_value_and_range() {
        let body = json!({"a": 7, "b": "x", "c": 1.5, "e": ["x", 1], "s": "y".repeat(200)});
        let fields = Fields::of_body(&body).unwrap();
        assert_eq!(
            message(fields.int("a", 0..=5)),
            "a: 7 is not between 0 and 5"
        );
        assert_eq!(
            message(fields.int("b", 0..=5)),
            "b: \"x\" is not an integer"
        );
        assert_eq!(message(fields.int("c", 0..=5)), "c: 1.5 is not an integer");
        assert_eq!(
            message(fields.float("b", 0.0..=1.0)),
            "b: \"x\" is not a number"
        );
        assert_eq!(
            message(fields.float("a", 0.0..=1.0)),
            "a: 7 is not between 0 and 1"
        );
        assert_eq!(message(fields.texts("e")), "e[1]: 1 is not a string");
        assert_eq!(
            message(fields.word("b", &["p", "q"])),
            "b: \"x\" is not one of p, q"
        );
        assert!(message(fields.bool("s")).len() < 120);
        assert!(Fields::of_body(&json!([1])).is_err());
    }

    #[test]
    fn unsupported_fields_may_say_what_is_done_anyway() {
        let body = json!({"best_of": 1, "audio": {}});
        let fields = Fields::of_body(&body).unwrap();
        assert!(
            fields
                .refuse("best_of", &[json!(1)], "not supported")
                .is_ok()
        );
        assert!(fields.refuse("audio", &[], "not supported").is_err());
        assert!(fields.refuse("none", &[], "not supported").is_ok());
    }
}
