//! Texts in all forms: a string, tokens, a mix of both, an object with a string, or a list of these.

use super::fields::{Fields, token, wrong};
use crate::api::{ApiError, CompletionPrompt, FieldName, PromptPart};
use serde_json::Value;

type Result<T> = core::result::Result<T, ApiError>;

/// The prompts in a field.
pub(super) struct Prompts {
    pub(super) all: Vec<CompletionPrompt>,
    /// Whether they were given as a list.
    pub(super) is_list: bool,
}

impl Prompts {
    /// Parses the field `prompt`.
    pub(super) fn read(fields: Fields<'_>) -> Result<Self> {
        let texts = Texts::read(fields, "prompt")?;
        let all = texts.all.into_iter().map(CompletionPrompt::Parts);
        Ok(Self {
            all: all.collect(),
            is_list: texts.is_list,
        })
    }

    /// The name of the prompts' field in the request.
    pub(super) const fn name(&self) -> FieldName {
        match self.is_list {
            true => FieldName::new("prompts", "prompt"),
            false => FieldName::new("prompts[0]", "prompt"),
        }
    }
}

/// The texts in a field.
pub(super) struct Texts {
    pub(super) all: Vec<Vec<PromptPart>>,
    /// Whether they were given as a list.
    pub(super) is_list: bool,
}

impl Texts {
    /// Parses the field called `name`.
    pub(super) fn read(fields: Fields<'_>, name: &str) -> Result<Self> {
        let Some(value) = fields.value(name) else {
            return Err(ApiError::field(name, "is missing"));
        };
        let list = match value {
            // A list with numbers is a single text of tokens, or of tokens and strings.
            Value::Array(list) if !list.iter().any(Value::is_number) => list,
            one => {
                return Ok(Self {
                    all: vec![parts(one, name)?],
                    is_list: false,
                });
            }
        };
        if list.is_empty() {
            return Err(ApiError::field(name, "is an empty list"));
        }
        if list.len() > TEXTS_MAX {
            let n = list.len();
            let what = format!("has {n} entries, more than the maximum of {TEXTS_MAX}");
            return Err(ApiError::field(name, what));
        }
        let each = list.iter().enumerate();
        let all = each.map(|(i, value)| parts(value, &format!("{name}[{i}]")));
        Ok(Self {
            all: all.collect::<Result<_>>()?,
            is_list: true,
        })
    }
}

/// The parts of a text. Objects are llama-server's: `{"prompt_string": "..."}`, or `content` as in a message.
fn parts(value: &Value, field: &str) -> Result<Vec<PromptPart>> {
    let list = match value {
        Value::String(text) => return Ok(vec![PromptPart::Text(text.clone())]),
        Value::Array(list) => list,
        Value::Object(_) => return Ok(vec![PromptPart::Text(object(value, field)?)]),
        other => return Err(wrong(field, other, "a string or a list of token ids")),
    };
    let mut parts = Vec::new();
    for (i, part) in list.iter().enumerate() {
        match (part, parts.last_mut()) {
            (Value::String(text), _) => parts.push(PromptPart::Text(text.clone())),
            (part, last) => {
                let token = token(&format!("{field}[{i}]"), part)?;
                match last {
                    Some(PromptPart::Tokens(tokens)) => tokens.push(token),
                    _ => parts.push(PromptPart::Tokens(vec![token])),
                }
            }
        }
    }
    Ok(parts)
}

/// The text of an object.
fn object(value: &Value, field: &str) -> Result<String> {
    let fields = Fields::of_body(value)?;
    let within = |error: ApiError| ApiError {
        field: error.field.map(|name| format!("{field}.{name}")),
        ..error
    };
    let what = "images and audio are not supported";
    fields
        .refuse("multimodal_data", &[Value::Array(Vec::new())], what)
        .map_err(within)?;
    if let Some(text) = fields.str("prompt_string").map_err(within)? {
        return Ok(text.to_owned());
    }
    let Some(Value::Array(list)) = fields.value("content") else {
        let what = "an object with prompt_string, or with a list of parts as content";
        return Err(wrong(field, value, what));
    };
    let texts = list.iter().enumerate().map(|(i, part)| {
        let is_text = part.get("type").and_then(Value::as_str) == Some("text");
        let text = part.get("text").and_then(Value::as_str);
        let at = || format!("{field}.content[{i}]");
        text.filter(|_| is_text)
            .ok_or_else(|| wrong(&at(), part, "a part of type text"))
    });
    texts.collect()
}

const TEXTS_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lists_are_prompts_or_one_of_tokens() {
        let of = |prompt: Value| {
            let body = json!({"prompt": prompt});
            let read = Prompts::read(Fields::of_body(&body).unwrap());
            read.map(|read| (read.all, read.is_list))
        };
        let text = PromptPart::Text("a".into());
        for (prompt, expected) in [
            (json!("a"), (vec![CompletionPrompt::text("a")], false)),
            (
                json!([3, 4.0]),
                (vec![CompletionPrompt::tokens(vec![3, 4])], false),
            ),
            (json!(["a"]), (vec![CompletionPrompt::text("a")], true)),
            (
                json!({"prompt_string": "a", "multimodal_data": []}),
                (vec![CompletionPrompt::text("a")], false),
            ),
            (
                json!([{"prompt_string": "a"}, {"content": [{"type": "text", "text": "b"}]}]),
                (["a", "b"].map(CompletionPrompt::text).into(), true),
            ),
            (
                json!(["a", [1, "a", 2]]),
                (
                    vec![
                        CompletionPrompt::text("a"),
                        CompletionPrompt::Parts(vec![
                            PromptPart::Tokens(vec![1]),
                            text.clone(),
                            PromptPart::Tokens(vec![2]),
                        ]),
                    ],
                    true,
                ),
            ),
        ] {
            assert_eq!(of(prompt).unwrap(), expected);
        }
        for (prompt, field) in [
            (json!([]), "prompt"),
            (json!({}), "prompt"),
            (json!([1, -2]), "prompt[1]"),
            (json!(["a", [1, true]]), "prompt[1][1]"),
            (json!(["a", true]), "prompt[1]"),
            (json!({"prompt_string": 3}), "prompt.prompt_string"),
            (
                json!({"prompt_string": "a", "multimodal_data": ["AA"]}),
                "prompt.multimodal_data",
            ),
            (json!([{"content": "a"}]), "prompt[0]"),
            (
                json!([{"content": [{"type": "image_url"}]}]),
                "prompt[0].content[0]",
            ),
        ] {
            assert_eq!(of(prompt).unwrap_err().field.as_deref(), Some(field));
        }
    }
}
