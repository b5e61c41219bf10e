//! `structural_tag` in both forms that vLLM and SGLang clients send: with `structures` and `triggers`, or with a
//! `format` of type `triggered_tags`. Unknown fields could constrain the text, so they are refused.

use super::fields::{Fields, shown, wrong};
use crate::api::ApiError;
use serde_json::{Map, Value, json};
use sluice_text::grammar::{GrammarSource, Structure, Tag};

type Result<T> = core::result::Result<T, ApiError>;

/// Parses the grammar of a `response_format`.
pub(super) fn grammar(format: Fields<'_>) -> Result<GrammarSource> {
    let top = Place {
        map: format.map(),
        path: "response_format".to_owned(),
    };
    let structure = match top.value("format") {
        None => {
            top.only(&[&["type", STRUCTURES], &COMMON[..]])?;
            structure(&top, STRUCTURES, old_tag)?
        }
        Some(format) => {
            top.only(&[&["type", "format"]])?;
            let format = Place::of(format, top.field("format"))?;
            format.word("type", &["triggered_tags"])?;
            format.only(&[&["type", TAGS, "excludes"], &COMMON[..]])?;
            format.refuse("excludes", &json!([]))?;
            structure(&format, TAGS, tag)?
        }
    };
    let grammar = structure.grammar();
    grammar.map_err(|why| ApiError::field("response_format", why))
}

/// The names of the lists.
const STRUCTURES: &str = "structures";
const TAGS: &str = "tags";
/// The fields that both forms share.
const COMMON: [&str; 3] = ["triggers", "at_least_one", "stop_after_first"];

fn structure(
    format: &Place<'_>,
    name: &str,
    tag: impl Fn(&Place<'_>) -> Result<Tag>,
) -> Result<Structure> {
    let list = format.list(name)?.iter().enumerate();
    let tags = list.map(|(i, value)| {
        let path = format!("{}[{i}]", format.field(name));
        tag(&Place::of(value, path)?)
    });
    let tags = tags.collect::<Result<_>>()?;
    let triggers = format.list("triggers")?.iter().enumerate();
    let triggers = triggers.map(|(i, value)| {
        let field = || format!("{}[{i}]", format.field("triggers"));
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| wrong(&field(), value, "a string"))
    });
    Ok(Structure {
        tags,
        triggers: triggers.collect::<Result<_>>()?,
        at_least_one: format.flag("at_least_one")?,
        stop_after_first: format.flag("stop_after_first")?,
    })
}

/// Parses one of the `structures`.
fn old_tag(tag: &Place<'_>) -> Result<Tag> {
    let of_tag = Tag {
        begin: tag.text("begin")?,
        schema: Some(tag.schema("schema")?),
        end: tag.text("end")?,
    };
    tag.only(&[&["begin", "schema", "end"]])?;
    Ok(of_tag)
}

/// Parses one of the `tags`.
fn tag(tag: &Place<'_>) -> Result<Tag> {
    tag.only(&[&["type", "begin", "content", "end"]])?;
    if tag.value("type").is_some() {
        tag.word("type", &["tag"])?;
    }
    let content = Place::of(tag.required("content")?, tag.field("content"))?;
    let schema = if content.word("type", &["json_schema", "any_text"])? == "json_schema" {
        content.only(&[&["type", "json_schema", "style"]])?;
        content.refuse("style", &json!("json"))?;
        Some(content.schema("json_schema")?)
    } else {
        content.only(&[&["type", "excludes"]])?;
        content.refuse("excludes", &json!([]))?;
        None
    };
    Ok(Tag {
        begin: tag.text("begin")?,
        schema,
        end: tag.text("end")?,
    })
}

/// An object, and its path in the request. Null counts as absent.
struct Place<'v> {
    map: &'v Map<String, Value>,
    path: String,
}

impl<'v> Place<'v> {
    fn of(value: &'v Value, path: String) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => Err(wrong(&path, other, "an object")),
        }
    }

    fn field(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    fn value(&self, name: &str) -> Option<&'v Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn required(&self, name: &str) -> Result<&'v Value> {
        let missing = || ApiError::field(self.field(name), "is missing");
        self.value(name).ok_or_else(missing)
    }

    fn text(&self, name: &str) -> Result<String> {
        let value = self.required(name)?;
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| wrong(&self.field(name), value, "a string"))
    }

    fn word(&self, name: &str, words: &[&str]) -> Result<&'v str> {
        let value = self.required(name)?;
        let word = value.as_str().filter(|word| words.contains(word));
        word.ok_or_else(|| {
            let what = format!("{} is not one of {}", shown(value), words.join(", "));
            ApiError::field(self.field(name), what)
        })
    }

    fn list(&self, name: &str) -> Result<&'v [Value]> {
        match self.required(name)? {
            Value::Array(list) => Ok(list),
            other => Err(wrong(&self.field(name), other, "a list")),
        }
    }

    fn flag(&self, name: &str) -> Result<bool> {
        match self.value(name) {
            None => Ok(false),
            Some(Value::Bool(value)) => Ok(*value),
            Some(other) => Err(wrong(&self.field(name), other, "true or false")),
        }
    }

    fn schema(&self, name: &str) -> Result<String> {
        match self.required(name)? {
            schema @ (Value::Object(_) | Value::Bool(_)) => Ok(schema.to_string()),
            other => Err(wrong(&self.field(name), other, "a JSON schema")),
        }
    }

    /// Refuses a known but unsupported option, unless it is disabled.
    fn refuse(&self, name: &str, harmless: &Value) -> Result<()> {
        match self.value(name) {
            Some(value) if value != harmless => {
                let what = format!("is not supported, except for {harmless}");
                Err(ApiError::field(self.field(name), what))
            }
            _ => Ok(()),
        }
    }

    /// Refuses all other fields.
    fn only(&self, names: &[&[&str]]) -> Result<()> {
        let is_known = |name: &String| names.iter().any(|names| names.contains(&name.as_str()));
        let mut given = self.map.iter().filter(|(_, value)| !value.is_null());
        match given.find(|(name, _)| !is_known(name)) {
            None => Ok(()),
            Some((name, _)) => {
                let what = format!("{} is not supported", shown(&name.as_str().into()));
                Err(ApiError::field(&self.path, what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &Value) -> Result<GrammarSource> {
        grammar(Fields::of_body(value)?)
    }

    #[test]
    fn both_shapes_are_one_grammar() {
        let schema = json!({"type": "object"});
        let old = json!({
            "type": "structural_tag",
            "structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}],
            "triggers": ["<f"],
        });
        let content = json!({"type": "json_schema", "json_schema": schema, "style": "json"});
        let new = json!({"type": "structural_tag", "format": {
            "type": "triggered_tags",
            "tags": [{"type": "tag", "begin": "<f>", "content": content, "end": "</f>"}],
            "triggers": ["<f"],
            "excludes": [],
            "at_least_one": null,
        }});
        assert_eq!(of(&old).unwrap(), of(&new).unwrap());
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a list of cases")]
    fn errors_name_the_place() {
        let old = |tag: Value| json!({"structures": [tag], "triggers": ["<"]});
        let new = |tag: Value| {
            let tags = json!([{"begin": "<", "content": {"type": "any_text"}, "end": ">"}, tag]);
            json!({"format": {"type": "triggered_tags", "tags": tags, "triggers": ["<"]}})
        };
        let content = |content: Value| new(json!({"begin": "<", "content": content, "end": ">"}));
        for (wrong, what) in [
            (
                json!({"structures": [], "triggers": ["a"]}),
                "response_format: needs at least one tag and one trigger",
            ),
            (
                json!({"triggers": ["a"]}),
                "response_format.structures: is missing",
            ),
            (
                json!({"structures": [], "triggers": 3}),
                "response_format.triggers: 3 is not a list",
            ),
            (
                json!({"structures": [], "format": {}}),
                "response_format: \"structures\" is not supported",
            ),
            (
                old(json!({"begin": "<f>", "schema": 3, "end": ""})),
                "response_format.structures[0].schema: 3 is not a JSON schema",
            ),
            (
                old(json!({"begin": "<f>", "end": ""})),
                "response_format.structures[0].schema: is missing",
            ),
            (
                old(json!({"begin": "<f>", "structural_tag_schema": {}, "end": ""})),
                "response_format.structures[0].schema: is missing",
            ),
            (
                old(json!({"begin": "<f>", "schema": {}, "end": "", "strict": true})),
                "response_format.structures[0]: \"strict\" is not supported",
            ),
            (
                old(json!(3)),
                "response_format.structures[0]: 3 is not an object",
            ),
            (
                json!({"format": {"type": "sequence"}}),
                "response_format.format.type: \"sequence\" is not one of triggered_tags",
            ),
            (
                json!({"format": {"tags": []}}),
                "response_format.format.type: is missing",
            ),
            (
                json!({"format": {"type": "triggered_tags", "tags": [], "triggers": ["a", 4]}}),
                "response_format.format.triggers[1]: 4 is not a string",
            ),
            (
                json!({"format": {"type": "triggered_tags", "tags": [], "excludes": ["a"]}}),
                "response_format.format.excludes: is not supported",
            ),
            (
                json!({"format": {"type": "triggered_tags", "tags": [], "separator": ""}}),
                "response_format.format: \"separator\" is not supported",
            ),
            (
                new(json!({"begin": "<", "end": ">"})),
                "response_format.format.tags[1].content: is missing",
            ),
            (
                content(json!({"type": "regex", "pattern": "a"})),
                "response_format.format.tags[1].content.type: \"regex\" is not one of",
            ),
            (
                content(json!({"type": "json_schema"})),
                "response_format.format.tags[1].content.json_schema: is missing",
            ),
            (
                content(json!({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"})),
                "response_format.format.tags[1].content.style: is not supported",
            ),
            (
                content(json!({"type": "any_text", "excludes": ["a"]})),
                "response_format.format.tags[1].content.excludes: is not supported",
            ),
            (
                new(json!({"begin": "<", "content": {"type": "any_text"}, "end": [">"]})),
                "response_format.format.tags[1].end: a list is not a string",
            ),
        ] {
            let message = of(&wrong).unwrap_err().to_string();
            assert!(message.starts_with(what), "{message}");
        }
    }
}
