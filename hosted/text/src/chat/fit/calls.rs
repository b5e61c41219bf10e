//! Calls and their results in the forms that a template takes, or as text.

use super::contents::{append, prepend, text};
use super::takes::{ArgumentsForm, CONTENTS, CallForm, ContentForm, Takes};
use crate::assistant::Dialect;
use crate::chat_template::Message;
use core::mem::take;
use serde::Serialize as _;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value};
use std::io::{self, Write};

/// Rewrites calls and results; `as_text` if a system message asks for calls in `dialect`, which the template does not
/// write.
pub(super) fn fit(messages: &mut Vec<Message>, takes: &Takes, dialect: &Dialect, as_text: bool) {
    let mut rest = take(messages).into_iter().peekable();
    while let Some(mut message) = rest.next() {
        let calls = calls_of(&mut message);
        let mut results = Vec::new();
        while !calls.is_empty() && rest.peek().is_some_and(|next| next.role == "tool") {
            results.extend(rest.next());
        }
        if takes.named_results {
            results.iter_mut().for_each(|result| name(result, &calls));
        }
        if calls.is_empty() {
            messages.push(message);
        } else if let Some(form) = form_for(&message, &calls, takes).filter(|_| !as_text) {
            in_form(
                messages,
                Turn {
                    message,
                    calls,
                    results,
                },
                form,
                takes,
            );
        } else {
            write_calls(&mut message, &calls, dialect, takes);
            messages.push(message);
            if takes.knows("tool") {
                messages.extend(results);
            } else if !results.is_empty() {
                let shown = results.iter().map(|result| {
                    dialect.result_text(&text(result.content.as_ref(), &takes.joint))
                });
                let shown = shown.collect::<Vec<_>>().join("\n");
                // Some templates take no two messages of the user in a row.
                match rest.next_if(|next| next.role == "user") {
                    Some(mut next) => {
                        prepend(&mut next, &shown);
                        messages.push(next);
                    }
                    None => messages.push(Message::new("user", &shown)),
                }
            }
        }
    }
    if takes.short_ids {
        messages.iter_mut().for_each(shorten_ids);
    }
}

/// A message with calls, and their results.
struct Turn {
    message: Message,
    calls: Vec<Value>,
    results: Vec<Message>,
}

/// Takes the calls out of a message. Clients also send null, or an empty list.
fn calls_of(message: &mut Message) -> Vec<Value> {
    match message.extra.get_mut("tool_calls") {
        Some(Value::Array(calls)) if !calls.is_empty() => {
            let calls = take(calls);
            message.extra.shift_remove("tool_calls");
            calls
        }
        Some(Value::Null | Value::Array(_)) => {
            message.extra.shift_remove("tool_calls");
            Vec::new()
        }
        _ => Vec::new(),
    }
}

/// The form that is closest to the message's own.
fn form_for(message: &Message, calls: &[Value], takes: &Takes) -> Option<CallForm> {
    let own = match &message.content {
        None => ContentForm::Absent,
        Some(Value::Null) => ContentForm::Null,
        content if text(content.as_ref(), "").is_empty() => ContentForm::Empty,
        Some(_) => ContentForm::Text,
    };
    let contents = [own]
        .into_iter()
        .chain(CONTENTS.into_iter().filter(|_| own != ContentForm::Text));
    let contents = contents.filter(|form| own == ContentForm::Text || *form != ContentForm::Text);
    let is_text = |call: &Value| arguments_of(call).is_some_and(Value::is_string);
    let arguments = match calls.iter().any(is_text) && takes.keeps_texts {
        true => [ArgumentsForm::Text, ArgumentsForm::Object],
        false => [ArgumentsForm::Object, ArgumentsForm::Text],
    };
    let forms = arguments.into_iter().flat_map(|arguments| {
        contents
            .clone()
            .map(move |content| CallForm { content, arguments })
    });
    forms.into_iter().find(|form| takes.calls.contains(form))
}

fn in_form(messages: &mut Vec<Message>, turn: Turn, form: CallForm, takes: &Takes) {
    let Turn {
        mut message,
        mut calls,
        mut results,
    } = turn;
    match form.content {
        ContentForm::Null => message.content = Some(Value::Null),
        ContentForm::Empty => message.content = Some("".into()),
        ContentForm::Absent => message.content = None,
        ContentForm::Text => {}
    }
    for call in &mut calls {
        if let Some(arguments) = call.pointer_mut("/function/arguments") {
            set_form(arguments, form.arguments);
        }
    }
    let list = |calls: Vec<Value>| Value::Array(calls);
    if takes.several_calls || calls.len() == 1 {
        message.extra.insert("tool_calls".into(), list(calls));
        messages.push(message);
        return messages.append(&mut results);
    }
    // One by one, each with its result.
    for (n, call) in calls.into_iter().enumerate() {
        let id = call.get("id").cloned();
        let mut one = message.clone();
        if n > 0 && form.content == ContentForm::Text {
            one.content = Some("".into());
        }
        one.extra.insert("tool_calls".into(), list(vec![call]));
        messages.push(one);
        let of_call = |result: &Message| result.extra.get("tool_call_id") == id.as_ref();
        messages.extend(results.extract_if(.., |result| of_call(result)));
    }
    messages.append(&mut results);
}

/// Adds the name of the function that a result is of.
fn name(result: &mut Message, calls: &[Value]) {
    let id = result.extra.get("tool_call_id");
    let call = calls.iter().find(|call| call.get("id") == id);
    let name = call
        .and_then(|call| call.pointer("/function/name"))
        .cloned();
    if let Some(name) = name {
        result.extra.entry("name").or_insert(name);
    }
}

fn arguments_of(call: &Value) -> Option<&Value> {
    call.pointer("/function/arguments")
}

/// Text that is not an object's JSON stays: the template decides.
fn set_form(arguments: &mut Value, form: ArgumentsForm) {
    match (form, &*arguments) {
        (ArgumentsForm::Object, Value::String(text)) if text.trim().is_empty() => {
            *arguments = Map::new().into();
        }
        (ArgumentsForm::Object, Value::String(text)) => {
            if let Ok(object @ Value::Object(_)) = serde_json::from_str(text) {
                *arguments = object;
            }
        }
        (ArgumentsForm::Text, value) if !value.is_string() => *arguments = json_text(value).into(),
        _ => {}
    }
}

/// Writes calls after the content.
fn write_calls(message: &mut Message, calls: &[Value], dialect: &Dialect, takes: &Takes) {
    let written = calls.iter().map(|call| {
        let function = call.get("function").unwrap_or(call);
        let name = function
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let arguments = match function.get("arguments") {
            Some(Value::String(text)) if !text.trim().is_empty() => text.clone(),
            Some(value @ Value::Object(_)) => json_text(value),
            _ => "{}".to_owned(),
        };
        dialect.call_text(name, &arguments)
    });
    let written = written.collect::<Vec<_>>().join("\n");
    let said = text(message.content.as_ref(), &takes.joint);
    message.content = Some(said.into());
    append(message, &written);
}

/// Mistral's templates refuse other ids than nine letters and digits.
fn shorten_ids(message: &mut Message) {
    let calls = message
        .extra
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut);
    let of_calls = calls
        .into_iter()
        .flatten()
        .filter_map(|call| call.get_mut("id"));
    of_calls.for_each(shorten);
    message
        .extra
        .get_mut("tool_call_id")
        .into_iter()
        .for_each(shorten);
}

fn shorten(id: &mut Value) {
    let text = id.as_str().unwrap_or_default();
    if text.len() == SHORT_ID_LEN && text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return;
    }
    // FNV-1a: equal ids stay equal, and different ones different.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    *id = format!("{hash:016x}")[16 - SHORT_ID_LEN..].into();
}

/// JSON as Python writes it, which is how models have seen it.
fn json_text(value: &Value) -> String {
    let mut text = Vec::new();
    // Neither writing to a list of bytes nor a JSON value can fail.
    let _infallible = value.serialize(&mut Serializer::with_formatter(&mut text, Spaced));
    String::from_utf8(text).unwrap_or_default()
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

const SHORT_ID_LEN: usize = 9;
