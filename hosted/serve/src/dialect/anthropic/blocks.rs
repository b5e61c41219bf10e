//! A request's conversation: content blocks become messages as OpenAI's clients send them.

use super::super::fields::{Fields, shown, wrong};
use crate::api::{ApiError, ChatRequest};
use serde_json::{Map, Value, json};
use sluice_text::chat_template::Message;

type Result<T> = core::result::Result<T, ApiError>;

/// Parses `system` and `messages`. If the last message is the assistant's, the answer continues it.
pub(super) fn read(fields: Fields<'_>, request: &mut ChatRequest) -> Result<()> {
    if let Some(system) = fields.value("system") {
        let texts = texts(system, "system")?;
        if !texts.is_empty() {
            request.messages.push(message("system", texts));
        }
    }
    let list = match fields.value("messages") {
        Some(Value::Array(list)) if !list.is_empty() => list,
        Some(Value::Array(_)) | None => {
            return Err(ApiError::field("messages", "needs at least one message"));
        }
        Some(other) => return Err(wrong("messages", other, "a list of messages")),
    };
    for (i, value) in list.iter().enumerate() {
        let field = format!("messages[{i}]");
        let Value::Object(_) = value else {
            return Err(wrong(&field, value, "a message, which is an object"));
        };
        let content = value.get("content").unwrap_or(&Value::Null);
        let at = format!("{field}.content");
        match value.get("role").and_then(Value::as_str) {
            // Instructions in the course of a conversation.
            Some("system") => {
                let texts = texts(content, &at)?;
                request.messages.push(message("system", texts));
            }
            Some("user") => user(content, &at, &mut request.messages)?,
            Some("assistant") => {
                let is_last = i + 1 == list.len();
                request.messages.push(assistant(content, &at, is_last)?);
                request.continues_last = is_last;
            }
            _ => {
                let role = shown(value.get("role").unwrap_or(&Value::Null));
                let what = format!("{role} is not user, assistant or system");
                return Err(ApiError::field(format!("{field}.role"), what));
            }
        }
    }
    Ok(())
}

/// Adds a user's message: results of calls are messages of their own, in the order in which they stand.
fn user(content: &Value, at: &str, messages: &mut Vec<Message>) -> Result<()> {
    let mut said = Vec::new();
    let mut is_empty = true;
    for block in &blocks(content, at)? {
        is_empty = false;
        if block.kind != "tool_result" {
            said.push(block.text()?);
            continue;
        }
        if !said.is_empty() {
            messages.push(message("user", core::mem::take(&mut said)));
        }
        messages.push(result(block)?);
    }
    if is_empty || !said.is_empty() {
        messages.push(message("user", said));
    }
    Ok(())
}

/// The result of a call. Templates do not know failures: a failure says so.
fn result(block: &Block<'_>) -> Result<Message> {
    let id = block.string("tool_use_id")?;
    let mut texts = match block.get("content") {
        None => Vec::new(),
        Some(content) => texts(content, &format!("{}.content", block.at))?,
    };
    let failed = match block.get("is_error") {
        None => false,
        Some(Value::Bool(failed)) => *failed,
        Some(other) => {
            return Err(wrong(
                &format!("{}.is_error", block.at),
                other,
                "true or false",
            ));
        }
    };
    if failed {
        match texts.first_mut() {
            Some(text) => text.insert_str(0, "Error: "),
            None => texts.push("Error".into()),
        }
    }
    let mut message = message("tool", texts);
    message.extra.insert("tool_call_id".into(), id.into());
    Ok(message)
}

/// A message of the assistant's, with its reasoning and its calls.
fn assistant(content: &Value, at: &str, is_last: bool) -> Result<Message> {
    let (mut said, mut thought, mut calls) = (Vec::new(), String::new(), Vec::new());
    for block in &blocks(content, at)? {
        match block.kind {
            "thinking" => thought.push_str(block.string("thinking")?),
            // Anthropic's own, which no other model can read.
            "redacted_thinking" => {}
            "tool_use" => calls.push(call(block)?),
            _ => said.push(block.text()?),
        }
        if is_last && block.kind == "tool_use" {
            let what = "is a call at the end of the conversation: its tool_result is missing";
            return Err(ApiError::field(block.at.clone(), what));
        }
    }
    let mut message = message("assistant", said);
    if !calls.is_empty() {
        if message.content == Some("".into()) {
            message.content = Some(Value::Null);
        }
        message.extra.insert("tool_calls".into(), calls.into());
    }
    if !thought.is_empty() {
        let extra = &mut message.extra;
        extra.insert("reasoning_content".into(), thought.into());
    }
    Ok(message)
}

/// A call as OpenAI's, whose arguments are JSON in a string.
fn call(block: &Block<'_>) -> Result<Value> {
    let at = format!("{}.input", block.at);
    let arguments = match block.get("input") {
        Some(input @ Value::Object(_)) => input.to_string(),
        Some(other) => return Err(wrong(&at, other, "an object")),
        None => return Err(ApiError::field(at, "is missing")),
    };
    let (id, name) = (block.string("id")?, block.string("name")?);
    let function = json!({"name": name, "arguments": arguments});
    Ok(json!({"id": id, "type": "function", "function": function}))
}

/// A message with one text, or with several in parts.
fn message(role: &str, mut texts: Vec<String>) -> Message {
    let content = match texts.len() {
        0 => "".into(),
        1 => texts.remove(0).into(),
        _ => texts
            .into_iter()
            .map(|text| json!({"type": "text", "text": text}))
            .collect(),
    };
    Message {
        role: role.to_owned(),
        content: Some(content),
        extra: Map::new(),
    }
}

/// The texts of a content that may only have text.
fn texts(content: &Value, at: &str) -> Result<Vec<String>> {
    let blocks = blocks(content, at)?;
    blocks.iter().map(Block::text).collect()
}

/// A content block.
struct Block<'v> {
    kind: &'v str,
    value: &'v Value,
    /// Its path.
    at: String,
}

/// The blocks of a content: a string is one block of text.
fn blocks<'v>(content: &'v Value, at: &str) -> Result<Vec<Block<'v>>> {
    let list = match content {
        Value::String(_) => {
            return Ok(vec![Block {
                kind: "text",
                value: content,
                at: at.to_owned(),
            }]);
        }
        Value::Array(list) => list,
        Value::Null => return Err(ApiError::field(at, "is missing")),
        other => return Err(wrong(at, other, "a string or a list of content blocks")),
    };
    let each = list.iter().enumerate().map(|(i, value)| {
        let at = format!("{at}[{i}]");
        let kind = value.get("type").unwrap_or(&Value::Null);
        match kind.as_str() {
            Some(kind) => Ok(Block { kind, value, at }),
            None => Err(wrong(
                &format!("{at}.type"),
                kind,
                "the type of a content block",
            )),
        }
    });
    each.collect()
}

impl Block<'_> {
    /// The value of a field, unless it is null.
    fn get(&self, name: &str) -> Option<&Value> {
        self.value.get(name).filter(|value| !value.is_null())
    }

    fn string(&self, name: &str) -> Result<&str> {
        let field = format!("{}.{name}", self.at);
        match self.get(name) {
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(wrong(&field, other, "a string")),
            None => Err(ApiError::field(field, "is missing")),
        }
    }

    /// The text of a block that has to be text.
    fn text(&self) -> Result<String> {
        match (self.kind, self.value) {
            ("text", Value::String(text)) => Ok(text.clone()),
            ("text", _) => self.string("text").map(str::to_owned),
            (kind, _) => {
                let kind = shown(&kind.into());
                let what = format!("{kind} is not supported here: this server accepts only text");
                Err(ApiError::field(format!("{}.type", self.at), what))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Defaults;

    fn of(body: &Value) -> Result<ChatRequest> {
        let mut request = ChatRequest::new(&Defaults::default());
        read(Fields::of_body(body).unwrap(), &mut request).map(|()| request)
    }

    #[test]
    fn blocks_become_the_messages_that_openai_s_clients_send() {
        let body = json!({
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "How high?"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Look.", "signature": "x"},
                    {"type": "redacted_thinking", "data": "abc"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "tide", "input": {"at": "noon"}},
                    {"type": "tool_use", "id": "t2", "name": "wind", "input": {}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "low"}]},
                    {"type": "tool_result", "tool_use_id": "t2", "content": "no wind", "is_error": true},
                    {"type": "text", "text": "And?"},
                    {"type": "text", "text": "Well?"},
                ]},
            ],
        });
        let function = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "How high?"},
            {"role": "assistant", "content": "I look.",
                "tool_calls": [function("t1", "tide", "{\"at\":\"noon\"}"), function("t2", "wind", "{}")],
                "reasoning_content": "Look."},
            {"role": "tool", "content": "low", "tool_call_id": "t1"},
            {"role": "tool", "content": "Error: no wind", "tool_call_id": "t2"},
            {"role": "user", "content": [{"type": "text", "text": "And?"}, {"type": "text", "text": "Well?"}]},
        ]);
        let request = of(&body).unwrap();
        assert_eq!(json!(request.messages), expected);
        assert!(!request.continues_last);
    }

    #[test]
    fn a_last_message_of_the_assistant_is_continued() {
        let said = json!([{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, "}]);
        let request = of(&json!({"messages": said})).unwrap();
        assert!(request.continues_last);
        // A call alone has no content.
        let call = json!([{"type": "tool_use", "id": "t", "name": "f", "input": {}}]);
        let result = json!([{"type": "tool_result", "tool_use_id": "t"}]);
        let said =
            json!([{"role": "assistant", "content": call}, {"role": "user", "content": result}]);
        let request = of(&json!({"messages": said})).unwrap();
        assert_eq!(request.messages[0].content, Some(Value::Null));
        assert_eq!(request.messages[1].content, Some("".into()));
    }

    #[test]
    fn what_is_wrong_with_a_block_is_named() {
        let user = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
        let image = json!({"type": "image", "source": {}});
        let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
        for (body, field) in [
            (json!({"messages": []}), "messages"),
            (json!({"messages": [3]}), "messages[0]"),
            (
                json!({"messages": [{"role": "tool", "content": "x"}]}),
                "messages[0].role",
            ),
            (
                json!({"messages": [{"role": "user"}]}),
                "messages[0].content",
            ),
            (user(image.clone()), "messages[0].content[0].type"),
            (user(json!({"type": "text"})), "messages[0].content[0].text"),
            (user(json!({"text": "x"})), "messages[0].content[0].type"),
            (
                user(json!({"type": "tool_result"})),
                "messages[0].content[0].tool_use_id",
            ),
            (
                user(json!({"type": "tool_result", "tool_use_id": "t", "is_error": 1})),
                "messages[0].content[0].is_error",
            ),
            (
                user(json!({"type": "tool_result", "tool_use_id": "t", "content": [image]})),
                "messages[0].content[0].content[0].type",
            ),
            (
                json!({"messages": [{"role": "assistant", "content": [call]}]}),
                "messages[0].content[0]",
            ),
            (
                json!({"system": 3, "messages": [{"role": "user", "content": "x"}]}),
                "system",
            ),
        ] {
            let error = of(&body).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{body}");
        }
    }
}
