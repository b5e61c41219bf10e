//! Values with which a rebuilt template tracks what minijinja would lose: whether an iteration of a loop
//! was completed, and whether an argument was given.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};
use std::sync::Arc;

/// False until it is set.
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

/// An argument that is given, but undefined.
#[derive(Debug)]
struct Undefined;

impl Object for Undefined {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// The value of `self`: it exists, but has nothing to access. Blocks are called
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

pub(crate) fn template() -> Value {
    Value::from_object(Template)
}

pub(crate) fn flag() -> Value {
    Value::from_object(Flag(AtomicBool::new(false)))
}

pub(crate) fn raise(flag: &Value) -> Value {
    if let Some(flag) = flag.downcast_object_ref::<Flag>() {
        flag.0.store(true, Ordering::Relaxed);
    }
    Value::UNDEFINED
}

pub(crate) fn passed(value: &Value) -> Value {
    match value.is_undefined() {
        true => Value::from_object(Undefined),
        false => value.clone(),
    }
}

/// The argument that [`passed`] wrapped.
pub(crate) fn given(value: &Value) -> Value {
    match value.downcast_object_ref::<Undefined>() {
        Some(_) => Value::UNDEFINED,
        None => value.clone(),
    }
}
