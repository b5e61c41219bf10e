//! The grammar of a request, in any of the forms that clients use.

use super::fields::{Fields, shown, wrong};
use super::structural;
use crate::api::ApiError;
use serde_json::{Value, json};
use sluice_text::grammar::GrammarSource;

type Result<T> = core::result::Result<T, ApiError>;

/// A grammar, and the field it was given in.
#[derive(Debug)]
pub(super) struct FieldGrammar {
    pub(super) field: &'static str,
    pub(super) source: GrammarSource,
}

/// Parses the grammar that the answer has to match. A grammar is never dropped silently.
pub(super) fn grammar(fields: Fields<'_>) -> Result<Option<FieldGrammar>> {
    if let Some(structured) = fields.object(STRUCTURED)? {
        check_structured(structured)?;
    }
    let mut first = None::<FieldGrammar>;
    for form in FORMS {
        let value = match form.field.split_once('.') {
            None => fields.value(form.field),
            Some((object, name)) => {
                let object = fields.object(object)?;
                object.and_then(|object| object.value(name))
            }
        };
        let Some(value) = value else {
            continue;
        };
        check_len(form.field, value.as_str().map_or(0, str::len))?;
        let Some(source) = (form.read)(form.field, value)? else {
            continue;
        };
        check_len(form.field, source.len_bytes())?;
        if let Some(first) = &first {
            let what = format!("cannot be combined with {}", first.field);
            return Err(ApiError::field(form.field, what));
        }
        first = Some(FieldGrammar {
            field: form.field,
            source,
        });
    }
    Ok(first)
}

/// Refuses a grammar that would take long to compile, before anything is done with it.
fn check_len(field: &str, len_bytes: usize) -> Result<()> {
    if len_bytes <= SOURCE_BYTES_MAX {
        return Ok(());
    }
    let what = format!("has {len_bytes} bytes; up to {SOURCE_BYTES_MAX} are allowed");
    Err(ApiError::field(field, what))
}

/// A field that holds a grammar, and how it is read; `None` if its value allows any text.
struct Form {
    field: &'static str,
    read: fn(&str, &Value) -> Result<Option<GrammarSource>>,
}

/// llama-server's names, OpenAI's, SGLang's, vLLM's, and those that vLLM had before.
const FORMS: &[Form] = &[
    form("grammar", gbnf),
    form("json_schema", |field, value| {
        schema_in(field, value).map(Some)
    }),
    form("response_format", |_, value| response_format(value)),
    form("ebnf", gbnf),
    form("regex", regex),
    form("structured_outputs.json", schema_or_text),
    form("structured_outputs.json_object", any_object),
    form("structured_outputs.regex", regex),
    form("structured_outputs.choice", choice),
    form("structured_outputs.grammar", gbnf),
    form("guided_json", schema_or_text),
    form("guided_regex", regex),
    form("guided_choice", choice),
    form("guided_grammar", gbnf),
];

const fn form(
    field: &'static str,
    read: fn(&str, &Value) -> Result<Option<GrammarSource>>,
) -> Form {
    Form { field, read }
}

/// Maximum length of a client's grammar, schema or regular expression: an extreme one of this size compiles in seconds.
const SOURCE_BYTES_MAX: usize = 256 << 10;
const STRUCTURED: &str = "structured_outputs";

/// Refuses other fields of `structured_outputs`, which could change what is allowed.
fn check_structured(structured: Fields<'_>) -> Result<()> {
    let prefix = format!("{STRUCTURED}.");
    for (name, value) in structured.map() {
        let mut known = FORMS
            .iter()
            .filter_map(|form| form.field.strip_prefix(&*prefix));
        let is_off = matches!(value, Value::Null | Value::Bool(false));
        if !is_off && !known.any(|known| known == name) {
            let field = format!("{prefix}{}", shown(&name.as_str().into()).trim_matches('"'));
            return Err(ApiError::field(field, "is not supported"));
        }
    }
    Ok(())
}

/// llama.cpp's notation; other servers' EBNF is the same.
fn gbnf(field: &str, value: &Value) -> Result<Option<GrammarSource>> {
    let text = value
        .as_str()
        .ok_or_else(|| wrong(field, value, "a string"))?;
    Ok((!text.is_empty()).then(|| GrammarSource::Gbnf(text.to_owned())))
}

fn regex(field: &str, value: &Value) -> Result<Option<GrammarSource>> {
    let text = value
        .as_str()
        .ok_or_else(|| wrong(field, value, "a string"))?;
    Ok(Some(GrammarSource::Regex(text.to_owned())))
}

/// One of several texts.
fn choice(field: &str, value: &Value) -> Result<Option<GrammarSource>> {
    let Value::Array(list) = value else {
        return Err(wrong(field, value, "a list of strings"));
    };
    if list.is_empty() {
        return Err(ApiError::field(field, "is an empty list"));
    }
    let texts = list.iter().enumerate().map(|(i, value)| {
        let text = value.as_str().filter(|text| !text.is_empty());
        text.ok_or_else(|| {
            wrong(
                &format!("{field}[{i}]"),
                value,
                "a string that is not empty",
            )
        })
    });
    let texts = texts.collect::<Result<Vec<_>>>()?;
    Ok(Some(GrammarSource::one_of(&texts)))
}

/// A schema, as an object or as JSON text.
fn schema_or_text(field: &str, value: &Value) -> Result<Option<GrammarSource>> {
    let parsed = value
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok());
    schema_in(field, parsed.as_ref().unwrap_or(value)).map(Some)
}

fn any_object(field: &str, value: &Value) -> Result<Option<GrammarSource>> {
    match value {
        Value::Bool(false) => Ok(None),
        Value::Bool(true) => schema_in(field, &json!({"type": "object"})).map(Some),
        other => Err(wrong(field, other, "true or false")),
    }
}

/// The grammar of a JSON schema.
///
/// # Errors
/// It is not a schema.
pub fn json_schema(value: &Value) -> Result<GrammarSource> {
    schema_in("json_schema", value)
}

fn schema_in(field: &str, value: &Value) -> Result<GrammarSource> {
    match value {
        // A boolean is a schema, too.
        Value::Object(_) | Value::Bool(_) => Ok(GrammarSource::JsonSchema(value.to_string())),
        other => Err(wrong(field, other, "a JSON schema, which is an object")),
    }
}

/// The grammar of a `response_format`; `None` if it allows any text.
///
/// # Errors
/// A field is wrong, or not supported; its path starts with `response_format`.
pub fn response_format(value: &Value) -> Result<Option<GrammarSource>> {
    let Value::Object(_) = value else {
        return Err(wrong("response_format", value, "an object"));
    };
    let format = Fields::of_body(value)?;
    let schema_of = |value: Option<&Value>, field: &str| match value {
        Some(schema) => schema_in(field, schema).map(Some),
        None => Err(ApiError::field(field, "is missing")),
    };
    match format.value("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => match format.value("schema") {
            None => schema_of(Some(&json!({"type": "object"})), ""),
            schema => schema_of(schema, "response_format.schema"),
        },
        Some("json_schema") => {
            // OpenAI nests the schema in another object; llama-server also accepts it directly.
            let wrapped = format.object("json_schema")?;
            let schema = match wrapped {
                Some(wrapped) => wrapped.value("schema"),
                None => format.value("schema"),
            };
            schema_of(schema, "response_format.json_schema.schema")
        }
        Some("structural_tag") => structural::grammar(format).map(Some),
        _ => {
            let given = shown(format.value("type").unwrap_or(&Value::Null));
            let what =
                format!("{given} is not one of text, json_object, json_schema, structural_tag");
            Err(ApiError::field("response_format.type", what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &Value) -> Fields<'_> {
        Fields::of_body(body).unwrap()
    }

    fn param<T: core::fmt::Debug>(result: Result<T>) -> String {
        result.expect_err("it is wrong").field.unwrap()
    }

    #[test]
    fn response_formats_become_schemas() {
        let schema = json!({"type": "integer"});
        for (format, expected) in [
            (json!({"type": "text"}), None),
            (
                json!({"type": "json_object"}),
                Some(json!({"type": "object"})),
            ),
            (
                json!({"type": "json_object", "schema": schema}),
                Some(schema.clone()),
            ),
            (
                json!({"type": "json_schema", "schema": schema}),
                Some(schema.clone()),
            ),
            (
                json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}),
                Some(schema.clone()),
            ),
        ] {
            let body = json!({"response_format": format});
            let expected = expected.map(|schema| GrammarSource::JsonSchema(schema.to_string()));
            let found = grammar(of(&body)).unwrap().map(|grammar| grammar.source);
            assert_eq!(found, expected, "{format}");
        }
    }

    #[test]
    fn a_format_is_never_given_up_silently() {
        for (body, field) in [
            (
                json!({"response_format": {"type": "xml"}}),
                "response_format.type",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"json_schema": "x"}), "json_schema"),
            (json!({"regex": 3}), "regex"),
            (json!({"regex": "a", "ebnf": "root ::= \"a\""}), "regex"),
            (json!({"guided_choice": ["a", 3]}), "guided_choice[1]"),
            (
                json!({"structured_outputs": {"choice": []}}),
                "structured_outputs.choice",
            ),
            (
                json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
                "structured_outputs.choice",
            ),
            (
                json!({"structured_outputs": {"whitespace_pattern": " "}}),
                "structured_outputs.whitespace_pattern",
            ),
            (json!({"structured_outputs": "a"}), "structured_outputs"),
            (
                json!({"json_schema": {}, "grammar": "root ::= \"a\""}),
                "json_schema",
            ),
        ] {
            assert_eq!(param(grammar(of(&body))), field);
        }
    }

    #[test]
    fn grammars_of_other_servers_are_read() {
        let schema = json!({"type": "integer"});
        let of_schema = GrammarSource::JsonSchema(schema.to_string());
        let of_regex = GrammarSource::Regex("[ab]{2}".to_owned());
        let rules = "root ::= \"a\"";
        for (body, expected) in [
            (
                json!({"structured_outputs": {"json": schema}}),
                of_schema.clone(),
            ),
            (json!({"guided_json": schema.to_string()}), of_schema),
            (
                json!({"structured_outputs": {"regex": "[ab]{2}"}}),
                of_regex.clone(),
            ),
            (json!({"regex": "[ab]{2}"}), of_regex),
            (
                json!({"structured_outputs": {"choice": ["a", "b"], "json": null}}),
                GrammarSource::one_of(&["a", "b"]),
            ),
            (
                json!({"ebnf": rules}),
                GrammarSource::Gbnf(rules.to_owned()),
            ),
        ] {
            let found = grammar(of(&body)).unwrap().map(|grammar| grammar.source);
            assert_eq!(found, Some(expected), "{body}");
        }
        let off = json!({"structured_outputs": {"json_object": false}, "grammar": ""});
        assert!(grammar(of(&off)).unwrap().is_none());
    }
}
