//! Columns of rows, and what is in them.

use serde_json::{Map, Value};

/// A column that has to be a text.
pub(super) fn text(columns: &Map<String, Value>, name: &str) -> Result<String, String> {
    match columns.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!("{name} is {}, not a text", kind(other))),
        None => {
            let names: Vec<_> = columns.keys().map(String::as_str).collect();
            Err(format!(
                "the column {name} is missing: there are {}",
                names.join(", ")
            ))
        }
    }
}

/// A column that may be missing or null.
pub(super) fn maybe_text(
    columns: &Map<String, Value>,
    name: &str,
) -> Result<Option<String>, String> {
    match columns.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(_) => text(columns, name).map(|text| Some(text).filter(|text| !text.is_empty())),
    }
}

/// What a value is, in words.
pub(super) const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
