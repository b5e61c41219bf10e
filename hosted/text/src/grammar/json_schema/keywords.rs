//! Keywords that apply to one type, and checks of single shapes.

use super::exact::Exact;
use super::numeric::{Bound, Numeric, Step};
use super::shape::{Object, Shape, Text, Together, both, least_of};
use super::text;
use serde_json::{Map, Number, Value};

/// Closes the object if its properties are named; required properties count as named.
pub(super) fn closed(shape: Shape) -> Shape {
    match shape {
        Shape::Object(mut object) => {
            if object.is_named && object.additional.is_none() {
                for name in object.required.clone() {
                    let is_known = object.properties.iter().any(|(known, _)| *known == name);
                    if let (false, Ok(schema)) = (is_known, of_name(&object, &name)) {
                        object.properties.push((name, schema));
                    }
                }
                object
                    .additional
                    .get_or_insert_with(|| Together::from([NOTHING]));
            }
            Shape::Object(object)
        }
        other => other,
    }
}

/// The schemas that apply to the property `name`.
pub(super) fn of_name(object: &Object, name: &str) -> Result<Together, String> {
    if let Some((_, schema)) = object.properties.iter().find(|(known, _)| known == name) {
        return Ok(schema.clone());
    }
    let of_pattern = matching(&object.patterns, name, "patternProperties")?;
    Ok(of_pattern
        .or_else(|| object.additional.clone())
        .unwrap_or_default())
}

/// The schemas of the patterns that match `name`; `None` if none does.
pub(super) fn matching(
    patterns: &[(String, Together)],
    name: &str,
    pointer: &str,
) -> Result<Option<Together>, String> {
    let mut found: Option<Together> = None;
    for (pattern, schema) in patterns {
        let regex = text::regex(&[pattern], &[]);
        let mut regex = regex.map_err(|what| format!("{pointer}: {what}"))?;
        if regex.is_match(name) {
            found.get_or_insert_default().extend(schema);
        }
    }
    Ok(found)
}

pub(super) fn objects(a: Object, b: Object) -> Result<Object, String> {
    let mut properties = Vec::new();
    for (name, schema) in &a.properties {
        let more = of_name(&b, name)?;
        properties.push((name.clone(), schema.union(&more).copied().collect()));
    }
    for (name, schema) in &b.properties {
        if !a.properties.iter().any(|(known, _)| known == name) {
            let more = of_name(&a, name)?;
            properties.push((name.clone(), schema.union(&more).copied().collect()));
        }
    }
    // A name that matches one side's pattern is among the other side's additional names, unless it matches one there,
    // too.
    let mut patterns: Vec<(String, Together)> = Vec::new();
    for (these, others) in [(&a, &b), (&b, &a)] {
        for (pattern, schema) in &these.patterns {
            if patterns.iter().any(|(known, _)| known == pattern) {
                continue;
            }
            let same = others.patterns.iter().find(|(known, _)| known == pattern);
            let more = match same {
                Some((_, more)) => more.clone(),
                None => others.additional.clone().unwrap_or_default(),
            };
            patterns.push((pattern.clone(), schema.union(&more).copied().collect()));
        }
    }
    let mut required = a.required;
    required.extend(b.required);
    let mut seen = std::collections::HashSet::new();
    required.retain(|name| seen.insert(name.clone()));
    Ok(Object {
        properties,
        patterns,
        additional: both(a.additional, b.additional),
        required,
        least: a.least.max(b.least),
        most: least_of(a.most, b.most),
        is_named: a.is_named || b.is_named,
    })
}

/// Whether `shape` by itself allows no value.
pub(super) fn is_void(shape: &Shape) -> Result<bool, String> {
    Ok(match shape {
        Shape::Null | Shape::Bool(_) => false,
        Shape::Number(number) => number.parts()?.is_empty(),
        Shape::Text(text) => match &text.literals {
            Some(literals) => {
                let mut fits = false;
                for literal in literals {
                    fits |= is_of(text, literal)?;
                }
                !fits
            }
            None => text::is_empty(&text.patterns, text.least, text.most)?,
        },
        Shape::Array(array) => array.most.is_some_and(|most| most < array.least),
        Shape::Object(object) => {
            let least = object.least.max(object.required.len() as u64);
            object.most.is_some_and(|most| most < least)
        }
    })
}

/// Whether a string has an allowed length and matches all patterns.
pub(super) fn is_of(shape: &Text, literal: &str) -> Result<bool, String> {
    let length = literal.chars().count() as u64;
    if length < shape.least || shape.most.is_some_and(|most| most < length) {
        return Ok(false);
    }
    for pattern in &shape.patterns {
        if !text::regex(&[pattern], &[])?.is_match(literal) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// One shape for each allowed type.
pub(super) fn types(object: &Map<String, Value>, pointer: &str) -> Result<Vec<Shape>, String> {
    let Some(types) = object.get("type") else {
        return Ok(Shape::all());
    };
    let one = core::slice::from_ref(types);
    let names = types.as_array().map_or(one, Vec::as_slice);
    let has = |name: &str| names.iter().any(|known| known == name);
    for name in names {
        let known = name.as_str().is_some_and(|name| TYPES.contains(&name));
        if !known {
            return Err(format!("{pointer}: unknown type {name}"));
        }
    }
    let mut shapes = Shape::all();
    shapes.retain(|shape| match shape {
        Shape::Null => has("null"),
        Shape::Bool(_) => has("boolean"),
        Shape::Number(_) => has("number") || has("integer"),
        Shape::Text(_) => has("string"),
        Shape::Array(_) => has("array"),
        Shape::Object(_) => has("object"),
    });
    for shape in &mut shapes {
        if let Shape::Number(number) = shape {
            number.integer = !has("number");
        }
    }
    Ok(shapes)
}

pub(super) fn numeric(object: &Map<String, Value>, pointer: &str) -> Result<Numeric, String> {
    let bound = |key: &str| match object.get(key) {
        Some(Value::Number(number)) => exact(number, &format!("{pointer}/{key}")).map(Some),
        Some(Value::Bool(_)) if key.starts_with("exclusive") => Ok(None),
        Some(_) => Err(format!("{pointer}/{key}: not a number")),
        None => Ok(None),
    };
    // In draft 4, "exclusiveMinimum": true modifies "minimum".
    let flag = |key: &str| object.get(key) == Some(&Value::Bool(true));
    let side = |closed: &str, open: &str| {
        let bound = |key, is_open| bound(key).map(|at| at.map(|at| Bound { at, is_open }));
        Ok::<_, String>([bound(closed, flag(open))?, bound(open, true)?])
    };
    let mut made = Numeric::default();
    for least in side("minimum", "exclusiveMinimum")? {
        made = made.and(Numeric {
            least,
            ..Numeric::default()
        });
    }
    for most in side("maximum", "exclusiveMaximum")? {
        made = made.and(Numeric {
            most,
            ..Numeric::default()
        });
    }
    if let Some(value) = object.get("multipleOf") {
        let step = match value {
            Value::Number(number) => Step::of(number),
            _ => Err("not a number above 0".to_owned()),
        };
        let step = step.map_err(|what| format!("{pointer}/multipleOf: {what}"))?;
        made.multiples.push(step);
    }
    Ok(made)
}

/// The number, if it can be enforced exactly.
pub(super) fn exact(number: &Number, pointer: &str) -> Result<Exact, String> {
    Exact::of(number).ok_or_else(|| {
        format!(
            "{pointer}: the number {number} cannot be represented exactly; integers from -2^63 to 2^64-1 and \
             fractions below 2^53 can"
        )
    })
}

pub(super) fn textual(object: &Map<String, Value>, pointer: &str) -> Result<Text, String> {
    let word = |key: &str| match object.get(key) {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("{pointer}/{key}: not a string")),
        None => Ok(None),
    };
    let made = Text {
        least: count(object, "minLength", pointer)?.unwrap_or(0),
        most: count(object, "maxLength", pointer)?,
        patterns: word("pattern")?.into_iter().collect(),
        formats: word("format")?.into_iter().collect(),
        literals: None,
    };
    for pattern in &made.patterns {
        text::regex(&[pattern], &[]).map_err(|what| format!("{pointer}/pattern: {what}"))?;
    }
    Ok(made)
}

pub(super) fn count(
    object: &Map<String, Value>,
    key: &str,
    pointer: &str,
) -> Result<Option<u64>, String> {
    let Some(value) = object.get(key) else {
        return Ok(None);
    };
    let whole = value
        .as_f64()
        .filter(|x| *x >= 0.0 && x.fract() == 0.0 && *x < 1e15);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "just checked"
    )]
    let count = value.as_u64().or_else(|| whole.map(|x| x as u64));
    let wrong = || format!("{pointer}/{key}: {value} is not a non-negative integer");
    count.map(Some).ok_or_else(wrong)
}

pub(super) fn list_of<'v>(
    value: &'v Value,
    pointer: &str,
    key: &str,
) -> Result<&'v [Value], String> {
    let list = value.as_array().map(Vec::as_slice);
    list.ok_or_else(|| format!("{pointer}: {key} must be a list"))
}

/// The number of the schema that allows nothing.
pub(super) const NOTHING: usize = 0;
const TYPES: [&str; 7] = [
    "null", "boolean", "number", "integer", "string", "array", "object",
];
