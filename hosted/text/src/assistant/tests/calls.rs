//! Text written under a grammar of calls is parsed as calls.

use super::answers;
use super::written::{CALLS, N_OLDER};
use crate::assistant::{
    AnswerParser, Delta, Dialect, ParserOptions, ReasoningState, Tool, ToolChoice,
};
use crate::grammar::Grammar;
use crate::test_vocabulary::{MARKS, Random, with_tokenizer};
use core::time::Duration;
use serde_json::{Value, json};
use sluice_core::tokenizer::Tokenizer;
use std::time::Instant;

pub(super) const DIALECTS: [&str; 26] = [
    "hermes",
    "qwen3-coder",
    "llama3",
    "mistral",
    "mistral-args",
    "gemma",
    "deepseek-v3",
    "deepseek-v3.1",
    "harmony",
    "command-r",
    "generic",
    "seed-oss",
    "minimax-m2",
    "deepseek-v3.2",
    "deepseek-v4",
    "minicpm5",
    "glm",
    "kimi-k2",
    "functionary-v3.1",
    "minimax-m1",
    "tool-calls",
    "nemotron-v2",
    "apertus",
    "granite-3",
    "gigachat3.1",
    "gemma4",
];

pub(super) fn tools() -> Vec<Tool> {
    let tools = json!([
        {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object",
            "properties": {
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
                "exact": {"type": "boolean"}
            },
            "required": ["days", "unit"]
        }}},
        {"type": "function", "function": {"name": "weather_at", "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "id": {"type": "integer", "minimum": 9_007_199_254_740_993_u64, "maximum": 9_007_199_254_740_999_u64}
            },
            "required": ["city", "id"]
        }}},
        {"type": "function", "function": {"name": "clock"}},
        {"type": "function", "function": {"name": "find", "parameters": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "pattern": "^[a-z]{2}[0-9]$"},
                "word": {"type": "string", "pattern": "o", "minLength": 3, "maxLength": 9}
            },
            "required": ["code", "word"]
        }}},
        {"type": "function", "function": {"name": "seek", "parameters": {
            "type": "object",
            "properties": {
                "place": {"$ref": "#/$defs/place"},
                "id": {"type": "integer", "minimum": 9_007_199_254_740_993_u64, "maximum": 9_007_199_254_740_999_u64}
            },
            "required": ["place"],
            "$defs": {"place": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 3}}
        }}}
    ]);
    Tool::all_of(&tools).expect("well formed")
}

/// Whether a call has the arguments that its tool requires.
pub(super) fn is_valid(name: &str, arguments: &Value) -> bool {
    let Some(arguments) = arguments.as_object() else {
        return false;
    };
    let within = |key: &str, least: u64, most: u64| {
        let value = arguments.get(key).and_then(Value::as_u64);
        value.is_some_and(|value| (least..=most).contains(&value))
    };
    let is_id = within("id", 9_007_199_254_740_993, 9_007_199_254_740_999);
    match name {
        "weather" => {
            let unit = arguments.get("unit").and_then(Value::as_str);
            let exact = arguments.get("exact");
            within("days", 1, 14)
                && unit.is_some_and(|unit| ["celsius", "kelvin"].contains(&unit))
                && exact.is_none_or(Value::is_boolean)
                && arguments.len() == 2 + usize::from(exact.is_some())
        }
        "weather_at" => {
            let city = arguments.get("city").and_then(Value::as_str);
            is_id && city.is_some_and(|city| city.chars().count() <= 12) && arguments.len() == 2
        }
        "find" => {
            let text = |key: &str| arguments.get(key).and_then(Value::as_str);
            let is_code = |code: &str| {
                let bytes = code.as_bytes();
                code.len() == 3
                    && bytes[..2].iter().all(u8::is_ascii_lowercase)
                    && bytes[2].is_ascii_digit()
            };
            let is_word =
                |word: &str| word.contains('o') && (3..=9).contains(&word.chars().count());
            text("code").is_some_and(is_code) && text("word").is_some_and(is_word)
        }
        "clock" => arguments.is_empty(),
        "seek" => {
            let place = arguments.get("place").and_then(Value::as_array);
            let id = arguments.contains_key("id");
            place.is_some_and(|place| {
                (1..=3).contains(&place.len()) && place.iter().all(|item| *item == 1 || *item == 2)
            }) && (!id || is_id)
        }
        _ => false,
    }
}

/// The text of random tokens that the grammar allows, with control tokens as their names; `None` if it
/// is too long.
pub(super) fn sampled(
    dialect: &str,
    grammar: &mut Grammar,
    tokenizer: &Tokenizer<'_>,
    random: &mut Random,
) -> Option<String> {
    let closing = closing(dialect);
    grammar.restart();
    let mut piece = vec![0; tokenizer.piece_len_max()];
    let mut text = Vec::new();
    for _ in 0..2000 {
        if grammar.is_complete() {
            return Some(String::from_utf8(text).expect("whole characters"));
        }
        let mask = grammar.mask().expect("within the bounds").to_vec();
        let is_in = |id: &u32| (mask[*id as usize / 64] >> (id % 64)) & 1 == 1;
        let mut allowed: Vec<u32> = (0..tokenizer.n_vocab()).filter(is_in).collect();
        // Steer free texts towards their end.
        let known = closing.map(|mark| overlap(&text, mark.as_bytes()));
        let most = known.into_iter().max().unwrap_or(0);
        let rests = closing.iter().zip(known).filter(|(_, n)| *n == most);
        let rests: Vec<&[u8]> = rests.map(|(mark, n)| &mark.as_bytes()[n..]).collect();
        let closes = |id: &u32| {
            let piece = tokenizer.piece(*id);
            tokenizer.is_control(*id) || rests.iter().any(|rest| rest.starts_with(piece))
        };
        if random.below(8) > 0 && allowed.iter().any(closes) {
            allowed.retain(closes);
        }
        let id = allowed[random.below(allowed.len())];
        if tokenizer.is_end_of_generation(id) && grammar.may_end() {
            return Some(String::from_utf8(text).expect("whole characters"));
        }
        grammar.accept(id).expect("it was allowed");
        text.extend_from_slice(tokenizer.decode_piece(id, &mut piece).expect("known"));
    }
    None
}

/// The length of the end of `text` that is an incomplete beginning of the mark.
fn overlap(text: &[u8], mark: &[u8]) -> usize {
    let n = (1..mark.len()).rev().find(|n| text.ends_with(&mark[..*n]));
    n.unwrap_or(0)
}

/// What ends free texts.
fn closing(dialect: &str) -> [&'static str; 6] {
    let (thought, value) = match dialect {
        "seed-oss" => ("</seed:think>", "</parameter>"),
        "apertus" => ("<|inner_suffix|>", "\""),
        "glm" => ("</think>", "</arg_value>"),
        "gemma4" => ("<channel|>", "<|\"|>"),
        "minicpm5" => ("</think>", "</param>"),
        "deepseek-v3.2" | "deepseek-v4" => ("</think>", "</｜DSML｜parameter>"),
        _ => ("</think>", "</parameter>"),
    };
    let others = ["[/THINK]", "<|end|>", "<|END_THINKING|>"];
    [thought, others[0], others[1], others[2], value, "\""]
}

pub(super) type Calls = Vec<(String, String)>;

pub(super) fn read(
    dialect: &Dialect,
    answer: &str,
    prompt_end: &str,
    parallel: bool,
) -> (String, Calls) {
    let tools = tools();
    let options = ParserOptions {
        prompt_end,
        tools: &tools,
        parallel,
        split_reasoning: true,
        ..ParserOptions::default()
    };
    let (mut content, mut calls) = (String::new(), Calls::new());
    let mut take = |delta| match delta {
        Delta::Content(text) => content += &text,
        Delta::Reasoning(_) => {}
        Delta::CallBegin { name, .. } => calls.push((name, String::new())),
        Delta::CallArguments { index, text } => calls[index].1 += &text,
    };
    let mut parser = AnswerParser::new(dialect, &options);
    parser.push(answer, &mut take);
    parser.finish(false, &mut take);
    (content, calls)
}

#[test]
fn a_past_call_reads_as_the_call_it_was() {
    let arguments = "{\"days\": 3, \"unit\": \"kelvin\"}";
    for name in DIALECTS {
        let dialect = Dialect::from_name(name).expect("known");
        let text = dialect.call_text("weather", arguments);
        let (content, calls) = read(&dialect, &text, "", true);
        assert_eq!(content, "", "{name}: {text}");
        assert_eq!(
            calls,
            [("weather".to_owned(), arguments.to_owned())],
            "{name}: {text}"
        );
    }
}

/// Wherever two calls are cut off, no part of them is content, streamed or whole.
#[test]
fn a_cut_call_never_becomes_content() {
    let tools = tools();
    for name in DIALECTS {
        let dialect = Dialect::from_name(name).expect("known");
        let one = dialect.call_text("weather", "{\"days\": 3, \"unit\": \"kelvin\"}");
        let text = format!(
            "{one}\n{}",
            dialect.call_text("find", "{\"code\": \"ab1\", \"word\": \"food\"}")
        );
        let text = if name == "harmony" { one } else { text };
        for end in (1..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            for stream_arguments in [false, true] {
                let options = ParserOptions {
                    tools: &tools,
                    parallel: true,
                    split_reasoning: true,
                    stream_arguments,
                    ..ParserOptions::default()
                };
                let mut content = String::new();
                let mut take = |delta| {
                    if let Delta::Content(text) = delta {
                        content += &text;
                    }
                };
                let mut parser = AnswerParser::new(&dialect, &options);
                let cut = &text[..end];
                cut.chars()
                    .for_each(|c| parser.push(c.encode_utf8(&mut [0; 4]), &mut take));
                parser.finish(true, &mut take);
                assert_eq!(content.trim(), "", "{name}: {cut:?}");
            }
        }
    }
}

/// JSON that names none of the tools is an answer; a text that the model ended is whole.
#[test]
fn an_answer_in_json_is_content_where_calls_have_no_mark() {
    let dialect = Dialect::from_name("llama3").expect("known");
    let bob = "{\"name\": \"Bob\", \"age\": 7}";
    assert_eq!(
        read(&dialect, bob, "", true),
        (bob.to_owned(), Calls::new())
    );
    let hermes = Dialect::from_name("hermes").expect("known");
    assert_eq!(read(&hermes, "if a <", "", true).0, "if a <");
}

/// Models without a grammar have seen what templates write, so that a grammar must not ask for anything else.
#[test]
fn a_grammar_takes_what_templates_write() {
    with_tokenizer(&[], |tokenizer| {
        for (name, one, two) in CALLS.into_iter().skip(N_OLDER) {
            let dialect = Dialect::from_name(name).expect("known");
            let made = dialect.call_grammar(
                &answers::tools(),
                &ToolChoice::Required,
                true,
                ReasoningState::NotBegun,
            );
            let mut grammar = Grammar::new(&made.expect("calls").source, tokenizer).expect(name);
            for text in [one, two] {
                grammar.restart();
                let is_taken = grammar.accept_bytes(text.as_bytes());
                assert!(is_taken && grammar.may_end(), "{name}: {text}");
            }
        }
    });
}

/// Templates write an empty block of reasoning where the model should not reason.
#[test]
fn reasoning_that_a_prompt_has_ended_does_not_begin_again() {
    with_tokenizer(&[], |tokenizer| {
        for name in DIALECTS.into_iter().filter(|name| *name != "harmony") {
            let dialect = Dialect::from_name(name).expect("known");
            let (open, close) = dialect.reasoning_marks().expect("it reasons");
            for (end, state, may_begin) in [
                (
                    "assistant\n".to_owned(),
                    ReasoningState::NotBegun,
                    Some(true),
                ),
                (format!("{open}\n"), ReasoningState::Open, None),
                (
                    format!("{open}\n\n{close}\n\n"),
                    ReasoningState::Ended,
                    Some(false),
                ),
            ] {
                assert_eq!(dialect.reasoning_state(&end), state, "{name}");
                let Some(may_begin) = may_begin else { continue };
                let made = dialect.call_grammar(&tools(), &ToolChoice::Required, true, state);
                let source = made.expect("a call must come").source;
                let mut grammar = Grammar::new(&source, tokenizer).expect(name);
                assert_eq!(
                    grammar.accept_bytes(open.as_bytes()),
                    may_begin,
                    "{name}: {end}"
                );
            }
        }
    });
}

fn check(marks: &[&str]) {
    with_tokenizer(marks, |tokenizer| {
        for name in DIALECTS {
            let dialect = Dialect::from_name(name).expect("known");
            let mut n_ends = 0;
            let mut n_calls_most = 0;
            use ReasoningState::{NotBegun, Open};
            for (choice, parallel, state) in [
                (ToolChoice::Required, false, NotBegun),
                (ToolChoice::Required, true, Open),
                (ToolChoice::Named("weather".into()), false, Open),
                (ToolChoice::Named("clock".into()), true, NotBegun),
                (ToolChoice::Auto, true, NotBegun),
            ] {
                let is_open = state == Open;
                let tools = tools();
                let made = dialect.call_grammar(&tools, &choice, parallel, state);
                let made = made.expect("calls are wanted");
                assert_eq!(made.triggers.is_empty(), choice != ToolChoice::Auto);
                let trigger = made.triggers.all.first().map(|trigger| &*trigger.text);
                let mut grammar = Grammar::new(&made.source, tokenizer)
                    .unwrap_or_else(|error| panic!("{name}: {error}: {:?}", made.source));
                let (open, _) = dialect.reasoning_marks().expect("it reasons");
                let end = match (name, is_open) {
                    ("harmony", true) => format!("<|start|>assistant{open}"),
                    ("harmony", false) => "<|start|>assistant".to_owned(),
                    (_, true) => open.to_owned(),
                    (_, false) => "assistant\n".to_owned(),
                };
                for seed in 0..20 {
                    let mut random = Random(0x9e37_79b9 + seed * 7919);
                    let Some(answer) = sampled(name, &mut grammar, tokenizer, &mut random) else {
                        continue;
                    };
                    let answer = trigger.unwrap_or_default().to_owned() + &answer;
                    n_ends += 1;
                    let (content, calls) = read(&dialect, &answer, &end, parallel);
                    let told = format!("{name} {choice:?}: {answer:?}: {calls:?}");
                    assert_eq!(content, "", "{told}");
                    assert!(!calls.is_empty(), "{told}");
                    n_calls_most = n_calls_most.max(calls.len());
                    for (called, arguments) in &calls {
                        let value = serde_json::from_str(arguments).expect(&told);
                        assert!(is_valid(called, &value), "{told}");
                        if let ToolChoice::Named(wanted) = &choice {
                            assert_eq!(called, wanted, "{told}");
                        }
                    }
                }
            }
            assert!(n_ends > 40, "{name}: {n_ends}");
            // Random texts prefer what closes, and here that comes where a second call begins.
            let is_closed = ["gigachat3.1", "minimax-m1"].contains(&name);
            assert!(n_calls_most > 1 || is_closed, "{name}");
        }
    });
}

#[test]
fn calls_are_well_formed_where_marks_are_text() {
    check(&[]);
}

#[test]
fn calls_are_well_formed_where_marks_are_tokens() {
    check(&MARKS);
}

#[test]
fn choices_and_schemas_are_kept_to() {
    let tools = tools();
    let hermes = Dialect::from_name("hermes").expect("known");
    let made =
        |choice: ToolChoice| hermes.call_grammar(&tools, &choice, true, ReasoningState::NotBegun);
    assert_eq!(made(ToolChoice::None), None);
    assert_eq!(made(ToolChoice::Named("none".into())), None);
    let none = hermes.call_grammar(&[], &ToolChoice::Required, true, ReasoningState::NotBegun);
    assert_eq!(none, None);
    // The answer of a model without reasoning begins with the call.
    let plain = Dialect::of_template("{{ tools }} <tool_call>");
    assert_eq!(plain.reasoning_marks(), None);
    with_tokenizer(&[], |tokenizer| {
        let made = plain.call_grammar(
            &tools,
            &ToolChoice::Required,
            false,
            ReasoningState::NotBegun,
        );
        let mut grammar = Grammar::new(&made.expect("calls").source, tokenizer).expect("small");
        let answer = sampled("hermes", &mut grammar, tokenizer, &mut Random(3)).expect("it ends");
        assert!(answer.trim_start().starts_with("<tool_call>"), "{answer}");
    });
    // Errors are the same in every dialect, also for texts between tags.
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {
        "properties": {"a": {"type": "string", "minLength": 5, "maxLength": 2}}, "required": ["a"]
    }}}]);
    let tools = Tool::all_of(&tools).expect("well formed");
    with_tokenizer(&[], |tokenizer| {
        for name in DIALECTS {
            let dialect = Dialect::from_name(name).expect("known");
            let made =
                dialect.call_grammar(&tools, &ToolChoice::Auto, true, ReasoningState::NotBegun);
            let refused = Grammar::new(&made.expect("calls").source, tokenizer);
            let message = refused.expect_err(name).to_string();
            assert!(message.contains("/properties/a"), "{name}: {message}");
        }
    });
}

/// Large schemas compile quickly, and answers are sampled quickly: 0.2 s for 160 KB of values,
/// 0.9 s for 2,000 properties, 0.2 s for 1,024 tools (two cores of a shared server, 2026-11, release).
#[test]
fn large_schemas_compile_soon() {
    let values: Vec<String> = (0..9_000).map(|n| format!("value-{n:07}-x")).collect();
    let properties: serde_json::Map<String, Value> = (0..2_000)
        .map(|n| {
            (
                format!("property_{n}"),
                json!({"type": (["integer", "string"][n % 2])}),
            )
        })
        .collect();
    let large = [
        json!({"type": "object", "properties": {"v": {"enum": values}}, "required": ["v"]}),
        json!({"type": "object", "properties": properties, "required": ["property_1999"]}),
    ];
    with_tokenizer(&MARKS, |tokenizer| {
        let many = (0..1024).map(|n| {
            let parameters = json!({"type": "object", "properties": {"a": {"enum": [n]}}});
            json!({"type": "function", "function": {"name": format!("f{n}"), "parameters": parameters}})
        });
        let large = large.map(
            |schema| json!([{"type": "function", "function": {"name": "f", "parameters": schema}}]),
        );
        for tools in large.into_iter().chain([many.collect()]) {
            let tools = Tool::all_of(&tools).expect("well formed");
            for name in ["hermes", "qwen3-coder"] {
                let dialect = Dialect::from_name(name).expect("known");
                let made = dialect.call_grammar(
                    &tools,
                    &ToolChoice::Required,
                    true,
                    ReasoningState::NotBegun,
                );
                let begin = Instant::now();
                let grammar = Grammar::new(&made.expect("calls").source, tokenizer);
                let answer = sampled(name, &mut grammar.expect(name), tokenizer, &mut Random(1));
                let took = begin.elapsed();
                assert!(answer.is_some(), "{name}");
                assert!(took < BOUND, "{name}: {took:?}");
            }
        }
    });
}

/// Generous: unoptimised builds on a busy machine meet it.
const BOUND: Duration = Duration::from_secs(30);
