//! Functions that a rebuilt template calls to keep what minijinja would lose: whether a turn of a
//! loop came to its end, whether an argument was given, what a text is taken apart into.

use super::python::values;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use minijinja::value::{Object, ObjectRepr, ValueKind};
use minijinja::{Environment, Error, Value};
use std::sync::Arc;

/// False until it is raised.
#[derive(Debug)]
struct Flag(AtomicBool);

impl Object for Flag {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// An argument that is given, and undefined.
#[derive(Debug)]
struct Undefined;

impl Object for Undefined {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// What `self` names: there, but without anything that could be asked for. Blocks are called
/// by their names without it.
#[derive(Debug)]
struct Template;

impl Object for Template {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<TemplateReference None>")
    }
}

pub(super) fn template() -> Value {
    Value::from_object(Template)
}

pub(super) fn install(env: &mut Environment<'_>) {
    env.add_function(FLAG, || Value::from_object(Flag(AtomicBool::new(false))));
    env.add_function(RAISE, |flag: Value| {
        if let Some(flag) = flag.downcast_object_ref::<Flag>() {
            flag.0.store(true, Ordering::Relaxed);
        }
    });
    env.add_function(PASSED, |value: Value| match value.is_undefined() {
        true => Value::from_object(Undefined),
        false => value,
    });
    env.add_function(GIVEN, |value: Value| {
        match value.downcast_object_ref::<Undefined>() {
            Some(_) => Value::UNDEFINED,
            None => value,
        }
    });
    env.add_function(UNPACKED, unpacked);
    env.add_function(UNPACKED_EACH, |all: Value| -> Result<Value, Error> {
        let items = values::items(&all)?;
        if items.iter().all(|item| item.as_object().is_some()) {
            return Ok(items.into());
        }
        items.into_iter().map(unpacked).collect()
    });
}

/// The characters of a text; minijinja takes apart all else.
fn unpacked(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => values::items(&value).map(Value::from),
        _ => Ok(value),
    }
}

/// Names that no template can write.
pub(super) const FLAG: &str = "flag()";
pub(super) const RAISE: &str = "raise()";
pub(super) const PASSED: &str = "passed()";
pub(super) const GIVEN: &str = "given()";
pub(super) const UNPACKED: &str = "unpacked()";
pub(super) const UNPACKED_EACH: &str = "unpacked_each()";
