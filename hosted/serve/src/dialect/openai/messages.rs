//! The messages of a request.

use super::super::fields::{Fields, set, shown, wrong};
use crate::api::{ApiError, ChatRequest};
use serde_json::{Map, Value};
use sluice_text::chat_template::Message;

type Result<T> = core::result::Result<T, ApiError>;

/// Parses `messages` and the fields that belong to them.
pub(in super::super) fn read(fields: Fields<'_>, request: &mut ChatRequest) -> Result<()> {
    request.messages = messages(fields.value("messages").unwrap_or(&Value::Null))?;
    request.continues_last = match fields.value("continue_final_message") {
        Some(Value::String(_)) => true,
        _ => fields.bool("continue_final_message")?.unwrap_or(false),
    };
    let adds = fields.bool("add_generation_prompt")?;
    set(&mut request.add_generation_prompt, adds);
    let variables = &mut request.template_kwargs;
    if let Some(kwargs) = fields.object("chat_template_kwargs")? {
        variables.extend(kwargs.map().clone());
    }
    if let Some(thinks) = fields.bool("enable_thinking")? {
        variables.insert("enable_thinking".into(), thinks.into());
    }
    if let Some(effort) = fields.str("reasoning_effort")? {
        variables.insert("reasoning_effort".into(), effort.into());
    }
    let why = "not accepted from requests; start the server with --chat-template";
    fields.refuse("chat_template", &[], why)?;
    request.tools = fields.list("tools")?;
    request.documents = fields.list("documents")?;
    Ok(())
}

/// The messages of a conversation: a list of objects with `role` and `content`.
///
/// # Errors
/// A field is missing, or not supported; its path starts with `messages`.
pub fn messages(value: &Value) -> Result<Vec<Message>> {
    let list = match value {
        Value::Array(list) if !list.is_empty() => list,
        Value::Array(_) | Value::Null => {
            return Err(ApiError::field("messages", "needs at least one message"));
        }
        other => return Err(wrong("messages", other, "a list of messages")),
    };
    let each = list.iter().enumerate();
    each.map(|(i, value)| message(value, &format!("messages[{i}]")))
        .collect()
}

fn message(value: &Value, field: &str) -> Result<Message> {
    let Value::Object(map) = value else {
        return Err(wrong(field, value, "a message, which is an object"));
    };
    let mut extra = map.clone();
    let role = match extra.shift_remove("role") {
        Some(Value::String(role)) if !role.is_empty() => role,
        other => {
            let other = other.unwrap_or_default();
            return Err(wrong(&format!("{field}.role"), &other, "a string"));
        }
    };
    let content = match extra.shift_remove("content") {
        None => None,
        Some(Value::Null) => Some(Value::Null),
        Some(Value::String(text)) => Some(Value::String(text)),
        Some(Value::Array(parts)) => Some(Value::String(text_of(&parts, field)?)),
        Some(other) => {
            return Err(wrong(
                &format!("{field}.content"),
                &other,
                "a string or a list of parts",
            ));
        }
    };
    if content.is_none() && !extra.contains_key("tool_calls") {
        return Err(ApiError::field(format!("{field}.content"), "is missing"));
    }
    parse_arguments(&mut extra);
    Ok(Message {
        role,
        content,
        extra,
    })
}

/// Joins the text of content that consists of parts: templates expect a single string.
fn text_of(parts: &[Value], field: &str) -> Result<String> {
    let mut texts = Vec::with_capacity(parts.len());
    for (i, part) in parts.iter().enumerate() {
        let field = format!("{field}.content[{i}]");
        let kind = part.get("type").cloned().unwrap_or_default();
        match kind.as_str() {
            Some("text" | "input_text" | "output_text" | "refusal") => {}
            Some("image_url" | "input_image" | "input_audio" | "audio" | "video" | "file") => {
                let what = format!(
                    "{} is not supported: this server accepts only text",
                    shown(&kind)
                );
                return Err(ApiError::field(format!("{field}.type"), what));
            }
            _ => {
                return Err(wrong(
                    &format!("{field}.type"),
                    &kind,
                    "a content type, such as text",
                ));
            }
        }
        match part.get("text").or_else(|| part.get("refusal")) {
            Some(Value::String(text)) => texts.push(text.as_str()),
            other => {
                let other = other.cloned().unwrap_or_default();
                return Err(wrong(&format!("{field}.text"), &other, "a string"));
            }
        }
    }
    Ok(texts.join("\n"))
}

/// Parses the arguments of calls, which clients send as JSON strings and templates expect as objects.
fn parse_arguments(message: &mut Map<String, Value>) {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        let parsed = arguments
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok());
        if let Some(parsed @ Value::Object(_)) = parsed {
            *arguments = parsed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Defaults;
    use serde_json::json;

    fn of(body: &Value) -> Result<ChatRequest> {
        let mut request = ChatRequest::new(&Defaults::default());
        read(Fields::of_body(body).unwrap(), &mut request).map(|()| request)
    }

    #[test]
    fn parts_of_text_become_one() {
        let body = json!({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ]});
        let read = of(&body).unwrap();
        assert_eq!(read.messages[0].content, Some(json!("a\nb")));
        assert!(read.add_generation_prompt);
    }

    #[test]
    fn what_is_wrong_with_a_message_is_named() {
        for (messages, field) in [
            (json!([]), "messages"),
            (json!("x"), "messages"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (json!([{"role": "user"}]), "messages[0].content"),
            (
                json!([{"role": "user", "content": 3}]),
                "messages[0].content",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
                "messages[0].content[0].type",
            ),
        ] {
            let error = of(&json!({"messages": messages})).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field));
        }
    }

    #[test]
    fn arguments_of_calls_are_parsed_for_templates() {
        let body = json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
        ]}]});
        let read = of(&body).unwrap();
        let calls = &read.messages[0].extra["tool_calls"];
        assert_eq!(calls[0]["function"]["arguments"], json!({"a": 1}));
    }
}
