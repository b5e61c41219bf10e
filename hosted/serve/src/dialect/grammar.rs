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
    let of = |field, source| FieldGrammar { field, source };
    let gbnf = fields.str("grammar")?.filter(|text| !text.is_empty());
    let gbnf = gbnf.map(|text| of("grammar", GrammarSource::Gbnf(text.to_owned())));
    let schema = fields.value("json_schema");
    let schema = schema.map(|schema| schema_in("json_schema", schema));
    let schema = schema.transpose()?.map(|source| of("json_schema", source));
    let format = fields.value("response_format");
    let format = format.map(response_format).transpose()?.flatten();
    let format = format.map(|source| of("response_format", source));
    let mut all = [gbnf, schema, format].into_iter().flatten();
    let first = all.next();
    if let (Some(first), Some(second)) = (&first, all.next()) {
        let what = format!("cannot be combined with {}", first.field);
        return Err(ApiError::field(second.field, what));
    }
    Ok(first)
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
            (
                json!({"json_schema": {}, "grammar": "root ::= \"a\""}),
                "json_schema",
            ),
        ] {
            assert_eq!(param(grammar(of(&body))), field);
        }
    }
}
