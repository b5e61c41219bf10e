//! Chat templates against Python's jinja2, and hostile templates.
//!
//! The goldens are made by `tests/tools/chat_template_goldens.py`: templates in the styles of the
//! common model families, each with several conversations.

use core::time::Duration;
use serde_json::Value;
use sluice_core::gguf::Gguf;
use sluice_text::chat_template::{
    ChatTemplate, ChatTemplateError, Message, RenderOptions, TEMPLATE_BYTES_MAX,
};
use std::fs;
use std::path::PathBuf;
use std::time::{Instant, UNIX_EPOCH};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/chat"))
}

fn list(case: &Value, key: &str) -> Option<Vec<Value>> {
    case.get(key).and_then(Value::as_array).cloned()
}

#[test]
fn prompts_are_those_of_jinja2() {
    let text = fs::read_to_string(folder().join("cases.json")).expect("it is in the repository");
    let goldens: Value = serde_json::from_str(&text).expect("it is JSON");
    let now = UNIX_EPOCH + Duration::from_secs(goldens["now"].as_u64().expect("a number"));
    let cases = goldens["cases"].as_array().expect("a list");
    assert!(cases.len() > 60, "{}", cases.len());
    for case in cases {
        let name = case["template"].as_str().expect("a name");
        let source = fs::read_to_string(folder().join(format!("{name}.jinja"))).expect("a file");
        let template = ChatTemplate::parse(&source).expect("a template");
        let messages: Vec<Message> =
            serde_json::from_value(case["messages"].clone()).expect("messages");
        let options = RenderOptions {
            add_generation_prompt: case.get("add_generation_prompt") == Some(&Value::Bool(true)),
            bos_token: Some("<s>".into()),
            eos_token: Some("</s>".into()),
            tools: list(case, "tools"),
            documents: list(case, "documents"),
            extra: case
                .get("extra")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default(),
            now: Some(now),
        };
        let label = format!("{name}, {}", case["name"]);
        match (
            template.render(&messages, &options),
            case["prompt"].as_str(),
        ) {
            (Ok(prompt), Some(expected)) => assert_eq!(prompt, expected, "{label}"),
            (Err(ChatTemplateError::Raised { line, message }), None) => {
                assert_eq!(Some(&*message), case["raised"].as_str(), "{label}");
                assert!(line > 0, "{label}");
            }
            (Err(ChatTemplateError::Render { line, .. }), None) => {
                assert_eq!(case["fails"], Value::Bool(true), "{label}");
                assert!(line > 0, "{label}");
            }
            (got, expected) => panic!("{label}: {got:?}, expected {expected:?}"),
        }
    }
}

/// Each of these would hang or take gigabytes without a limit; and each must be refused quickly.
const HOSTILE: [&str; 37] = [
    "{% set l = ('A' * 180 ~ ' ') * 28000 %}{% for i in range(600) %}{% set x = l.split(' ') | sort %}{% endfor %}",
    "{% set l = range(20000) | list %}{% for i in range(600) %}{% set x = l | unique | list %}{% endfor %}",
    "{% set l = range(90000) | list %}{% for i in range(600) %}{% set x = l | max %}{% set y = l | sum %}{% endfor %}",
    "{{ 'x' | center(99999999) }}",
    "{{ [1] | batch(99999999, 0) | list }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[0]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[0]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[0]) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}",
    "{% set ns = namespace(x=[0]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "{% set ns = namespace() %}{% set ns.x = [{'a': ns}] %}{{ ns }}",
    "{{ 'x' * 1000000000 }}",
    "{{ ('x' * 99999999) | length }}",
    "{{ ((0,) * 99999999) | length }}",
    "{{ [0] * 99999999 }}",
    "{{ ['x' * 1000000] * 1000 }}",
    "{% for i in [0] * 99999999 %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}0123456789{% for j in range(100) %}0123456789{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('abc') }}",
    "{% set x = 'a' * 8000000 %}{% for i in range(99999) %}{% if x == x ~ '' %}{% endif %}{% endfor %}",
    "{% set x = 'a' * 8000000 %}{% for i in range(99999) %}{{ x | length }}{% endfor %}",
    "{% set x = 'a' * 8000000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}",
    "{% set x = 'a' * 8000000 %}{% for i in range(99999) %}{% set y = x[7999999] %}{% endfor %}",
    "{% set x = 'a' * 8000000 %}{% for i in range(99999) %}{% set y = x.upper() %}{% endfor %}",
    "{% set x = 'a' * 200000 %}{% for i in range(99999) %}{% for c in x %}{% endfor %}{% endfor %}",
    "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
    "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
    "{{ ('b' * 100000).join('a' * 100000) }}",
    "{{ ('a' * 100000) | join('b' * 100000) }}",
    "{{ ('\\n' * 100000) | indent(100000) }}",
    "{{ '{:99999999}'.format(1) }}",
    "{{ '{:{}}'.format(1, 99999999) }}",
    "{{ [1] | tojson(indent=100000000) }}",
];

#[test]
fn hostile_templates_are_refused() {
    let messages = [Message::new("user", "hello")];
    for source in HOSTILE {
        let start = Instant::now();
        let template = ChatTemplate::parse(source).expect("a template");
        let result = template.render(&messages, &RenderOptions::default());
        assert!(
            matches!(result, Err(ChatTemplateError::Render { line: 1, .. })),
            "{source}: {:?}",
            result
                .map(|text| text.len())
                .map_err(|error| error.to_string())
        );
        assert!(
            start.elapsed() < TIME_MAX,
            "{source}: {:?}",
            start.elapsed()
        );
    }
}

#[test]
fn templates_that_are_none_are_refused_with_their_line() {
    let line = |source: &str| match ChatTemplate::parse(source) {
        Err(ChatTemplateError::Syntax { line, reason }) => (line, reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(line("a\nb\n{% if x %}\nc\n").0, 4);
    assert_eq!(line("a\n{{ 1 + }}").0, 2);
    assert_eq!(line("\n{% unknown %}").0, 2);
    let deep = |text: &str, n| format!("\n{{{{ {}1 }}}}", text.repeat(n));
    for text in [
        "not ",
        "-",
        "1 + ",
        "1 ~ ",
        "1 and ",
        "a.b.c + ",
        "[",
        "(",
        "1 if 2 else ",
    ] {
        let (line, reason) = line(&deep(text, 20_000));
        assert_eq!(line, 2, "{text}: {reason}");
    }
    line(&format!(
        "{{% if 1 %}}{}{{% endif %}}",
        "{% elif 1 %}".repeat(10_000)
    ));
    line(&"{% if 1 %}".repeat(10_000));
    line(&"{% for i in [1] %}".repeat(10_000));
    let long = " ".repeat(TEMPLATE_BYTES_MAX + 1);
    let result = ChatTemplate::parse(&long);
    assert!(matches!(result, Err(ChatTemplateError::TooLong { .. })));
}

#[test]
fn other_files_are_out_of_reach() {
    for source in [
        "{% include '/etc/passwd' %}",
        "{% extends 'x' %}",
        "{% import 'x' as y %}",
        "{% from 'x' import y %}",
    ] {
        let template = ChatTemplate::parse(source).expect("a template");
        let result = template.render(&[], &RenderOptions::default());
        assert!(
            matches!(result, Err(ChatTemplateError::Render { line: 1, .. })),
            "{result:?}"
        );
    }
}

/// A very long conversation is not an attack.
#[test]
fn long_conversations_are_rendered() {
    let text = "word ".repeat(200);
    let roles = ["user", "assistant"].iter().cycle();
    let messages: Vec<_> = roles
        .take(2001)
        .map(|role| Message::new(role, &text))
        .collect();
    for name in ["chatml", "qwen_tools", "mistral", "llama3", "gemma"] {
        let source = fs::read_to_string(folder().join(format!("{name}.jinja"))).expect("a file");
        let template = ChatTemplate::parse(&source).expect("a template");
        let options = RenderOptions {
            bos_token: Some("<s>".into()),
            eos_token: Some("</s>".into()),
            ..RenderOptions::default()
        };
        let start = Instant::now();
        let prompt = template.render(&messages, &options).expect(name);
        assert!(prompt.len() > 2_000_000);
        assert!(start.elapsed() < TIME_MAX, "{name}: {:?}", start.elapsed());
    }
}

#[test]
fn templates_are_found_in_files_by_name() {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.extend(2u64.to_le_bytes());
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let entry = |key, text| [string(key), 8u32.to_le_bytes().to_vec(), string(text)].concat();
    file.extend(entry(
        "tokenizer.chat_template",
        "plain {{ messages | length }}",
    ));
    file.extend(entry("tokenizer.chat_template.tool_use", "with tools"));
    let gguf = Gguf::parse(&file, file.len() as u64).expect("a file");
    let render = |name| {
        let template = ChatTemplate::from_gguf(&gguf, name)?;
        template.render(&[], &RenderOptions::default())
    };
    assert_eq!(render(None).as_deref(), Ok("plain 0"));
    assert_eq!(render(Some("tool_use")).as_deref(), Ok("with tools"));
    let missing = render(Some("rag")).map_err(|error| error.to_string());
    assert_eq!(
        missing,
        Err("metadata key tokenizer.chat_template.rag is missing".into())
    );
}

/// A busy machine's share of what takes a second at most.
const TIME_MAX: Duration = Duration::from_secs(30);
