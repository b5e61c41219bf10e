//! Reads the keywords of a schema as alternatives.

use super::PARTS_MAX;
use super::keywords::{
    NOTHING, closed, count, exact, is_void, list_of, matching, numeric, objects, of_name, textual,
    types,
};
use super::numeric::Numeric;
use super::reference::Index;
use super::shape::{Array, Object, Shape, Text, Together, same};
use serde_json::{Map, Value};
use sluice_core::kernels::words;
use std::collections::{HashMap, HashSet};

/// A schema, or a value that acts as one because it is the only one allowed.
#[derive(Clone, Copy, Debug)]
enum Source<'s> {
    Schema(&'s Value),
    Constant(&'s Value),
    Nothing,
}

/// Reads and numbers schemas.
#[derive(Debug)]
pub(super) struct Reader<'s> {
    pub root: &'s Value,
    index: Index<'s>,
    sources: Vec<(Source<'s>, String)>,
    numbers: HashMap<(*const Value, bool), usize>,
    /// Numbers of the schemas that are being read, each nested in the one before.
    open: Vec<usize>,
    /// Nesting depth of checks of nested places.
    looks: usize,
    n_parts: usize,
    takes_any_of_one_of: bool,
}

impl<'s> Reader<'s> {
    pub(super) fn new(root: &'s Value) -> Result<Self, String> {
        let mut reader = Self {
            root,
            index: Index::new(root),
            sources: vec![(Source::Nothing, "false".to_owned())],
            numbers: HashMap::new(),
            open: Vec::new(),
            looks: 0,
            n_parts: 0,
            takes_any_of_one_of: root.pointer("/x-guidance/coerce_one_of")
                == Some(&Value::Bool(true)),
        };
        reader.number(root, "#")?;
        Ok(reader)
    }

    /// The schemas that apply to the whole document.
    pub(super) fn start(&mut self) -> Result<Together, String> {
        self.together(self.root, "#")
    }

    /// The location of the first schema of `together`.
    pub(super) fn name_of(&self, together: &Together) -> &str {
        let last = together.last().and_then(|&number| self.sources.get(number));
        last.map_or("#", |(_, pointer)| pointer)
    }

    fn charge(&mut self, parts: usize) -> Result<(), String> {
        self.n_parts += parts;
        if self.n_parts > PARTS_MAX {
            return Err(format!(
                "the schema is too large: more than {PARTS_MAX} parts"
            ));
        }
        Ok(())
    }

    fn number(&mut self, schema: &'s Value, pointer: &str) -> Result<usize, String> {
        self.numbered(Source::Schema(schema), schema, pointer)
    }

    fn numbered(
        &mut self,
        source: Source<'s>,
        value: &'s Value,
        pointer: &str,
    ) -> Result<usize, String> {
        let key = (
            core::ptr::from_ref(value),
            matches!(source, Source::Schema(_)),
        );
        if let Some(&number) = self.numbers.get(&key) {
            return Ok(number);
        }
        self.charge(1)?;
        self.sources.push((source, pointer.to_owned()));
        self.numbers.insert(key, self.sources.len() - 1);
        Ok(self.sources.len() - 1)
    }

    /// A single schema; one that allows everything adds no restriction.
    fn together(&mut self, schema: &'s Value, pointer: &str) -> Result<Together, String> {
        Ok(match schema {
            Value::Bool(true) => Together::new(),
            Value::Bool(false) => Together::from([NOTHING]),
            Value::Object(object) if object.is_empty() => Together::new(),
            schema => Together::from([self.number(schema, pointer)?]),
        })
    }

    /// The alternatives for a place to which all of `together` apply.
    pub(super) fn shapes(&mut self, together: &Together) -> Result<Vec<Shape>, String> {
        let mut shapes = Shape::all();
        for &number in together {
            let more = self.shapes_of(number)?;
            shapes = self.intersect(shapes, &more)?;
        }
        Ok(shapes)
    }

    fn shapes_of(&mut self, number: usize) -> Result<Vec<Shape>, String> {
        if self.open.contains(&number) || self.open.len() > DEPTH_MAX {
            let pointer = &self.sources[number].1;
            return Err(format!(
                "{pointer}: a $ref leads back here with nothing in between"
            ));
        }
        let (source, pointer) = self.sources[number].clone();
        self.open.push(number);
        let shapes = match source {
            Source::Nothing => Ok(vec![]),
            Source::Constant(value) => self.constant(value, &pointer).map(|shape| vec![shape]),
            Source::Schema(Value::Bool(true)) => Ok(Shape::all()),
            Source::Schema(Value::Bool(false)) => Ok(vec![]),
            Source::Schema(value) => match value.as_object() {
                Some(object) => self.keywords(value, object, &pointer),
                None => Err(format!("{pointer}: a schema is an object, true or false")),
            },
        };
        self.open.pop();
        shapes
    }

    fn keywords(
        &mut self,
        value: &'s Value,
        object: &'s Map<String, Value>,
        pointer: &str,
    ) -> Result<Vec<Shape>, String> {
        for key in UNSUPPORTED {
            let means_nothing = object.get(key).is_none_or(|value| match key {
                "uniqueItems" => *value == Value::Bool(false),
                "propertyNames" => allows_any_name(value),
                _ => false,
            });
            if !means_nothing {
                return Err(format!("{pointer}: \"{key}\" is not supported"));
            }
        }
        let mut shapes = Vec::new();
        for shape in types(object, pointer)? {
            shapes.push(match shape {
                Shape::Number(number) => Shape::Number(number.and(numeric(object, pointer)?)),
                Shape::Text(_) => Shape::Text(textual(object, pointer)?),
                Shape::Array(_) => Shape::Array(self.array(object, pointer)?),
                Shape::Object(_) => Shape::Object(self.object(object, pointer)?),
                other => other,
            });
        }
        if let Some(constant) = object.get("const") {
            let more = vec![self.constant(constant, pointer)?];
            shapes = self.intersect(shapes, &more)?;
        }
        if let Some(list) = object.get("enum") {
            let more = self.enumeration(list_of(list, pointer, "enum")?, pointer)?;
            shapes = self.intersect(shapes, &more)?;
        }
        for key in ["$ref", "$dynamicRef"] {
            let Some(reference) = object.get(key) else {
                continue;
            };
            if key == "$dynamicRef" && !self.index.is_static() {
                return Err(format!(
                    "{pointer}: \"$dynamicRef\" with several targets is not supported"
                ));
            }
            let more = self.referred(value, reference, pointer)?;
            shapes = self.intersect(shapes, &more)?;
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            let Some(list) = object.get(key) else {
                continue;
            };
            let mut all = Vec::new();
            for (n, schema) in list_of(list, pointer, key)?.iter().enumerate() {
                let number = self.number(schema, &format!("{pointer}/{key}/{n}"))?;
                all.push(self.shapes_of(number)?);
            }
            match key {
                "allOf" => {
                    for more in &all {
                        shapes = self.intersect(shapes, more)?;
                    }
                }
                _ => {
                    let mut each = Vec::new();
                    for more in &all {
                        each.push(self.intersect(shapes.clone(), more)?);
                    }
                    if key == "oneOf" {
                        self.check_one_of(&each, &all, pointer)?;
                    }
                    shapes = each.into_iter().flatten().collect();
                }
            }
        }
        self.unevaluated(object, &mut shapes, pointer)?;
        Ok(shapes)
    }

    fn referred(
        &mut self,
        at: &'s Value,
        reference: &'s Value,
        pointer: &str,
    ) -> Result<Vec<Shape>, String> {
        let Some(reference) = reference.as_str() else {
            return Err(format!("{pointer}: $ref must be a string"));
        };
        let target = self.index.find(at, reference);
        let target = target.map_err(|what| format!("{pointer}: {what}"))?;
        let number = match target {
            Value::Bool(false) => NOTHING,
            target => self.number(target, reference)?,
        };
        self.shapes_of(number)
    }

    /// The restrictions on parts that no keyword of the schema or its subschemas has evaluated.
    fn unevaluated(
        &mut self,
        object: &'s Map<String, Value>,
        shapes: &mut [Shape],
        pointer: &str,
    ) -> Result<(), String> {
        for key in ["unevaluatedProperties", "unevaluatedItems"] {
            let Some(schema) = object.get(key) else {
                continue;
            };
            let rest = self.together(schema, &format!("{pointer}/{key}"))?;
            for shape in shapes.iter_mut() {
                match shape {
                    Shape::Object(object) if key == "unevaluatedProperties" => {
                        object.additional.get_or_insert_with(|| rest.clone());
                    }
                    Shape::Array(array) if key == "unevaluatedItems" => {
                        array.items.get_or_insert_with(|| rest.clone());
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn enumeration(&mut self, list: &'s [Value], pointer: &str) -> Result<Vec<Shape>, String> {
        let mut shapes = Vec::new();
        let mut texts: Vec<String> = Vec::new();
        let mut numbers = HashSet::new();
        for (n, value) in list.iter().enumerate() {
            match value {
                Value::Number(number) => {
                    let number = exact(number, pointer)?;
                    if numbers.insert(number) {
                        shapes.push(Shape::Number(Numeric::exactly(number)));
                    }
                }
                Value::String(text) if texts.contains(text) => {}
                Value::String(text) => texts.push(text.clone()),
                value if list[..n].iter().any(|before| same(before, value)) => {}
                value => shapes.push(self.constant(value, pointer)?),
            }
        }
        if !texts.is_empty() {
            shapes.push(Shape::Text(Text {
                literals: Some(texts),
                ..Text::default()
            }));
        }
        self.charge(list.len())?;
        Ok(shapes)
    }

    /// A value that is the only one allowed.
    fn constant(&mut self, value: &'s Value, pointer: &str) -> Result<Shape, String> {
        let mut below = |value| {
            let number = self.numbered(Source::Constant(value), value, pointer)?;
            Ok::<_, String>(Together::from([number]))
        };
        Ok(match value {
            Value::Null => Shape::Null,
            Value::Bool(value) => Shape::Bool(Some(*value)),
            Value::Number(number) => Shape::Number(Numeric::exactly(exact(number, pointer)?)),
            Value::String(text) => Shape::Text(Text {
                literals: Some(vec![text.clone()]),
                ..Text::default()
            }),
            Value::Array(items) => Shape::Array(Array {
                least: items.len() as u64,
                most: Some(items.len() as u64),
                prefix: items.iter().map(below).collect::<Result<_, _>>()?,
                items: Some(Together::from([NOTHING])),
            }),
            Value::Object(map) => {
                let mut properties = Vec::new();
                for (key, value) in map {
                    properties.push((key.clone(), below(value)?));
                }
                Shape::Object(Object {
                    required: map.keys().cloned().collect(),
                    properties,
                    additional: Some(Together::from([NOTHING])),
                    is_named: true,
                    ..Object::default()
                })
            }
        })
    }

    fn array(&mut self, object: &'s Map<String, Value>, pointer: &str) -> Result<Array, String> {
        let mut array = Array {
            least: count(object, "minItems", pointer)?.unwrap_or(0),
            most: count(object, "maxItems", pointer)?,
            ..Array::default()
        };
        // Before 2020-12, `prefixItems` was a list under the name "items".
        let (prefix, items) = match object.get("items") {
            Some(Value::Array(_)) => ("items", "additionalItems"),
            _ => ("prefixItems", "items"),
        };
        if let Some(list) = object.get(prefix) {
            for (n, schema) in list_of(list, pointer, prefix)?.iter().enumerate() {
                let schema = self.together(schema, &format!("{pointer}/{prefix}/{n}"))?;
                array.prefix.push(schema);
            }
        }
        if let Some(schema) = object.get(items) {
            array.items = Some(self.together(schema, &format!("{pointer}/{items}"))?);
        }
        Ok(array)
    }

    fn object(&mut self, object: &'s Map<String, Value>, pointer: &str) -> Result<Object, String> {
        let mut made = Object {
            least: count(object, "minProperties", pointer)?.unwrap_or(0),
            most: count(object, "maxProperties", pointer)?,
            is_named: object.contains_key("properties") || object.contains_key("required"),
            ..Object::default()
        };
        for key in ["properties", "patternProperties"] {
            let Some(map) = object.get(key) else { continue };
            let Some(map) = map.as_object() else {
                return Err(format!("{pointer}: {key} must be an object"));
            };
            for (name, schema) in map {
                let escaped = name.replace('~', "~0").replace('/', "~1");
                let place = format!("{pointer}/{key}/{escaped}");
                let schema = self.together(schema, &place)?;
                if key == "properties" {
                    made.properties.push((name.clone(), schema));
                } else {
                    made.patterns.push((name.clone(), schema));
                }
            }
        }
        if let Some(schema) = object.get("additionalProperties") {
            let place = format!("{pointer}/additionalProperties");
            made.additional = Some(self.together(schema, &place)?);
        }
        if let Some(list) = object.get("required") {
            for name in list_of(list, pointer, "required")? {
                let name = name.as_str();
                let name =
                    name.ok_or_else(|| format!("{pointer}: required must be a list of names"))?;
                if !made.required.iter().any(|known| known == name) {
                    made.required.push(name.to_owned());
                }
            }
        }
        // A name must also satisfy the schemas of the patterns that it matches.
        let names: Vec<String> = made
            .properties
            .iter()
            .map(|(name, _)| name.clone())
            .collect();
        for (n, name) in names.iter().enumerate() {
            let more = matching(&made.patterns, name, pointer)?;
            made.properties[n].1.extend(more.unwrap_or_default());
        }
        Ok(made)
    }

    /// All compatible pairs of alternatives, combined.
    fn intersect(&mut self, a: Vec<Shape>, b: &[Shape]) -> Result<Vec<Shape>, String> {
        let mut made = Vec::new();
        self.charge(a.len() + b.len())?;
        for a in &a {
            for b in b {
                let shape = match (a.clone(), b.clone()) {
                    (Shape::Null, Shape::Null) => Shape::Null,
                    (Shape::Bool(a), Shape::Bool(b)) => match (a, b) {
                        (Some(a), Some(b)) if a != b => continue,
                        (a, b) => Shape::Bool(a.or(b)),
                    },
                    (Shape::Number(a), Shape::Number(b)) => Shape::Number(a.and(b)),
                    (Shape::Text(a), Shape::Text(b)) => Shape::Text(a.and(b)),
                    (Shape::Array(a), Shape::Array(b)) => Shape::Array(a.and(b)),
                    (Shape::Object(a), Shape::Object(b)) => {
                        self.charge(a.properties.len() + b.properties.len())?;
                        Shape::Object(objects(a, b)?)
                    }
                    _ => continue,
                };
                self.charge(1)?;
                if !is_void(&shape)? {
                    made.push(shape);
                }
            }
        }
        Ok(made)
    }

    /// Checks that no document matches two alternatives, as far as a quick check can tell.
    fn check_one_of(
        &mut self,
        each: &[Vec<Shape>],
        all: &[Vec<Shape>],
        pointer: &str,
    ) -> Result<(), String> {
        if self.takes_any_of_one_of || self.looks > LOOKS_MAX {
            return Ok(());
        }
        for (n, shapes) in each.iter().enumerate() {
            for (m, others) in all.iter().enumerate() {
                let closed = shapes.iter().cloned().map(closed).collect();
                if n == m {
                    continue;
                }
                for shape in self.intersect(closed, others)? {
                    if !self.is_void_below(&shape)? {
                        return Err(format!(
                            "{pointer}/oneOf: a document can match both {n} and {m}; write anyOf, or \"x-guidance\": \
                             {{\"coerce_one_of\": true}} at the top to treat it as anyOf"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a place that `shape` needs cannot have a value.
    fn is_void_below(&mut self, shape: &Shape) -> Result<bool, String> {
        let mut needed = Vec::new();
        match shape {
            Shape::Object(object) => {
                for name in &object.required {
                    needed.push(of_name(object, name)?);
                }
            }
            Shape::Array(array) => {
                let least = usize::try_from(array.least).unwrap_or(usize::MAX);
                needed.extend(array.prefix.iter().take(least).cloned());
                if least > array.prefix.len() {
                    needed.extend(array.items.clone());
                }
            }
            _ => {}
        }
        if self.looks > LOOKS_MAX {
            return Ok(false);
        }
        self.looks += 1;
        let open = core::mem::take(&mut self.open);
        let mut is_void = Ok(false);
        for together in needed {
            is_void = self.is_nothing(&together);
            if is_void != Ok(false) {
                break;
            }
        }
        self.open = open;
        self.looks -= 1;
        is_void
    }

    fn is_nothing(&mut self, together: &Together) -> Result<bool, String> {
        for shape in self.shapes(together)? {
            if !self.is_void_below(&shape)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a schema of names allows them all, as that of every record that zod describes.
fn allows_any_name(schema: &Value) -> bool {
    let Value::Object(schema) = schema else {
        return *schema == Value::Bool(true);
    };
    schema.iter().all(|(key, value)| match &**key {
        "type" => {
            *value == "string"
                || value
                    .as_array()
                    .is_some_and(|all| all.contains(&"string".into()))
        }
        key => matches!(key, "title" | "description" | "$comment"),
    })
}

const DEPTH_MAX: usize = 100;
const LOOKS_MAX: usize = 3;
const UNSUPPORTED: [&str; 13] = words(
    "not if then else dependentSchemas dependentRequired dependencies contains minContains \
     maxContains propertyNames uniqueItems $recursiveRef",
);
