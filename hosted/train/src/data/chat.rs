//! Conversations in rows: lists of messages as in the OpenAI API and in TRL.

use super::columns::{kind, text};
use crate::row::{ChatRow, Row, Turn};
use serde_json::{Map, Value};
use sluice_text::chat_template::Message;

/// The items of a list, which tables of text have as JSON.
pub(super) fn listed(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items.clone(),
        Value::String(json) => serde_json::from_str(json).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// The messages of a column.
pub(super) fn turns(columns: &Map<String, Value>, name: &str) -> Result<Vec<Turn>, String> {
    let value = columns.get(name);
    let value = value.ok_or_else(|| text(columns, name).err().unwrap_or_default())?;
    let is_list = value.is_array() || value.as_str().is_some_and(|text| text.starts_with('['));
    if !is_list {
        return Err(format!("{name} is {}, not a list of messages", kind(value)));
    }
    let items = listed(value);
    if items.is_empty() {
        return Err(format!("{name} has no messages"));
    }
    let turns = items.iter().enumerate();
    turns
        .map(|(n, item)| turn(item).map_err(|reason| format!("{name}[{n}] {reason}")))
        .collect()
}

fn turn(item: &Value) -> Result<Turn, String> {
    let Value::Object(fields) = item else {
        return Err(format!("is {}, not a message", kind(item)));
    };
    // Tables give every message all of the fields, and null to those that it does not have.
    let mut fields = fields.clone();
    let content = fields.shift_remove("content");
    fields.retain(|_, field| !field.is_null());
    let role = match fields.shift_remove("role") {
        Some(Value::String(role)) => role,
        Some(other) => return Err(format!("has a role that is {}, not a text", kind(&other))),
        None => return Err("has no role".to_owned()),
    };
    let train = trained(&mut fields)?;
    match &content {
        Some(Value::Number(_) | Value::Bool(_) | Value::Object(_)) => {
            let kind = content.as_ref().map_or("", kind);
            return Err(format!("has content that is {kind}, not a text"));
        }
        None | Some(Value::Null) if !fields.contains_key("tool_calls") => {
            return Err("has no content".to_owned());
        }
        _ => {}
    }
    if train.is_some() && role != "assistant" {
        return Err(format!(
            "has a mark whether it is learned, and the role {role}: only the assistant's messages are"
        ));
    }
    Ok(Turn {
        train: train.unwrap_or(true),
        message: Message {
            role,
            content,
            extra: fields,
        },
    })
}

/// Whether a message is learned, as it says itself: `train` or `training`, or OpenAI's `weight`.
pub(super) fn trained(fields: &mut Map<String, Value>) -> Result<Option<bool>, String> {
    let mut train = None;
    for name in ["train", "training", "weight"] {
        let Some(value) = fields.shift_remove(name) else {
            continue;
        };
        train = match (name, &value) {
            (_, Value::Bool(train)) => Some(*train),
            (_, Value::Number(number)) if number.as_f64() == Some(0.0) => Some(false),
            (_, Value::Number(number)) if number.as_f64() == Some(1.0) => Some(true),
            _ => return Err(format!("has {name}: {value}, expected true, false, 1 or 0")),
        };
    }
    Ok(train)
}

/// A conversation with the row's tools and variables.
pub(super) fn row(
    columns: &Map<String, Value>,
    turns: Vec<Turn>,
    completion_from: usize,
) -> Result<ChatRow, String> {
    let kwargs = match columns.get("chat_template_kwargs") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(other) => {
            return Err(format!(
                "chat_template_kwargs is {}, not an object",
                kind(other)
            ));
        }
    };
    Ok(ChatRow {
        turns,
        tools: tools(columns)?,
        kwargs,
        completion_from,
    })
}

/// The functions that a row's model may call.
pub(super) fn tools(columns: &Map<String, Value>) -> Result<Option<Vec<Value>>, String> {
    match columns.get("tools") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::Array(tools)) => Ok(Some(tools.clone()).filter(|tools| !tools.is_empty())),
        Some(Value::String(json)) => match serde_json::from_str(json) {
            Ok(Value::Array(tools)) => Ok(Some(tools).filter(|tools| !tools.is_empty())),
            _ => Err("tools is a text that is not a list in JSON".to_owned()),
        },
        Some(other) => Err(format!("tools is {}, not a list", kind(other))),
    }
}

/// A prompt and a completion, as texts, or as messages if one of them is a list.
pub(super) fn prompted(
    columns: &Map<String, Value>,
    prompt: &str,
    completion: &str,
) -> Result<Row, String> {
    let is_list = |name: &str| columns.get(name).is_some_and(Value::is_array);
    if !is_list(prompt) && !is_list(completion) {
        return Ok(Row::Completion {
            prompt: text(columns, prompt)?,
            completion: text(columns, completion)?,
        });
    }
    let side = |name: &str, role: &str| match is_list(name) {
        true => turns(columns, name),
        false => Ok(vec![Turn::new(role, &text(columns, name)?)]),
    };
    let mut all = side(prompt, "user")?;
    let from = all.len();
    all.extend(side(completion, "assistant")?);
    Ok(Row::Chat(row(columns, all, from)?))
}

/// The prompt and the chosen completion. Without a prompt, it is what both completions begin with.
pub(super) fn preferred(columns: &Map<String, Value>) -> Result<Row, String> {
    if columns
        .get("prompt")
        .is_some_and(|prompt| !prompt.is_null())
    {
        return prompted(columns, "prompt", "chosen");
    }
    if columns.get("chosen").is_some_and(Value::is_array) {
        let (chosen, rejected) = (turns(columns, "chosen")?, turns(columns, "rejected")?);
        let shared = chosen
            .iter()
            .zip(&rejected)
            .take_while(|(a, b)| a == b)
            .count();
        return Ok(Row::Chat(row(columns, chosen, shared)?));
    }
    let (chosen, rejected) = (text(columns, "chosen")?, text(columns, "rejected")?);
    let pairs = chosen.char_indices().zip(rejected.chars());
    let shared = pairs.take_while(|((_, a), b)| a == b).last();
    let shared = shared.map_or(0, |((at, c), _)| at + c.len_utf8());
    // A word belongs to one side.
    let space = chosen[..shared].rfind(char::is_whitespace);
    let (prompt, completion) = chosen.split_at(space.unwrap_or(0));
    Ok(Row::Completion {
        prompt: prompt.to_owned(),
        completion: completion.to_owned(),
    })
}
