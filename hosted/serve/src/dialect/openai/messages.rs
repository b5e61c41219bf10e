//! The messages of a request.

use super::super::fields::{Fields, shown, wrong};
use crate::api::{ApiError, ChatRequest};
use crate::http::is_heavy;
use serde_json::Value;
use sluice_text::assistant::{Tool, ToolChoice, ToolError};
use sluice_text::chat_template::Message;

type Result<T> = core::result::Result<T, ApiError>;

/// Parses `messages` and the fields that belong to them.
pub(in super::super) fn read(fields: Fields<'_>, request: &mut ChatRequest) -> Result<()> {
    request.messages = messages(fields.value("messages").unwrap_or(&Value::Null))?;
    if let [.., before, last] = &*request.messages
        && before.role == "assistant"
        && last.role == "assistant"
    {
        let field = format!("messages[{}]", request.messages.len() - 1);
        let what = "is a second assistant message at the end of the conversation";
        return Err(ApiError::field(field, what));
    }
    request.continues_last = match fields.value("continue_final_message") {
        Some(Value::String(_)) => true,
        _ => fields.bool("continue_final_message")?.unwrap_or(false),
    };
    let adds = fields.bool("add_generation_prompt")?;
    if request.continues_last && adds == Some(true) {
        let what = "cannot be combined with continue_final_message";
        return Err(ApiError::field("add_generation_prompt", what));
    }
    // A message that continues has its beginning already, so clients of vLLM send false with it.
    request.add_generation_prompt = request.continues_last || adds.unwrap_or(true);
    let variables = &mut request.template_kwargs;
    if let Some(kwargs) = fields.object("chat_template_kwargs")? {
        let own = OWN_VARIABLES
            .iter()
            .find(|&&name| kwargs.map().contains_key(name));
        if let Some(name) = own {
            let what = "is set by the server and cannot be replaced";
            return Err(ApiError::field(
                format!("chat_template_kwargs.{name}"),
                what,
            ));
        }
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
    let given = fields.value("tools").unwrap_or(&Value::Null);
    let tools = Tool::all_of(given).map_err(of_tools)?;
    let choice = fields.value("tool_choice").unwrap_or(&Value::Null);
    request.tool_choice = ToolChoice::parse(choice, &tools).map_err(of_tools)?;
    request.documents = fields.list("documents")?;
    Ok(())
}

/// What the template gets from other fields, which are checked, and from the model.
const OWN_VARIABLES: [&str; 4] = ["messages", "tools", "bos_token", "eos_token"];

fn of_tools(error: ToolError) -> ApiError {
    ApiError::field(error.field, error.what)
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
        Some(Value::Array(parts)) => {
            check_parts(&parts, field)?;
            Some(Value::Array(parts))
        }
        Some(other) => {
            return Err(wrong(
                &format!("{field}.content"),
                &other,
                "a string or a list of parts",
            ));
        }
    };
    let calls = extra.get("tool_calls").and_then(Value::as_array);
    for (i, call) in calls.into_iter().flatten().enumerate() {
        // Many templates get them as objects.
        let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
        if arguments.is_some_and(is_heavy) {
            let field = format!("{field}.tool_calls[{i}].function.arguments");
            return Err(ApiError::field(field, "takes too much memory as an object"));
        }
    }
    if content.is_none() && !extra.contains_key("tool_calls") {
        return Err(ApiError::field(format!("{field}.content"), "is missing"));
    }
    Ok(Message {
        role,
        content,
        extra,
    })
}

/// Checks that content in parts is text.
fn check_parts(parts: &[Value], field: &str) -> Result<()> {
    for (i, part) in parts.iter().enumerate() {
        let field = format!("{field}.content[{i}]");
        let kind = part.get("type").cloned().unwrap_or_default();
        match kind.as_str() {
            Some("text" | "input_text" | "output_text" | "refusal") => {}
            Some(
                "image" | "image_url" | "input_image" | "input_audio" | "audio" | "audio_url"
                | "video" | "video_url" | "file",
            ) => {
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
            Some(Value::String(_)) => {}
            other => {
                let other = other.cloned().unwrap_or_default();
                return Err(wrong(&format!("{field}.text"), &other, "a string"));
            }
        }
    }
    Ok(())
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
    fn messages_go_to_the_template_as_they_are() {
        let messages = json!([
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
            ]},
        ]);
        let read = of(&json!({"messages": messages})).unwrap();
        assert_eq!(json!(read.messages), messages);
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
}
