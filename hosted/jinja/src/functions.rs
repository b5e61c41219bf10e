//! The functions that a rebuilt template calls, and the rest of its environment.

use crate::error::fail;
use crate::guard::{Guard, NODE_BYTES};
use crate::limits::VALUE_BYTES_MAX;
use crate::marks;
use crate::names;
use crate::python::{filters, globals, is_tests, methods, operators};
use crate::slice::slice;
use crate::values::{self, Local, Once, View};
use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value};
use std::sync::Arc;

type Function = fn(&Guard, &mut State<'_, '_>, &[Value]) -> Result<Value, Error>;

/// Installs filters, tests, methods, operators and functions in `env`; they charge `guard`.
pub(crate) fn install(env: &mut Environment<'_>, guard: &Arc<Guard>) {
    filters::install(env, guard);
    is_tests::install(env);
    globals::install(env);
    env.remove_global("debug");
    for (name, function) in FUNCTIONS {
        let guard = Arc::clone(guard);
        env.add_function(name, move |state: &mut State<'_, '_>, args: Rest<Value>| {
            function(&guard, state, &args)
        });
    }
    let of_methods = Arc::clone(guard);
    env.set_unknown_method_callback(move |_, value, method, args| {
        of_methods.before_method(value, method, args)?;
        methods::call(value, method, args)
    });
    let guard = Arc::clone(guard);
    env.set_formatter(move |out, _, value| guard.write(out, value));
}

/// A rebuilt template calls them with exactly the arguments that each reads.
const FUNCTIONS: [(&str, Function); 21] = [
    (names::BOUNDED, |guard, _, args| {
        guard.bounded(args[0].clone())
    }),
    (names::LISTED, |guard, _, args| {
        Local::of(&guard.bounded(args[0].clone())?)
    }),
    (names::TOUCHED, |guard, _, args| {
        guard.touched(args[0].clone())
    }),
    (names::INDEXED, |guard, _, args| {
        guard.indexed(args[0].clone())
    }),
    (
        names::SUBSCRIPTED,
        |guard, _, args| match View::has_no_items_by_number(&args[0]) {
            true => Ok(Value::from(Vec::<Value>::new())),
            false => guard.indexed(args[0].clone()),
        },
    ),
    (names::STORABLE, |guard, _, args| {
        guard.storable(args[0].clone())
    }),
    (names::ITERATED, |_, _, args| iterated(&args[0])),
    (names::SLICED, |guard, _, args| {
        guard.touched_shallow(&args[0])?;
        guard.bounded(slice(&args[0], [&args[1], &args[2], &args[3]])?)
    }),
    (names::ADDED, |guard, state, args| {
        guard.touched_both(&args[0], &args[1])?;
        let sum = match operators::add(&args[0], &args[1]) {
            Some(sum) => sum?,
            None => outside(state, "a + b", args)?,
        };
        guard.bounded(sum)
    }),
    (names::CONCATENATED, |guard, _, args| {
        guard.touched_both(&args[0], &args[1])?;
        Once::refuse_to_print(&args[0])?;
        Once::refuse_to_print(&args[1])?;
        guard.bounded(operators::concatenated(&args[0], &args[1]))
    }),
    (names::MULTIPLIED, |guard, state, args| {
        guard.before_multiply(&args[0], &args[1])?;
        guard.bounded(multiplied(state, args)?)
    }),
    (names::REMAINDER, |guard, state, args| {
        if args[0].as_str().is_none() {
            return outside(state, "a % b", args);
        }
        guard.before_format(&args[0], &args[1..])?;
        guard.bounded(operators::formatted(&args[0], &args[1])?)
    }),
    (names::COMPARED, |guard, _, args| {
        guard.touched_both(&args[1], &args[2])?;
        let op = args[0].as_str().unwrap_or_default();
        operators::compare(op, &args[1], &args[2]).map(Value::from)
    }),
    (names::NEGATED, |_, _, args| {
        Ok(operators::negated(&args[0]))
    }),
    (names::ALONE, |_, _, args| {
        fail(args[0].as_str().unwrap_or_default())
    }),
    (names::FLAG, |_, _, _| Ok(marks::flag())),
    (names::RAISE, |_, _, args| Ok(marks::raise(&args[0]))),
    (names::PASSED, |_, _, args| Ok(marks::passed(&args[0]))),
    (names::GIVEN, |_, _, args| Ok(marks::given(&args[0]))),
    (names::UNPACKED, |_, _, args| unpacked(&args[0])),
    (names::UNPACKED_EACH, |_, _, args| {
        let items = values::items(&args[0])?;
        if items.iter().all(|item| item.as_object().is_some()) {
            return Ok(items.into());
        }
        items.iter().map(unpacked).collect()
    }),
];

/// The value that a loop iterates over.
fn iterated(value: &Value) -> Result<Value, Error> {
    let is_made = match value.kind() {
        ValueKind::None | ValueKind::Bool | ValueKind::Number => {
            let name = values::type_name(value);
            return fail(format!("'{name}' object is not iterable"));
        }
        // A short text has a last character; of a long one minijinja does not know it.
        ValueKind::String => value.as_str().is_some_and(|text| text.len() < ITERATED_MAX),
        _ => Once::get(value).is_some(),
    };
    match is_made {
        true => values::items(value).map(Value::from),
        false => Ok(value.clone()),
    }
}

/// The characters of a string; minijinja unpacks all other types.
fn unpacked(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::String => values::items(value).map(Value::from),
        _ => Ok(value.clone()),
    }
}

/// The only way to an operator from outside.
fn outside(state: &State<'_, '_>, operation: &str, args: &[Value]) -> Result<Value, Error> {
    let operation = state.env().compile_expression(operation)?;
    operation.eval(minijinja::context! { a => &args[0], b => &args[1] })
}

/// `a * b` of a string or list and a number: empty if the number is negative.
fn multiplied(state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (a, b) = (&args[0], &args[1]);
    for (text, count) in [(a, b), (b, a)] {
        if let Some(source) = text.as_str() {
            let count = values::integer("the factor of a text", count)?;
            let count = usize::try_from(count).unwrap_or(0);
            return Ok(values::like(text, source.repeat(count)));
        }
    }
    for (list, count) in [(a, b), (b, a)] {
        if View::is(list) {
            return fail("'*' is not defined for what goes over something else");
        }
        if list.kind() == ValueKind::Seq {
            let count = values::integer("the factor of a list", count)?;
            let (items, count) = (values::items(list)?, usize::try_from(count).unwrap_or(0));
            let items = core::iter::repeat_n(items, count);
            let items: Vec<Value> = items.flatten().collect();
            return Ok(match list.is_tuple() {
                true => Value::from(Tuple::from(items)),
                false => Value::from(items),
            });
        }
    }
    outside(state, "a * b", args)
}

/// Maximum length, in bytes, of a string that is converted to a list of characters for iteration.
const ITERATED_MAX: usize = VALUE_BYTES_MAX / NODE_BYTES;
