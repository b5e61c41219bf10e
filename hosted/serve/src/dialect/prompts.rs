//! Prompts in all forms: a string, tokens, a mix of both, or a list of these.

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
        const FIELD: &str = "prompt";
        let one = |value: &Value| {
            Ok(Self {
                all: vec![one(value, FIELD)?],
                is_list: false,
            })
        };
        let Some(value) = fields.value(FIELD) else {
            return Err(ApiError::field(FIELD, "is missing"));
        };
        let Value::Array(list) = value else {
            return one(value);
        };
        if list.is_empty() {
            return Err(ApiError::field(FIELD, "is an empty list"));
        }
        // A list with numbers is a single prompt of tokens, or of tokens and strings.
        if list.iter().any(Value::is_number) {
            return one(value);
        }
        if list.len() > PROMPTS_MAX {
            let what = format!(
                "has {} prompts, more than the maximum of {PROMPTS_MAX}",
                list.len()
            );
            return Err(ApiError::field(FIELD, what));
        }
        let each = list.iter().enumerate();
        let all = each.map(|(i, value)| self::one(value, &format!("{FIELD}[{i}]")));
        Ok(Self {
            all: all.collect::<Result<_>>()?,
            is_list: true,
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

fn one(value: &Value, field: &str) -> Result<CompletionPrompt> {
    let list = match value {
        Value::String(text) => return Ok(CompletionPrompt::text(text)),
        Value::Array(list) => list,
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
    Ok(CompletionPrompt::Parts(parts))
}

const PROMPTS_MAX: usize = 1024;

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
        ] {
            assert_eq!(of(prompt).unwrap_err().field.as_deref(), Some(field));
        }
    }
}
