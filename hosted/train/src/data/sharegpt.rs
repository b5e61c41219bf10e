//! ShareGPT's conversations, as LLaMA-Factory and axolotl read them.

use super::chat::{listed, tools, trained};
use super::columns::{kind, maybe_text};
use crate::row::{ChatRow, Turn};
use serde_json::{Map, Value, json};
use sluice_text::chat_template::Message;

/// The conversation of a row.
pub(super) fn row(columns: &Map<String, Value>) -> Result<ChatRow, String> {
    let names = ["conversations", "conversation"];
    let found = names.into_iter().find(|name| columns.contains_key(*name));
    let name = found.ok_or("the column conversations is missing")?;
    let mut turns = Vec::new();
    if let Some(system) = maybe_text(columns, "system")? {
        turns.push(Turn::new("system", &system));
    }
    let items = listed(&columns[name]);
    if items.is_empty() {
        return Err(format!("{name} has no messages"));
    }
    for (n, item) in items.iter().enumerate() {
        let turn = turn(item).map_err(|reason| format!("{name}[{n}] {reason}"))?;
        turns.push(turn);
    }
    Ok(ChatRow {
        turns,
        tools: tools(columns)?,
        ..ChatRow::default()
    })
}

fn turn(item: &Value) -> Result<Turn, String> {
    let Value::Object(fields) = item else {
        return Err(format!("is {}, not a message", kind(item)));
    };
    let mut fields = fields.clone();
    let Some(Value::String(from)) = fields.shift_remove("from") else {
        return Err("has no `from`".to_owned());
    };
    let Some(Value::String(value)) = fields.shift_remove("value") else {
        return Err("has no `value`".to_owned());
    };
    let role = match &*from {
        "human" | "user" => "user",
        "gpt" | "assistant" | "model" | "chatgpt" | "bing" | "bard" => "assistant",
        "system" => "system",
        "observation" | "tool" | "function" | "function_response" => "tool",
        "function_call" | "tool_call" => return call(&value),
        other => return Err(format!("is from {other:?}: {KNOWN}")),
    };
    let train = trained(&mut fields)?.unwrap_or(true);
    Ok(Turn {
        train,
        message: Message {
            role: role.to_owned(),
            content: Some(value.into()),
            extra: Map::new(),
        },
    })
}

/// Calls as messages have them, from JSON: `{"name": …, "arguments": …}`, or a list of such objects.
fn call(value: &str) -> Result<Turn, String> {
    let parsed = serde_json::from_str(value).map_err(|_| "is a call that is not JSON".to_owned());
    let calls = match parsed? {
        Value::Array(calls) => calls,
        one => vec![one],
    };
    let call = |call: &Value| {
        let name = call.get("name").and_then(Value::as_str);
        let name = name.ok_or("is a call without a name")?;
        let arguments = call.get("arguments").or_else(|| call.get("parameters"));
        let arguments = arguments.cloned().unwrap_or_else(|| json!({}));
        Ok(json!({"type": "function", "function": {"name": name, "arguments": arguments}}))
    };
    let calls = calls.iter().map(call).collect::<Result<Vec<_>, String>>()?;
    let mut message = Message::new("assistant", "");
    message.extra.insert("tool_calls".to_owned(), calls.into());
    Ok(Turn {
        message,
        train: true,
    })
}

const KNOWN: &str = "known are human, gpt, system, function_call and observation";
