//! The messages of a request: Ollama's become messages as OpenAI's clients send them.

use super::super::fields::{Fields, shown, within, wrong};
use crate::api::{ApiError, ChatRequest};
use serde_json::{Map, Value, json};
use sluice_text::assistant::{Tool, ToolChoice, ToolError};
use sluice_text::chat_template::Message;
use std::collections::VecDeque;

type Result<T> = core::result::Result<T, ApiError>;

/// Parses `messages`. If the last message is the assistant's, the answer continues it.
pub(super) fn read(fields: Fields<'_>, request: &mut ChatRequest) -> Result<()> {
    let mut calls = Calls::default();
    for (field, message) in fields.objects("messages", "a message, which is an object")? {
        let message = self::message(message, &mut calls);
        let message = message.map_err(|error| within(&field, error))?;
        request.messages.push(message);
    }
    let last = request.messages.last();
    let goes_on =
        last.is_some_and(|last| last.role == "assistant" && !last.extra.contains_key("tool_calls"));
    request.continues_last = goes_on;
    Ok(())
}

/// Parses `tools`, which are OpenAI's functions, and OpenAI's `tool_choice`, which Ollama does not have.
pub(super) fn tools(fields: Fields<'_>, request: &mut ChatRequest) -> Result<()> {
    request.tools = fields.list("tools")?;
    let given = |name: &str| fields.value(name).unwrap_or(&Value::Null);
    let of_tools = |error: ToolError| ApiError::field(error.field, error.what);
    let tools = Tool::all_of(given("tools")).map_err(of_tools)?;
    let choice = ToolChoice::parse(given("tool_choice"), &tools);
    request.tool_choice = choice.map_err(of_tools)?;
    Ok(())
}

fn message(fields: Fields<'_>, calls: &mut Calls) -> Result<Message> {
    let role = match fields.str("role")? {
        Some(role) if !role.is_empty() => role.to_lowercase(),
        _ => return Err(ApiError::field("role", "is missing")),
    };
    let none = [Value::Array(Vec::new())];
    let text = "is not supported: this server accepts only text";
    fields.refuse("images", &none, text)?;
    let content = fields.str("content")?.unwrap_or_default();
    let mut extra = Map::new();
    if let Some(thought) = fields.str("thinking")?.filter(|text| !text.is_empty()) {
        extra.insert("reasoning_content".into(), thought.into());
    }
    let made = calls.read(fields)?;
    if role == "tool" {
        calls.answer(fields, &mut extra)?;
    }
    let mut content = Value::from(content);
    if !made.is_empty() {
        if content == "" {
            content = Value::Null;
        }
        extra.insert("tool_calls".into(), made.into());
    }
    Ok(Message {
        role,
        content: Some(content),
        extra,
    })
}

/// The calls of a conversation. Most clients send no ids, but templates may need them: results belong to calls by
/// their names, in order.
#[derive(Debug, Default)]
struct Calls {
    n: usize,
    /// The id and the name of each call without a result.
    open: VecDeque<(String, String)>,
}

impl Calls {
    /// The calls of a message, as OpenAI's.
    fn read(&mut self, message: Fields<'_>) -> Result<Vec<Value>> {
        let mut made = Vec::new();
        for (field, call) in message.objects("tool_calls", "a call, which is an object")? {
            let call = self.call(call);
            made.push(call.map_err(|error| within(&field, error))?);
        }
        Ok(made)
    }

    fn call(&mut self, call: Fields<'_>) -> Result<Value> {
        let function = call.object("function")?;
        let function = function.ok_or_else(|| ApiError::field("function", "is missing"))?;
        let of_function = |error| within("function", error);
        let name = function.str("name").map_err(of_function)?;
        let name = name.ok_or_else(|| ApiError::field("function.name", "is missing"))?;
        let arguments = match function.value("arguments") {
            None => "{}".to_owned(),
            Some(arguments @ Value::Object(_)) => arguments.to_string(),
            // As OpenAI's clients write them.
            Some(Value::String(text)) if is_object(text) => text.clone(),
            Some(other) => return Err(wrong("function.arguments", other, "an object")),
        };
        let id = match call.str("id")?.filter(|id| !id.is_empty()) {
            Some(id) => id.to_owned(),
            None => self.new_id(),
        };
        self.open.push_back((id.clone(), name.to_owned()));
        let function = json!({"name": name, "arguments": arguments});
        Ok(json!({"id": id, "type": "function", "function": function}))
    }

    /// The same for the same conversation. Some templates take only nine letters and digits.
    fn new_id(&mut self) -> String {
        self.n += 1;
        format!("call{:05}", self.n % 100_000)
    }

    /// Adds to the message with a result which call it is of.
    fn answer(&mut self, result: Fields<'_>, extra: &mut Map<String, Value>) -> Result<()> {
        let name = match result.str("tool_name")? {
            Some(name) => Some(name),
            None => result.str("name")?,
        };
        let id = result.str("tool_call_id")?;
        let is_meant = |(of, called): &(String, String)| match (id, name) {
            (Some(id), _) => of == id,
            (None, Some(name)) => called == name,
            (None, None) => true,
        };
        let at = self.open.iter().position(is_meant);
        let call = at.and_then(|at| self.open.remove(at));
        let (of, called) = call.unzip();
        let id = id.map(str::to_owned).or(of);
        let id = id.unwrap_or_else(|| self.new_id());
        extra.insert("tool_call_id".into(), id.into());
        if let Some(name) = name.map(str::to_owned).or(called) {
            extra.insert("name".into(), name.into());
        }
        Ok(())
    }
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(text).is_ok()
}

/// The messages of a request for the continuation of a prompt.
pub(super) fn of_prompt(system: &str, prompt: &str) -> Vec<Message> {
    let system = (!system.is_empty()).then(|| Message::new("system", system));
    system
        .into_iter()
        .chain([Message::new("user", prompt)])
        .collect()
}

/// Refuses pictures of the request itself.
pub(super) fn refuse_images(fields: Fields<'_>) -> Result<()> {
    match fields.value("images") {
        None => Ok(()),
        Some(Value::Array(list)) if list.is_empty() => Ok(()),
        Some(other) => {
            let what = format!(
                "{} is not supported: this server accepts only text",
                shown(other)
            );
            Err(ApiError::field("images", what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Defaults;

    fn of(messages: &Value) -> Result<ChatRequest> {
        let body = json!({"messages": messages});
        let mut request = ChatRequest::new(&Defaults::default());
        read(Fields::of_body(&body).unwrap(), &mut request).map(|()| request)
    }

    #[test]
    fn results_find_their_calls() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"at": "noon"}}});
        let request = of(&json!([
            {"role": "User", "content": "How high?"},
            {"role": "assistant", "content": "", "thinking": "Hm.",
                "tool_calls": [call("tide"), call("wind"), call("tide")]},
            {"role": "tool", "tool_name": "wind", "content": "3"},
            {"role": "tool", "tool_name": "tide", "content": "low"},
            {"role": "tool", "content": "high"},
        ]))
        .unwrap();
        let messages = json!(request.messages);
        assert_eq!(messages[0]["role"], "user");
        let made = &messages[1];
        assert_eq!(
            (&made["content"], &made["reasoning_content"]),
            (&Value::Null, &json!("Hm."))
        );
        let function = &made["tool_calls"][0]["function"];
        assert_eq!(function["arguments"], "{\"at\":\"noon\"}");
        let id = |i: usize| made["tool_calls"][i]["id"].clone();
        let of = |i: usize| messages[i]["tool_call_id"].clone();
        assert_eq!((of(2), of(3), of(4)), (id(1), id(0), id(2)));
        assert_eq!(messages[4]["name"], "tide");
        assert!(!request.continues_last);
    }

    #[test]
    fn ids_of_clients_are_kept() {
        let call = json!({"id": "abc", "function": {"name": "f", "arguments": {}}});
        let request = of(&json!([
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "abc", "content": "1"},
            {"role": "assistant", "content": "Once "},
        ]))
        .unwrap();
        let messages = json!(request.messages);
        assert_eq!(messages[0]["tool_calls"][0]["id"], "abc");
        assert_eq!(messages[1]["tool_call_id"], "abc");
        assert!(request.continues_last);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (messages, field) in [
            (json!([3]), "messages[0]"),
            (json!([{"content": "x"}]), "messages[0].role"),
            (
                json!([{"role": "user", "content": [1]}]),
                "messages[0].content",
            ),
            (
                json!([{"role": "user", "content": "x", "images": ["AA"]}]),
                "messages[0].images",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{}]}]),
                "messages[0].tool_calls[0].function",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}]),
                "messages[0].tool_calls[0].function.arguments",
            ),
        ] {
            let error = of(&messages).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{messages}");
        }
    }
}
