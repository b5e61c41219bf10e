//! `structural_tag` as vLLM's and SGLang's clients write it, in both of its shapes: `structures` and `triggers`, or a
//! `format` of the kind `triggered_tags`.

use super::error::ApiError;
use super::fields::{Fields, wrong};
use serde_json::Value;
use sluice_text::grammar::{GrammarSource, Structure, Tag};

type Result<T> = core::result::Result<T, ApiError>;

/// The grammar that `response_format` asks for.
pub(super) fn grammar(format: Fields<'_>) -> Result<GrammarSource> {
    let structure = match format.object("format")? {
        None => structure(format, STRUCTURES)?,
        Some(format) => {
            format.word("type", &["triggered_tags"])?;
            structure(format, TAGS)?
        }
    };
    let grammar = structure.grammar();
    grammar.map_err(|why| ApiError::field("response_format", why))
}

/// The name of the list.
const STRUCTURES: &str = "structures";
const TAGS: &str = "tags";

fn structure(format: Fields<'_>, name: &str) -> Result<Structure> {
    let field = |i: usize| format!("response_format.{name}[{i}]");
    let list = match format.value(name) {
        Some(Value::Array(list)) => list,
        None => {
            return Err(ApiError::field(
                format!("response_format.{name}"),
                "is missing",
            ));
        }
        Some(other) => {
            return Err(wrong(
                &format!("response_format.{name}"),
                other,
                "a list of tags",
            ));
        }
    };
    let tag = |(i, value): (usize, &Value)| {
        let text = |name: &str| match value.get(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            other => Err(wrong(
                &format!("{}.{name}", field(i)),
                other.unwrap_or(&Value::Null),
                "a text",
            )),
        };
        let schema = match name {
            STRUCTURES => value.get("schema"),
            _ => schema_of(&field(i), value.get("content").unwrap_or(&Value::Null))?,
        };
        let schema = match schema {
            None => None,
            Some(schema @ (Value::Object(_) | Value::Bool(_))) => Some(schema.to_string()),
            Some(other) => {
                return Err(wrong(
                    &format!("{}.schema", field(i)),
                    other,
                    "a JSON schema",
                ));
            }
        };
        let (begin, end) = (text("begin")?, text("end")?);
        Ok(Tag { begin, schema, end })
    };
    Ok(Structure {
        tags: list.iter().enumerate().map(tag).collect::<Result<_>>()?,
        triggers: format.texts("triggers")?,
        at_least_one: format.bool("at_least_one")?.unwrap_or(false),
        stop_after_first: format.bool("stop_after_first")?.unwrap_or(false),
    })
}

/// The schema of a tag's content, if that is JSON.
fn schema_of<'v>(field: &str, content: &'v Value) -> Result<Option<&'v Value>> {
    match content.get("type").and_then(Value::as_str) {
        Some("json_schema") => Ok(Some(content.get("json_schema").unwrap_or(&Value::Null))),
        Some("any_text") => Ok(None),
        _ => Err(wrong(
            &format!("{field}.content"),
            content,
            "of type json_schema or any_text",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_shapes_are_one_grammar() {
        let schema = json!({"type": "object"});
        let old = json!({
            "structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}],
            "triggers": ["<f"],
        });
        let content = json!({"type": "json_schema", "json_schema": schema});
        let new = json!({"format": {
            "type": "triggered_tags",
            "tags": [{"begin": "<f>", "content": content, "end": "</f>"}],
            "triggers": ["<f"],
        }});
        let of = |value: &Value| grammar(Fields::of_body(value)?);
        assert_eq!(of(&old), of(&new));
        for (change, what) in [
            (
                json!({"structures": [], "triggers": ["a"]}),
                "a tag and a trigger are needed",
            ),
            (
                json!({"triggers": ["a"]}),
                "response_format.structures: is missing",
            ),
            (
                json!({"structures": [{"begin": "<f>", "schema": 3, "end": ""}], "triggers": ["<"]}),
                "response_format.structures[0].schema: 3 is not a JSON schema",
            ),
            (json!({"format": {"type": "sequence"}}), "sequence"),
        ] {
            let error = of(&change).unwrap_err().to_value();
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains(what), "{message}");
        }
    }
}
