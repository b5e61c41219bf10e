//! Constructs of templates, one by one, against Python's jinja2.
//!
//! The goldens are made by `tests/tools/chat_template_expressions.py`: every filter, test, method,
//! operator and statement, with values of all kinds. What is not equal must be refused, and the
//! refusal must name what it refuses.

use core::fmt::Write as _;
use serde_json::{Map, Value};
use sluice_text::chat_template::{ChatTemplate, Message, RenderOptions};
use std::fs;

/// What is printed, or why nothing is.
fn rendered(source: &str, context: &Map<String, Value>) -> Result<String, String> {
    let template = ChatTemplate::parse(source).map_err(|error| error.to_string())?;
    let messages: Vec<Message> =
        serde_json::from_value(context["messages"].clone()).expect("messages");
    let mut extra = context.clone();
    extra.remove("messages");
    let options = RenderOptions {
        extra,
        ..RenderOptions::default()
    };
    let prompt = template.render(&messages, &options);
    prompt.map_err(|error| error.to_string())
}

/// Known differences: a character of a text that is Markup is plain; a macro lists its arguments; and `self` is not
/// iterable, because iterating over it fails.
const KNOWN: [&str; 3] = [
    "{{ self is iterable }}",
    "{{ (\"a<b\" | safe)[1] + \"<\" }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f.name }}{{ f.arguments }}{{ f.catch_kwargs }}\
     {{ f.catch_varargs }}{{ f.caller }}",
];

#[test]
fn constructs_are_those_of_jinja2() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/chat/expressions.json"
    );
    let text = fs::read_to_string(path).expect("it is in the repository");
    let goldens: Value = serde_json::from_str(&text).expect("it is JSON");
    let context = goldens["context"].as_object().expect("variables");
    let cases = goldens["cases"].as_array().expect("a list");
    assert!(cases.len() > 2000, "{}", cases.len());
    let mut differences = String::new();
    for case in cases {
        let source = case[0].as_str().expect("a template");
        let expected = case[1].as_str();
        let got = rendered(source, context);
        let is_right = match (&got, expected) {
            (Ok(got), Some(expected)) => got == expected,
            (Err(_), None) => true,
            (Err(why), Some(_)) => why.contains("not supported"),
            (Ok(_), None) => false,
        };
        if !is_right && !KNOWN.contains(&source) {
            let _infallible = writeln!(differences, "{source}\n  {got:?}\n  {expected:?}");
        }
    }
    let n = differences.lines().count() / 3;
    assert!(n == 0, "{n} of {} differ:\n{differences}", cases.len());
}
