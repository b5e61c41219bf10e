//! Writes places as a schema again, with nothing left to combine.

use super::exact::Exact;
use super::keywords::{is_of, of_name};
use super::marks::mark;
use super::numeric::{Numeric, Part};
use super::place::Places;
use super::read::Reader;
use super::shape::{Array, Object, Shape, Text, Together};
use super::text;
use serde_json::{Map, Value, json};

/// The schema of all places; the first place is the document.
pub(super) fn emit(reader: &mut Reader<'_>, places: &Places) -> Result<Value, String> {
    let mut definitions = Map::new();
    for (number, place) in places.all.iter().enumerate() {
        if place.can_be && !place.shapes.iter().all(Shape::is_scalar) {
            let schema = alternatives(reader, places, number)?;
            definitions.insert(format!("n{number}"), schema);
        }
    }
    for number in 0..places.patterns.len() {
        definitions.insert(format!("d{number}"), json!({ "const": mark(number) }));
    }
    let mut root = match at(reader, places, &places.all[0].together)? {
        Value::Object(root) => root,
        _ => Map::new(),
    };
    let guidance = reader.root.get("x-guidance").cloned();
    let spaces = || json!({ "whitespace_pattern": WHITE_SPACE });
    root.insert("x-guidance".into(), guidance.unwrap_or_else(spaces));
    root.insert("$defs".into(), Value::Object(definitions));
    Ok(Value::Object(root))
}

/// The schema of a nested place: written out if it is scalar, or else a reference.
fn at(reader: &Reader<'_>, places: &Places, together: &Together) -> Result<Value, String> {
    let number = places.of(together);
    let place = &places.all[number];
    if !place.can_be {
        return Ok(Value::Bool(false));
    }
    if together.is_empty() {
        return Ok(Value::Bool(true));
    }
    if place.shapes.iter().all(Shape::is_scalar) {
        return alternatives(reader, places, number);
    }
    Ok(json!({ "$ref": format!("#/$defs/n{number}") }))
}

fn alternatives(reader: &Reader<'_>, places: &Places, number: usize) -> Result<Value, String> {
    let place = &places.all[number];
    if place.together.is_empty() {
        return Ok(Value::Bool(true));
    }
    let mut all = Vec::new();
    for shape in &place.shapes {
        match shape {
            Shape::Null => all.push(json!({ "type": "null" })),
            Shape::Bool(None) => all.push(json!({ "type": "boolean" })),
            Shape::Bool(Some(value)) => all.push(json!({ "const": value })),
            Shape::Number(number) => {
                all.extend(number.parts()?.iter().filter_map(|part| match part {
                    Part::Small(number) => Some(numeric(number)),
                    Part::Whole(_) => None,
                }));
            }
            Shape::Text(text) => all.push(textual(text)?),
            Shape::Array(shape) => all.extend(array(reader, places, shape)?),
            Shape::Object(shape) => {
                let name = reader.name_of(&place.together);
                let objects = objects(reader, places, shape);
                all.extend(objects.map_err(|what| format!("{name}: {what}"))?);
            }
        }
    }
    // In a separate definition, so that they do not become one lexeme with their neighbours.
    if let Some(number) = places.patterns.of(&place.wholes()?) {
        all.push(json!({ "$ref": format!("#/$defs/d{number}") }));
    }
    if all.is_empty() {
        let name = reader.name_of(&place.together);
        return Err(format!(
            "no document is valid: the constraints of {name} contradict each other"
        ));
    }
    Ok(match all.len() {
        1 => all.remove(0),
        _ => json!({ "anyOf": all }),
    })
}

fn numeric(number: &Numeric) -> Value {
    // Whole numbers are written without a fraction, which the compiler takes to mean an integer.
    #[expect(clippy::cast_possible_truncation, reason = "below 2^53")]
    let plain = |x: Exact| match x {
        Exact::Whole(whole) => json!(whole as i64),
        Exact::Fraction(x) => json!(x),
    };
    if let Some(only) = number.only() {
        return json!({ "const": plain(only) });
    }
    let mut schema = Map::new();
    let kind = if number.integer { "integer" } else { "number" };
    schema.insert("type".into(), kind.into());
    let bounds = [
        (number.least, ["minimum", "exclusiveMinimum"]),
        (number.most, ["maximum", "exclusiveMaximum"]),
    ];
    for (bound, keys) in bounds {
        if let Some(bound) = bound {
            schema.insert(keys[usize::from(bound.is_open)].into(), plain(bound.at));
        }
    }
    with_all(
        schema,
        kind,
        "multipleOf",
        number.multiples.iter().map(|step| json!(step.number)),
    )
}

/// `schema` with each of `values` under `key`; several are combined with `allOf`.
fn with_all(
    mut schema: Map<String, Value>,
    kind: &str,
    key: &str,
    values: impl Iterator<Item = Value>,
) -> Value {
    let mut values: Vec<Value> = values.collect();
    if values.len() < 2 {
        schema.extend(values.pop().map(|value| (key.to_owned(), value)));
        return Value::Object(schema);
    }
    let mut all: Vec<Value> = values
        .into_iter()
        .map(|value| json!({ "type": kind, key: value }))
        .collect();
    all.push(Value::Object(schema));
    json!({ "allOf": all })
}

fn textual(text: &Text) -> Result<Value, String> {
    if let Some(literals) = &text.literals {
        let mut left = Vec::new();
        for literal in literals {
            if is_of(text, literal)? {
                left.push(literal);
            }
        }
        return Ok(json!({ "enum": left }));
    }
    let mut schema = Map::new();
    schema.insert("type".into(), "string".into());
    if text.least > 0 {
        schema.insert("minLength".into(), text.least.into());
    }
    if let Some(most) = text.most {
        schema.insert("maxLength".into(), most.into());
    }
    if let Some(format) = text.format() {
        schema.insert("format".into(), format.into());
    }
    let patterns = text.patterns.iter().map(|pattern| json!(pattern));
    Ok(with_all(schema, "string", "pattern", patterns))
}

fn array(reader: &Reader<'_>, places: &Places, array: &Array) -> Result<Option<Value>, String> {
    // An impossible item ends the array.
    let ends = array.prefix.iter().position(|item| !places.can_be(item));
    let mut most = array.most;
    let mut end = |len: usize| most = Some(most.map_or(len as u64, |most| most.min(len as u64)));
    if let Some(len) = ends {
        end(len);
    }
    let goes_on = array
        .items
        .as_ref()
        .is_none_or(|items| places.can_be(items));
    if !goes_on {
        end(array.prefix.len());
    }
    if most.is_some_and(|most| most < array.least) {
        return Ok(None);
    }
    let mut schema = Map::new();
    schema.insert("type".into(), "array".into());
    if array.least > 0 {
        schema.insert("minItems".into(), array.least.into());
    }
    if let Some(most) = most {
        schema.insert("maxItems".into(), most.into());
    }
    let n_prefix = ends.unwrap_or(array.prefix.len());
    let mut prefix = Vec::new();
    for item in &array.prefix[..n_prefix] {
        prefix.push(at(reader, places, item)?);
    }
    if !prefix.is_empty() {
        schema.insert("prefixItems".into(), prefix.into());
    }
    match &array.items {
        Some(items) if ends.is_none() => {
            schema.insert("items".into(), at(reader, places, items)?);
        }
        _ => {}
    }
    Ok(Some(Value::Object(schema)))
}

/// The schema of an object or, if its size is bounded, one for each choice of its properties.
fn objects(reader: &Reader<'_>, places: &Places, object: &Object) -> Result<Vec<Value>, String> {
    let mut properties: Vec<(String, Value)> = Vec::new();
    let mut named: Vec<(String, Together)> = object.properties.clone();
    for name in &object.required {
        if !named.iter().any(|(known, _)| known == name) {
            named.push((name.clone(), of_name(object, name)?));
        }
    }
    let patterns = patterns(reader, places, object, &mut named)?;
    for (name, together) in &named {
        properties.push((name.clone(), at(reader, places, together)?));
    }
    let additional = match &object.additional {
        Some(together) => at(reader, places, together)?,
        None => Value::Bool(true),
    };
    let closed = Value::Bool(false);
    let has_more = additional != closed || patterns.values().any(|schema| *schema != closed);
    let is_required = |name: &str| object.required.iter().any(|known| known == name);
    let optional: Vec<usize> = (0..properties.len())
        .filter(|&n| !is_required(&properties[n].0) && properties[n].1 != closed)
        .collect();
    let made = |chosen: Option<&[usize]>| {
        let mut all = Map::new();
        let mut required = Vec::new();
        for (n, (name, schema)) in properties.iter().enumerate() {
            let is_optional = optional.contains(&n);
            let is_chosen = chosen.is_some_and(|chosen| chosen.contains(&n));
            let is_left_out = chosen.is_some() && is_optional && !is_chosen;
            let schema = if is_left_out { &closed } else { schema };
            all.insert(name.clone(), schema.clone());
            if is_required(name) || is_chosen {
                required.push(name.clone());
            }
        }
        json!({ "type": "object", "properties": all, "required": required,
            "patternProperties": patterns, "additionalProperties": additional })
    };
    let n_required = object.required.len() as u64;
    let least = object.least.saturating_sub(n_required);
    let most = object.most.map(|most| most.saturating_sub(n_required));
    let is_bounded = least > 0 || most.is_some_and(|most| has_more || most < optional.len() as u64);
    if !is_bounded {
        return Ok(vec![made(None)]);
    }
    let sizes = choices(optional.len(), least, most, has_more)?;
    let mut all = Vec::new();
    for chosen in sizes {
        let chosen: Vec<usize> = chosen.iter().map(|&n| optional[n]).collect();
        let mut schema = made(Some(&chosen));
        let n = n_required + chosen.len() as u64;
        if has_more && object.least > n {
            schema["minProperties"] = object.least.into();
        }
        if let Some(most) = object.most.filter(|_| has_more) {
            schema["maxProperties"] = most.into();
        }
        all.push(schema);
    }
    Ok(all)
}

/// The patterns that names can still match; a pattern that matches only a few names is replaced by them.
fn patterns(
    reader: &Reader<'_>,
    places: &Places,
    object: &Object,
    named: &mut Vec<(String, Together)>,
) -> Result<Map<String, Value>, String> {
    let mut left: Vec<(&String, &Together)> = Vec::new();
    for (pattern, together) in &object.patterns {
        let known: Vec<&str> = named.iter().map(|(name, _)| &**name).collect();
        let mut regex = text::regex(&[pattern], &known)?;
        match text::all_texts(&mut regex) {
            Some(names) => {
                for name in names {
                    let together = of_name(object, &name)?;
                    named.push((name, together));
                }
            }
            None => left.push((pattern, together)),
        }
    }
    let mut made = Map::new();
    for (n, (pattern, together)) in left.iter().enumerate() {
        for (other, _) in &left[..n] {
            let known: Vec<&str> = named.iter().map(|(name, _)| &**name).collect();
            let overlap = text::regex(&[pattern, other], &known);
            if !overlap.is_ok_and(|mut regex| regex.always_empty()) {
                return Err(format!(
                    "patternProperties {pattern:?} and {other:?} overlap, which is not supported"
                ));
            }
        }
        made.insert((*pattern).clone(), at(reader, places, together)?);
    }
    Ok(made)
}

/// The sets of optional properties whose size is within the bounds.
fn choices(
    n: usize,
    least: u64,
    most: Option<u64>,
    has_more: bool,
) -> Result<Vec<Vec<usize>>, String> {
    let fits = |size: u64| (has_more || size >= least) && most.is_none_or(|most| size <= most);
    if n > CHOICES_LOG_MAX {
        return Err(format!(
            "minProperties and maxProperties over more than {CHOICES_LOG_MAX} optional properties are not supported"
        ));
    }
    let sets = (0..1u32 << n).filter(|set| fits(set.count_ones().into()));
    let members = |set: u32| (0..n).filter(|&i| set >> i & 1 == 1).collect();
    Ok(sets.map(members).collect())
}

/// The white space that llama.cpp allows between the parts of a document.
const WHITE_SPACE: &str = r"( |\n{1,2}[ \t]{0,20})";
const CHOICES_LOG_MAX: usize = 8;
