//! All places of a document, and which of them can have a value.

use super::digits::{Patterns, Whole};
use super::keywords::{closed, of_name};
use super::numeric::Part;
use super::read::Reader;
use super::shape::{Array, Object, Shape, Together};
use std::collections::HashMap;

/// A place, identified by the schemas that apply to it.
#[derive(Debug)]
pub(super) struct Place {
    pub together: Together,
    pub shapes: Vec<Shape>,
    /// Whether a document can be completed here.
    pub can_be: bool,
}

#[derive(Debug)]
pub(super) struct Places {
    pub all: Vec<Place>,
    numbers: HashMap<Together, usize>,
    /// Patterns for the integers that only digits represent exactly.
    pub patterns: Patterns,
}

impl Place {
    /// Its integers that only digits represent exactly.
    pub(super) fn wholes(&self) -> Result<Vec<Whole>, String> {
        let mut wholes = Vec::new();
        for shape in &self.shapes {
            if let Shape::Number(number) = shape {
                wholes.extend(number.parts()?.into_iter().filter_map(|part| match part {
                    Part::Whole(whole) => Some(whole),
                    Part::Small(_) => None,
                }));
            }
        }
        Ok(wholes)
    }
}

impl Places {
    pub(super) fn of(&self, together: &Together) -> usize {
        self.numbers[together]
    }

    pub(super) fn can_be(&self, together: &Together) -> bool {
        self.all[self.of(together)].can_be
    }

    fn shape_can_be(&self, shape: &Shape) -> bool {
        match shape {
            Shape::Array(array) => items_needed(array).all(|item| self.can_be(item)),
            Shape::Object(object) => {
                let has_all = object
                    .required
                    .iter()
                    .all(|name| of_name(object, name).is_ok_and(|together| self.can_be(&together)));
                has_all && self.has_names(object)
            }
            _ => true,
        }
    }

    /// Whether there are enough names for the minimum size of the object.
    fn has_names(&self, object: &Object) -> bool {
        let is_open = object
            .additional
            .as_ref()
            .is_none_or(|rest| self.can_be(rest))
            || object
                .patterns
                .iter()
                .any(|(_, schema)| self.can_be(schema));
        let named = object
            .properties
            .iter()
            .filter(|(_, schema)| self.can_be(schema));
        is_open || named.count() as u64 >= object.least
    }
}

fn items_needed(array: &Array) -> impl Iterator<Item = &Together> {
    let least = usize::try_from(array.least).unwrap_or(usize::MAX);
    let more = array
        .items
        .iter()
        .filter(move |_| least > array.prefix.len());
    array.prefix.iter().take(least).chain(more)
}

/// All reachable places; the whole document is the first.
///
/// # Errors
/// A keyword is not supported, or no document can be completed.
pub(super) fn all(reader: &mut Reader<'_>) -> Result<Places, String> {
    let start = reader.start()?;
    let mut places = Places {
        all: Vec::new(),
        numbers: HashMap::from([(start.clone(), 0)]),
        patterns: Patterns::default(),
    };
    let mut open = vec![start];
    let mut at = 0;
    while at < open.len() {
        let together = open[at].clone();
        at += 1;
        let shapes = reader.shapes(&together)?;
        let shapes: Vec<Shape> = shapes.into_iter().map(closed).collect();
        for below in shapes
            .iter()
            .map(below)
            .collect::<Result<Vec<_>, _>>()?
            .concat()
        {
            if !places.numbers.contains_key(&below) {
                places.numbers.insert(below.clone(), open.len());
                open.push(below);
            }
        }
        let can_be = false;
        places.all.push(Place {
            together,
            shapes,
            can_be,
        });
    }
    mark(&mut places);
    if !places.all[0].can_be {
        return Err(reason(reader, &places));
    }
    let wholes: Result<Vec<_>, _> = places.all.iter().map(Place::wholes).collect();
    places.patterns = Patterns::new(wholes?.into_iter())?;
    Ok(places)
}

/// The schemas that apply to the places directly below.
fn below(shape: &Shape) -> Result<Vec<Together>, String> {
    let mut all = Vec::new();
    match shape {
        Shape::Array(array) => {
            all.extend(array.prefix.iter().cloned());
            all.extend(array.items.clone());
        }
        Shape::Object(object) => {
            all.extend(object.properties.iter().map(|(_, schema)| schema.clone()));
            all.extend(object.patterns.iter().map(|(_, schema)| schema.clone()));
            all.extend(object.additional.clone());
            for name in &object.required {
                all.push(of_name(object, name)?);
            }
            // A name that matches several patterns must satisfy all of their schemas.
            let several = object
                .patterns
                .iter()
                .flat_map(|(_, schema)| schema)
                .copied();
            if object.patterns.len() > 1 {
                all.push(several.collect());
            }
        }
        _ => {}
    }
    Ok(all)
}

/// Marks the places that can have a value: those that can be completed in finitely many steps.
fn mark(places: &mut Places) {
    loop {
        let mut grew = false;
        for number in 0..places.all.len() {
            let place = &places.all[number];
            if !place.can_be && place.shapes.iter().any(|shape| places.shape_can_be(shape)) {
                places.all[number].can_be = true;
                grew = true;
            }
        }
        if !grew {
            return;
        }
    }
}

/// Why no document is valid: the path to the place that causes it.
fn reason(reader: &Reader<'_>, places: &Places) -> String {
    let mut seen = vec![0];
    let mut label = String::new();
    loop {
        let place = &places.all[*seen.last().unwrap_or(&0)];
        let name = reader.name_of(&place.together);
        let next = place.shapes.first().and_then(|shape| needed(places, shape));
        match next {
            Some((number, _)) if seen.contains(&number) => {
                return format!("{name}: requires itself, so no document would ever end");
            }
            Some((number, what)) => {
                label = format!("{name}: {what}: ");
                seen.push(number);
            }
            None => return format!("{label}no document is valid: nothing satisfies {name}"),
        }
    }
}

/// A place that `shape` needs but that cannot have a value, and its role.
fn needed(places: &Places, shape: &Shape) -> Option<(usize, String)> {
    let missing = |together: &Together| {
        let number = places.of(together);
        (!places.all[number].can_be).then_some(number)
    };
    match shape {
        Shape::Object(object) => object.required.iter().find_map(|name| {
            let number = missing(&of_name(object, name).ok()?)?;
            Some((number, format!("the required property {name:?}")))
        }),
        Shape::Array(array) => {
            let number = items_needed(array).find_map(missing)?;
            Some((number, "a required item".to_owned()))
        }
        _ => None,
    }
}
