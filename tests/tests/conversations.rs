//! Conversations with calls through published chat templates, against Python's jinja2.
//!
//! Published templates belong to their authors, so they are kept elsewhere: `tests/tools/published_templates.py` finds
//! some, and `tests/tools/conversation_goldens.py` renders the conversations with them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::fmt::Write as _;
use core::time::Duration;
use serde_json::Value;
use sluice_core::gguf::Gguf;
use sluice_core::tokenizer::{Tokenizer, plan};
use sluice_tests::{fixture, measured, skipped};
use sluice_text::chat::PromptMaker;
use sluice_text::chat_template::{ChatTemplate, Message, RenderOptions};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// A conversation is rendered if the template renders it in any form. What was said is in the prompt. Where jinja2
/// renders it unchanged and loses nothing, the prompt has the same bytes, except where tools are described in a format
/// of our own, because answers in the template's are not parsed.
#[test]
fn a_second_turn_is_rendered_by_published_templates() {
    let Some(folder) = std::env::var_os("SLUICE_TEMPLATES").map(PathBuf::from) else {
        return skipped("SLUICE_TEMPLATES names no folder of templates");
    };
    let Ok(text) = fs::read_to_string(folder.join("conversations.json")) else {
        return skipped("conversation_goldens.py has not been run on the folder");
    };
    let goldens: Value = serde_json::from_str(&text).unwrap();
    let talks = goldens["talks"].as_array().unwrap();
    let mut report = Report::default();
    let templates = goldens["templates"].as_array().unwrap();
    for template in templates {
        let file = template["file"].as_str().unwrap();
        let source = fs::read_to_string(folder.join(file)).unwrap();
        let maker = maker(&source);
        for (talk, case) in talks.iter().zip(template["cases"].as_array().unwrap()) {
            let label = format!("{file}, {}", talk["name"].as_str().unwrap());
            let now = UNIX_EPOCH + Duration::from_secs(goldens["now"].as_u64().unwrap());
            report.check(&maker, &label, talk, case, now);
        }
    }
    let Report {
        equal,
        with_tools,
        described,
        rewritten,
        refused,
        wrong,
    } = report;
    let n = wrong.len();
    measured(&format!(
        "{equal} prompts are jinja2's, {with_tools} of them with tools, {rewritten} rewritten, {refused} refused, {n} wrong"
    ));
    measured(&format!("tools in a format of ours: {described:?}"));
    // In other folders other templates may be, and fewer.
    if templates.len() == PUBLISHED {
        assert!(equal > 5500 && with_tools > 2300, "{equal}, {with_tools}");
        assert!(described.len() <= DESCRIBED_MAX, "{described:?}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[derive(Default)]
struct Report {
    equal: usize,
    /// Of these.
    with_tools: usize,
    /// The templates that describe tools in a format that answers are not parsed in.
    described: BTreeSet<String>,
    rewritten: usize,
    refused: usize,
    wrong: Vec<String>,
}

impl Report {
    fn check(
        &mut self,
        maker: &PromptMaker,
        label: &str,
        talk: &Value,
        case: &Value,
        now: SystemTime,
    ) {
        let sent: Vec<Message> = serde_json::from_value(talk["messages"].clone()).unwrap();
        let with_objects: Vec<Message> = sent.iter().cloned().map(with_objects).collect();
        let tools = talk.get("tools").and_then(Value::as_array).cloned();
        let describes = tools.is_some() && !maker.writes_tools();
        let options = RenderOptions {
            add_generation_prompt: true,
            bos_token: Some("<s>".into()),
            eos_token: Some("</s>".into()),
            tools,
            now: Some(now),
            ..RenderOptions::default()
        };
        let golden = |key: &str| case[key].as_str();
        for (messages, is_text) in [(&sent, true), (&with_objects, false)] {
            let prompt = match maker.text(messages, &options) {
                Ok(prompt) => prompt,
                Err(error) if case["possible"] == true => {
                    self.wrong.push(format!("{label}: {error}"));
                    continue;
                }
                Err(_) => {
                    self.refused += 1;
                    continue;
                }
            };
            let missing = missing(&sent, &prompt, true);
            if !missing.is_empty() {
                self.wrong
                    .push(format!("{label}: {missing} missing in {prompt:?}"));
                continue;
            }
            let nones = |text: &str| text.matches("None").count();
            let whole = |text: &&str| {
                self::missing(&sent, text, false).is_empty() && nones(text) <= nones(&prompt)
            };
            let (own, objects) = (
                golden("prompt").filter(whole),
                golden("objects").filter(whole),
            );
            // A template may print an object in its own notation; then a text becomes one.
            let expected = match is_text {
                true => own.or(objects).into_iter().chain(objects),
                false => objects.or(own).into_iter().chain(None),
            };
            let expected: Vec<_> = expected.collect();
            let has_tool = |text: &&str| text.contains("Reads a gauge");
            if describes && expected.iter().any(has_tool) {
                let file = label.split(',').next().unwrap();
                self.described.insert(file.to_owned());
            }
            if expected.is_empty() || describes {
                self.rewritten += 1;
            } else if expected.contains(&&*prompt) {
                self.equal += 1;
                self.with_tools += usize::from(has_tool(&&*prompt));
            } else {
                let expected = expected[0];
                self.wrong
                    .push(format!("{label}: {prompt:?}, jinja2 {expected:?}"));
            }
        }
    }
}

/// What was said and is not in the prompt: names and arguments of calls, and the texts of messages. Some templates print
/// the system message with the last one, and only if that is the user's: `may_lose_system`.
fn missing(messages: &[Message], prompt: &str, may_lose_system: bool) -> String {
    let mut missing = String::new();
    // One template escapes all characters that are not ASCII.
    let prompt = &prompt.replace("\\u00f8", "ø");
    let has_calls = messages
        .iter()
        .any(|message| message.extra.get("tool_calls").is_some_and(Value::is_array));
    let mut want = |text: &str| {
        if !prompt.contains(text) {
            write!(missing, "{text:?} ").unwrap();
        }
    };
    for message in messages {
        if may_lose_system && has_calls && matches!(&*message.role, "system" | "developer") {
            continue;
        }
        let calls = message.extra.get("tool_calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            want(call["function"]["name"].as_str().unwrap());
            let arguments = call["function"]["arguments"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            for (key, value) in arguments.as_object().unwrap() {
                want(key);
                want(value.as_str().unwrap_or(&value.to_string()));
            }
        }
        match &message.content {
            // A template may leave out what was said before a call.
            Some(Value::String(text)) if calls.is_none() => want(text),
            Some(Value::Array(parts)) => parts
                .iter()
                .for_each(|part| want(part["text"].as_str().unwrap().trim())),
            _ => {}
        }
    }
    if prompt.contains("\\\"harbour") || prompt.contains("'text'") || prompt.contains("\"text\"") {
        missing.push_str("what is not quoted ");
    }
    missing
}

/// Templates that `published_templates.py` finds, and those whose formats are not known.
const PUBLISHED: usize = 178;
const DESCRIBED_MAX: usize = 18;

fn with_objects(mut message: Message) -> Message {
    let calls = message
        .extra
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let arguments = &mut call["function"]["arguments"];
        *arguments = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
    }
    message
}

fn maker(source: &str) -> PromptMaker {
    let file = fs::read(fixture("tokenizer/spm.gguf")).unwrap();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let mut words = vec![0; plan(&gguf).unwrap().words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).unwrap();
    PromptMaker::new(ChatTemplate::parse(source).unwrap(), &tokenizer)
}
