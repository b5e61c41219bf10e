//! jinja2's tests.

use super::arguments::bound;
use super::operators::compare;
use crate::error::fail;
use crate::values::{is_namespace, real, text, whole};
use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Value};

/// Replaces minijinja's tests by jinja2's.
pub(crate) fn install(env: &mut Environment<'_>) {
    for name in ["startingwith", "endingwith", "safe"] {
        env.remove_test(name);
    }
    for name in KINDS {
        env.add_test(name, move |value: Value| is_of_kind(name, &value));
    }
    for name in CASED {
        env.add_test(name, move |value: Value| {
            let text = text(&value);
            let (upper, lower) = (
                text.chars().any(char::is_uppercase),
                text.chars().any(char::is_lowercase),
            );
            if name == "upper" {
                upper && !lower
            } else {
                lower && !upper
            }
        });
    }
    for (name, op) in COMPARED {
        env.add_test(name, move |value: Value, other: Value| {
            compare(op, &value, &other)
        });
    }
    env.add_test("divisibleby", |value: Value, num: Rest<ValueOrKwargs>| {
        let [num] = bound("divisibleby", ["num"], 1, &num.into_values())?;
        match (whole(&value), num.and_then(|num| whole(&num))) {
            (Some(_), Some(0)) => fail("integer modulo by zero"),
            (Some(value), Some(num)) => Ok(value % num == 0),
            _ => fail("divisibleby compares whole numbers"),
        }
    });
    for name in ["odd", "even"] {
        env.add_test(name, move |value: Value| {
            match (whole(&value), real(&value)) {
                (Some(number), _) => Ok((number.rem_euclid(2) == 1) == (name == "odd")),
                (None, Some(x)) => Ok::<bool, Error>(
                    (x.rem_euclid(2.0) - if name == "odd" { 1.0 } else { 0.0 }).abs() == 0.0,
                ),
                _ => fail(format!("{name} is a test of numbers")),
            }
        });
    }
}

fn is_of_kind(name: &str, value: &Value) -> bool {
    use ValueKind::{Bool, Iterable, Map, Number, Plain, Seq, String, Undefined};
    let kind = value.kind();
    // Attributes alone make none of these.
    if is_namespace(value) && name != "escaped" {
        return false;
    }
    match name {
        "number" => matches!(kind, Number | Bool),
        "integer" => kind == Number && value.is_integer(),
        "float" => kind == Number && !value.is_integer(),
        "mapping" => kind == Map,
        // Any type with a length and indexing.
        "sequence" => matches!(kind, String | Seq | Map | Undefined),
        "iterable" => matches!(kind, String | Seq | Iterable | Map | Undefined),
        "callable" => matches!(kind, Plain | Undefined),
        "escaped" => value.is_safe(),
        _ => false,
    }
}

const KINDS: [&str; 8] = [
    "number", "integer", "float", "mapping", "sequence", "iterable", "callable", "escaped",
];
const CASED: [&str; 2] = ["upper", "lower"];
const COMPARED: [(&str, &str); 17] = [
    ("eq", "=="),
    ("equalto", "=="),
    ("==", "=="),
    ("ne", "!="),
    ("!=", "!="),
    ("lt", "<"),
    ("lessthan", "<"),
    ("<", "<"),
    ("le", "<="),
    ("<=", "<="),
    ("gt", ">"),
    ("greaterthan", ">"),
    (">", ">"),
    ("ge", ">="),
    (">=", ">="),
    ("in", "in"),
    ("!in", "not in"),
];
