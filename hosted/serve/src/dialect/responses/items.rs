//! The input of a request: items become messages as Chat Completions has them.

use super::super::fields::{Fields, shown, wrong};
use super::reasoning;
use crate::api::ApiError;
use serde_json::{Map, Value, json};
use sluice_text::chat_template::Message;

type Result<T> = core::result::Result<T, ApiError>;

/// The messages of `instructions` and `input`.
pub(super) fn read(fields: Fields<'_>) -> Result<Vec<Message>> {
    let mut turns = Turns::default();
    if let Some(instructions) = fields.str("instructions")? {
        turns.messages.push(message("system", instructions.into()));
    }
    match fields.value("input") {
        None => return Err(ApiError::field("input", "is missing")),
        Some(Value::String(text)) => turns.messages.push(message("user", text.clone().into())),
        Some(Value::Array(items)) => {
            for (i, value) in items.iter().enumerate() {
                let at = format!("input[{i}]");
                match value {
                    Value::Object(_) => turns.item(&Item { value, at })?,
                    other => return Err(wrong(&at, other, "an item, which is an object")),
                }
            }
        }
        Some(other) => return Err(wrong("input", other, "a string or a list of items")),
    }
    turns.end();
    match turns.messages.is_empty() {
        true => Err(ApiError::field("input", "needs at least one item")),
        false => Ok(turns.messages),
    }
}

/// Messages so far: what the assistant thought, said and called stands in several items, and is one message.
#[derive(Default)]
struct Turns {
    messages: Vec<Message>,
    assistant: Option<Assistant>,
}

/// The assistant's turn that is being read.
#[derive(Default)]
struct Assistant {
    thought: String,
    said: Option<Value>,
    calls: Vec<Value>,
}

impl Turns {
    fn item(&mut self, item: &Item<'_>) -> Result<()> {
        match item.kind()? {
            "message" => self.message(item),
            "reasoning" => {
                let thought = reasoning::read(item.value).map_err(|field| item.missing(field))?;
                let turn = self.turn(|turn| turn.said.is_none() && turn.calls.is_empty());
                turn.thought.push_str(&thought);
                Ok(())
            }
            "function_call" => self.call(item, item.string("arguments")?.to_owned()),
            "custom_tool_call" => {
                let input = json!({"input": item.string("input")?});
                self.call(item, input.to_string())
            }
            "local_shell_call" => {
                let action = item.value.get("action");
                let action = action.ok_or_else(|| item.missing("action"))?;
                self.push_call(item.string("call_id")?, "local_shell", action.to_string());
                Ok(())
            }
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
                self.output(item)
            }
            "item_reference" => {
                let what =
                    "is a reference to an item of another response, and responses are not stored";
                Err(ApiError::field(item.at.clone(), what))
            }
            kind => {
                let what = format!("{} is not supported", shown(&kind.into()));
                Err(ApiError::field(format!("{}.type", item.at), what))
            }
        }
    }

    fn message(&mut self, item: &Item<'_>) -> Result<()> {
        let content = item.content("content")?;
        match item.string("role")? {
            "assistant" => {
                let turn = self.turn(|turn| turn.said.is_none() && turn.calls.is_empty());
                turn.said = Some(content);
            }
            role @ ("user" | "system" | "developer") => {
                self.end();
                self.messages.push(message(role, content));
            }
            role => {
                let what = format!(
                    "{} is not user, assistant, system or developer",
                    shown(&role.into())
                );
                return Err(ApiError::field(format!("{}.role", item.at), what));
            }
        }
        Ok(())
    }

    fn call(&mut self, item: &Item<'_>, arguments: String) -> Result<()> {
        self.push_call(item.string("call_id")?, item.string("name")?, arguments);
        Ok(())
    }

    fn push_call(&mut self, id: &str, name: &str, arguments: String) {
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        self.turn(|_| true).calls.push(call);
    }

    fn output(&mut self, item: &Item<'_>) -> Result<()> {
        let id = match item.value.get("call_id") {
            // Older clients give the id of the call's item.
            None | Some(Value::Null) => item.string("id")?,
            Some(_) => item.string("call_id")?,
        };
        let output = item.content("output")?;
        self.end();
        let mut message = message("tool", output);
        message.extra.insert("tool_call_id".into(), id.into());
        self.messages.push(message);
        Ok(())
    }

    /// The assistant's turn, or the next one unless this one `goes_on`.
    fn turn(&mut self, goes_on: impl Fn(&Assistant) -> bool) -> &mut Assistant {
        if self.assistant.as_ref().is_some_and(|turn| !goes_on(turn)) {
            self.end();
        }
        self.assistant.get_or_insert_default()
    }

    /// Ends the assistant's turn.
    fn end(&mut self) {
        let Some(turn) = self.assistant.take() else {
            return;
        };
        let has_calls = !turn.calls.is_empty();
        let nothing = if has_calls { Value::Null } else { "".into() };
        let mut message = message("assistant", turn.said.unwrap_or(nothing));
        if has_calls {
            message.extra.insert("tool_calls".into(), turn.calls.into());
        }
        if !turn.thought.is_empty() {
            let thought = turn.thought.into();
            message.extra.insert("reasoning_content".into(), thought);
        }
        self.messages.push(message);
    }
}

fn message(role: &str, content: Value) -> Message {
    Message {
        role: role.to_owned(),
        content: Some(content),
        extra: Map::new(),
    }
}

/// An item of the input.
struct Item<'v> {
    value: &'v Value,
    /// Its path.
    at: String,
}

impl Item<'_> {
    fn missing(&self, name: &str) -> ApiError {
        ApiError::field(format!("{}.{name}", self.at), "is missing")
    }

    /// Its type; a message may leave it out.
    fn kind(&self) -> Result<&str> {
        match self.value.get("type") {
            None | Some(Value::Null) => Ok("message"),
            Some(Value::String(kind)) => Ok(kind),
            Some(other) => Err(wrong(&format!("{}.type", self.at), other, "a string")),
        }
    }

    fn string(&self, name: &str) -> Result<&str> {
        match self.value.get(name) {
            Some(Value::String(text)) => Ok(text),
            None | Some(Value::Null) => Err(self.missing(name)),
            Some(other) => Err(wrong(&format!("{}.{name}", self.at), other, "a string")),
        }
    }

    /// A string, or a list of texts; several become parts.
    fn content(&self, name: &str) -> Result<Value> {
        let at = format!("{}.{name}", self.at);
        let parts = match self.value.get(name) {
            Some(Value::String(text)) => return Ok(text.clone().into()),
            Some(Value::Array(parts)) => parts,
            None | Some(Value::Null) => return Err(self.missing(name)),
            Some(other) => return Err(wrong(&at, other, "a string or a list of parts")),
        };
        let mut texts = Vec::with_capacity(parts.len());
        for (i, part) in parts.iter().enumerate() {
            texts.push(text(part, &format!("{at}[{i}]"))?);
        }
        Ok(match texts.len() {
            0 => "".into(),
            1 => texts.remove(0).into(),
            _ => texts
                .into_iter()
                .map(|text| json!({"type": "text", "text": text}))
                .collect(),
        })
    }
}

/// The text of a part of a content.
fn text(part: &Value, at: &str) -> Result<String> {
    let kind = part.get("type").unwrap_or(&Value::Null);
    let name = match kind.as_str() {
        Some("input_text" | "output_text" | "text" | "summary_text" | "reasoning_text") => "text",
        Some("refusal") => "refusal",
        Some(_) => {
            let what = format!(
                "{} is not supported: this server accepts only text",
                shown(kind)
            );
            return Err(ApiError::field(format!("{at}.type"), what));
        }
        None => return Err(wrong(&format!("{at}.type"), kind, "the type of a part")),
    };
    match part.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        other => {
            let other = other.unwrap_or(&Value::Null);
            Err(wrong(&format!("{at}.{name}"), other, "a string"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &Value) -> Result<Vec<Message>> {
        read(Fields::of_body(body).unwrap())
    }

    #[test]
    fn items_become_the_messages_of_chat_completions() {
        let body = json!({
            "instructions": "Be brief.",
            "input": [
                {"role": "user", "content": "How high?"},
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Look."}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                {"type": "function_call", "call_id": "c1", "name": "tide", "arguments": "{\"at\": 1}"},
                {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "ls\n"},
                {"type": "function_call_output", "call_id": "c1", "output": "low"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a"}]},
                {"type": "local_shell_call", "call_id": "c3", "action": {"command": ["ls"]}},
                {"type": "local_shell_call_output", "id": "c3", "output": "b"},
                {"type": "message", "role": "developer", "content": [
                    {"type": "input_text", "text": "And?"}, {"type": "input_text", "text": "Well?"}]},
            ],
        });
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let calls = [
            call("c1", "tide", "{\"at\": 1}"),
            call("c2", "run", "{\"input\":\"ls\\n\"}"),
        ];
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "How high?"},
            {"role": "assistant", "content": "I look.", "tool_calls": calls, "reasoning_content": "Look."},
            {"role": "tool", "content": "low", "tool_call_id": "c1"},
            {"role": "tool", "content": "a", "tool_call_id": "c2"},
            {"role": "assistant", "content": null, "tool_calls": [call("c3", "local_shell", "{\"command\":[\"ls\"]}")]},
            {"role": "tool", "content": "b", "tool_call_id": "c3"},
            {"role": "developer", "content": [{"type": "text", "text": "And?"}, {"type": "text", "text": "Well?"}]},
        ]);
        assert_eq!(json!(of(&body).unwrap()), expected);
        assert_eq!(
            json!(of(&json!({"input": "Hi"})).unwrap()),
            json!([{"role": "user", "content": "Hi"}])
        );
    }

    #[test]
    fn what_is_wrong_with_an_item_is_named() {
        let image = json!({"type": "input_image", "image_url": "x"});
        for (input, field) in [
            (Value::Null, "input"),
            (json!([]), "input"),
            (json!([3]), "input[0]"),
            (json!([{"role": "user"}]), "input[0].content"),
            (json!([{"role": "tool", "content": "x"}]), "input[0].role"),
            (
                json!([{"role": "user", "content": [image]}]),
                "input[0].content[0].type",
            ),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0]"),
            (json!([{"type": "web_search_call"}]), "input[0].type"),
            (
                json!([{"type": "function_call", "call_id": "x", "name": "f"}]),
                "input[0].arguments",
            ),
            (
                json!([{"type": "function_call_output", "output": "x"}]),
                "input[0].id",
            ),
        ] {
            let error = of(&json!({"input": input})).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{input}");
        }
    }
}
