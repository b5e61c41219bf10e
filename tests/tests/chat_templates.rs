//! Chat templates against Python's jinja2, and hostile templates.
//!
//! The goldens are made by `tests/tools/chat_template_goldens.py`: templates in the styles of the
//! common model families, each with several conversations.

use core::time::Duration;
use serde_json::Value;
use sluice_core::gguf::Gguf;
use sluice_jinja::{TEMPLATE_BYTES_MAX, TemplateError};
use sluice_tests::skipped;
use sluice_text::chat_template::{ChatTemplate, ChatTemplateError, Message, RenderOptions};
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/chat"))
}

fn list(case: &Value, key: &str) -> Option<Vec<Value>> {
    case.get(key).and_then(Value::as_array).cloned()
}

fn options(case: &Value, now: SystemTime) -> RenderOptions {
    let extra = case.get("extra").and_then(Value::as_object);
    RenderOptions {
        add_generation_prompt: case.get("add_generation_prompt") == Some(&Value::Bool(true)),
        bos_token: Some("<s>".into()),
        eos_token: Some("</s>".into()),
        tools: list(case, "tools"),
        documents: list(case, "documents"),
        extra: extra.cloned().unwrap_or_default(),
        now: Some(now),
    }
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
        let options = options(case, now);
        let label = format!("{name}, {}", case["name"]);
        match (
            template.render(&messages, &options),
            case["prompt"].as_str(),
        ) {
            (Ok(prompt), Some(expected)) => assert_eq!(prompt, expected, "{label}"),
            (Err(ChatTemplateError::Template(TemplateError::Raised { line, message })), None) => {
                assert_eq!(Some(&*message), case["raised"].as_str(), "{label}");
                assert!(line > 0, "{label}");
            }
            (Err(ChatTemplateError::Template(TemplateError::Render { line, .. })), None) => {
                assert_eq!(case["fails"], Value::Bool(true), "{label}");
                assert!(line > 0, "{label}");
            }
            (got, expected) => panic!("{label}: {got:?}, expected {expected:?}"),
        }
    }
}

/// Published templates are others' work and not part of the project, so they are kept elsewhere;
/// `tests/tools/chat_template_folder.py` renders them.
#[test]
fn a_folder_of_templates_is_rendered_as_by_jinja2() {
    let Some(folder) = std::env::var_os("SLUICE_TEMPLATES").map(PathBuf::from) else {
        return skipped("SLUICE_TEMPLATES names no folder of templates");
    };
    let Ok(text) = fs::read_to_string(folder.join("expected.json")) else {
        return skipped("chat_template_folder.py has not been run on the folder");
    };
    let goldens: Value = serde_json::from_str(&text).expect("it is JSON");
    let now = UNIX_EPOCH + Duration::from_secs(goldens["now"].as_u64().expect("a number"));
    let (mut equal, mut refused, mut differences) = (0, 0, Vec::new());
    for golden in goldens["templates"].as_array().expect("a list") {
        let file = golden["file"].as_str().expect("a name");
        let source = fs::read_to_string(folder.join(file)).expect("a file");
        let template = match ChatTemplate::parse(&source) {
            Ok(template) => template,
            Err(_) if golden["syntax"] == false => continue,
            Err(error) => {
                differences.push(format!("{file}: {error}"));
                continue;
            }
        };
        for case in golden["cases"].as_array().expect("a list") {
            let messages: Vec<Message> =
                serde_json::from_value(case["messages"].clone()).expect("messages");
            let got = template.render(&messages, &options(case, now));
            let expected = case["prompt"].as_str();
            let why = match (&got, expected) {
                (Ok(got), Some(expected)) if got == expected => None,
                (Err(error), None) => match (error, case["raised"].as_str()) {
                    (
                        ChatTemplateError::Template(TemplateError::Raised { message, .. }),
                        raised,
                    ) => (Some(&**message) != raised).then(|| format!("{message:?} {raised:?}")),
                    _ => None,
                },
                (Err(error), Some(_)) if error.to_string().contains("not supported") => {
                    refused += 1;
                    continue;
                }
                (Ok(got), Some(expected)) => Some(first_difference(got, expected)),
                (Ok(got), None) => Some(format!("{got:?}, jinja2 fails {}", case["raised"])),
                (Err(error), Some(_)) => Some(error.to_string()),
            };
            equal += usize::from(why.is_none());
            let name = &case["name"];
            differences.extend(why.map(|why| format!("{file}, {name}: {why}")));
        }
    }
    let told = format!("{equal} renderings are equal, {refused} refused by name\n");
    std::io::stderr()
        .write_all(told.as_bytes())
        .expect("it is open");
    let n = differences.len();
    assert!(
        n == 0,
        "{n} of {} differ:\n{}",
        equal + n,
        differences.join("\n")
    );
}

/// The first difference of two texts, with its context.
fn first_difference(got: &str, expected: &str) -> String {
    let bytes = got.bytes().zip(expected.bytes());
    let at = bytes.take_while(|(a, b)| a == b).count();
    let around = |text: &str| {
        let part = text.as_bytes()[at.saturating_sub(40)..].iter().take(100);
        String::from_utf8_lossy(&part.copied().collect::<Vec<_>>()).into_owned()
    };
    format!("{:?}, expected {:?}", around(got), around(expected))
}

/// Each of these would hang or take gigabytes without a limit; and each must be refused quickly.
const HOSTILE: [&str; 48] = [
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
    // Lists that grow, and what would never be freed.
    "{% set x = [1] %}{% for i in range(40) %}{% set _ = x.extend(x | list) %}{% endfor %}",
    "{% set x = [] %}{% set _ = x.append(x) %}",
    "{% set x = [] %}{% set _ = x.append({'a': [x]}) %}",
    "{% set x = [[]] %}{% set _ = x[0].append(x) %}",
    "{% set n = namespace(x=[]) %}{% set _ = n.x.append(n) %}",
    "{% set x = [messages] %}{% for y in [x] %}{% set _ = x.append(loop) %}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for y in [n.l] %}{% set n.l = loop %}{% endfor %}",
    "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set y = [] %}{% set _ = n.x.append(y) %}{% set n.x = y %}{% endfor %}",
    "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set y = [] %}{% set _ = y.append({1: n.x}) %}{% set n.x = y %}{% endfor %}",
    "{% set _ = messages.append(1) %}",
    "{% set _ = [].pop() %}",
];

#[test]
fn hostile_templates_are_refused() {
    let messages = [Message::new("user", "hello")];
    for source in HOSTILE {
        let start = Instant::now();
        let template = ChatTemplate::parse(source).expect("a template");
        let result = template.render(&messages, &RenderOptions::default());
        assert!(
            matches!(
                result,
                Err(ChatTemplateError::Template(TemplateError::Render {
                    line: 1,
                    ..
                }))
            ),
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
        Err(ChatTemplateError::Template(TemplateError::Syntax { line, reason })) => (line, reason),
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
    assert!(matches!(
        result,
        Err(ChatTemplateError::Template(TemplateError::TooLong { .. }))
    ));
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
            matches!(
                result,
                Err(ChatTemplateError::Template(TemplateError::Render {
                    line: 1,
                    ..
                }))
            ),
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
