//! Contents in parts, contents that are null, and the roles of system messages.

use super::takes::{Takes, list_text, part};
use crate::chat_template::Message;
use serde_json::Value;

/// Adds `text` to the system message at the beginning, or makes one.
pub(super) fn instruct(messages: &mut Vec<Message>, text: &str) {
    match messages.first_mut().filter(|first| is_system(first)) {
        Some(first) => append(first, text),
        None => messages.insert(0, Message::new("system", text)),
    }
}

pub(super) fn fit(messages: &mut Vec<Message>, takes: &Takes) {
    for message in messages.iter_mut() {
        if message.role == "developer" && !takes.knows("developer") {
            message.role = "system".into();
        }
        if let Some(Value::Array(parts)) = &mut message.content {
            parts.iter_mut().for_each(name_text);
            if parts.is_empty() || !takes.lists(&message.role) {
                message.content = Some(joined(parts, &takes.joint).into());
            }
        }
        let has_calls = message.extra.contains_key("tool_calls");
        if message.content == Some(Value::Null) && !has_calls && !takes.null {
            message.content = Some("".into());
        }
    }
    merge_systems(messages, takes);
    if takes.only_lists {
        messages.iter_mut().for_each(list_text);
    }
}

/// Other names for parts of text; templates know `text`.
fn name_text(part: &mut Value) {
    let kind = part.get("type").and_then(Value::as_str);
    if let Some("input_text" | "output_text" | "refusal") = kind {
        let text = part.get("text").or_else(|| part.get("refusal"));
        *part = self::part(text.and_then(Value::as_str).unwrap_or_default());
    }
}

/// The text of a content.
pub(super) fn text(content: Option<&Value>, joint: &str) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => joined(parts, joint),
        _ => String::new(),
    }
}

fn joined(parts: &[Value], joint: &str) -> String {
    let texts = parts
        .iter()
        .map(|part| part.as_str().or_else(|| part.get("text")?.as_str()));
    let texts: Vec<&str> = texts.flatten().collect();
    texts.join(joint)
}

/// Merges system messages that the template does not take into the user's message after them. Those at the beginning
/// are one message, if the template takes only that.
fn merge_systems(messages: &mut Vec<Message>, takes: &Takes) {
    let takes_first = takes.knows("system");
    if takes_first && takes.late_system {
        return;
    }
    let mut texts: Vec<String> = Vec::new();
    let mut fitted: Vec<Message> = Vec::with_capacity(messages.len());
    for mut message in messages.drain(..) {
        if message.role == "system" {
            match fitted.as_mut_slice() {
                [] if takes_first => fitted.push(message),
                [first] if is_system(first) => {
                    append(first, &text(message.content.as_ref(), &takes.joint))
                }
                _ => texts.push(text(message.content.as_ref(), &takes.joint)),
            }
            continue;
        }
        if message.role == "user" && !texts.is_empty() {
            prepend(&mut message, &texts.join(BLANK_LINE));
            texts.clear();
        }
        fitted.push(message);
    }
    if !texts.is_empty() {
        fitted.push(Message::new("user", &texts.join(BLANK_LINE)));
    }
    *messages = fitted;
}

fn is_system(message: &Message) -> bool {
    matches!(&*message.role, "system" | "developer")
}

/// Adds a paragraph.
pub(super) fn append(message: &mut Message, text: &str) {
    match &mut message.content {
        Some(Value::Array(parts)) => parts.push(part(&format!("{BLANK_LINE}{text}"))),
        Some(Value::String(before)) if !before.is_empty() => {
            *before = format!("{before}{BLANK_LINE}{text}")
        }
        other => *other = Some(text.into()),
    }
}

/// Adds a paragraph before.
pub(super) fn prepend(message: &mut Message, text: &str) {
    match &mut message.content {
        Some(Value::Array(parts)) => parts.insert(0, part(&format!("{text}{BLANK_LINE}"))),
        Some(Value::String(behind)) if !behind.is_empty() => {
            *behind = format!("{text}{BLANK_LINE}{behind}")
        }
        other => *other = Some(text.into()),
    }
}

const BLANK_LINE: &str = "\n\n";
