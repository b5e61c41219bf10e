//! Answers in every dialect, whole and in pieces.

use super::written::CALLS;
use crate::assistant::{AnswerParser, Delta, Dialect, ParserOptions, Tool};
use crate::test_vocabulary::Random;
use serde_json::json;

/// The parts of an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) content: String,
    reasoning: String,
    pub(super) calls: Vec<(String, String)>,
}

pub(super) fn tools() -> Vec<Tool> {
    let tools = json!([
        {"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"]
        }}},
        {"type": "function", "function": {"name": "clock"}}
    ]);
    Tool::all_of(&tools).expect("well formed")
}

pub(super) fn told(dialect: &str, options: &ParserOptions<'_>, pieces: &[&str]) -> Told {
    let dialect = Dialect::from_name(dialect).expect("known");
    let mut told = Told::default();
    let mut ids = Vec::new();
    let mut take = |delta| match delta {
        Delta::Content(text) => told.content += &text,
        Delta::Reasoning(text) => told.reasoning += &text,
        Delta::CallBegin { index, id, name } => {
            assert_eq!(index, told.calls.len());
            assert!(!ids.contains(&id));
            ids.push(id);
            told.calls.push((name, String::new()));
        }
        Delta::CallArguments { index, text } => told.calls[index].1 += &text,
    };
    let mut parser = AnswerParser::new(&dialect, options);
    for piece in pieces {
        parser.push(piece, &mut take);
    }
    parser.finish(false, &mut take);
    told
}

/// The text, split into pieces of a few characters.
fn cut<'t>(text: &'t str, random: &mut Random) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let n = 1 + random.below(6);
        let end = rest.char_indices().nth(n).map_or(rest.len(), |(at, _)| at);
        let (piece, behind) = rest.split_at(end);
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// Checks the parts of `answer`, for different splits into pieces, with and without streamed arguments.
pub(super) fn check(dialect: &str, prompt_end: &str, answer: &str, expected: &Told) {
    let tools = tools();
    let mut random = Random(88_172_645_463_325_252);
    for stream_arguments in [false, true] {
        let options = ParserOptions {
            prompt_end,
            tools: &tools,
            parallel: true,
            split_reasoning: true,
            stream_arguments,
            id_seed: 7,
        };
        let whole = told(dialect, &options, &[answer]);
        assert_eq!(whole, *expected, "{dialect}: {answer}");
        for _ in 0..40 {
            let pieces = cut(answer, &mut random);
            let cut = told(dialect, &options, &pieces);
            assert_eq!(cut, *expected, "{dialect}: {pieces:?}");
        }
    }
}

pub(super) fn expected(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Told {
    let owned = |(name, arguments): &(&str, &str)| ((*name).to_owned(), (*arguments).to_owned());
    Told {
        content: content.to_owned(),
        reasoning: reasoning.to_owned(),
        calls: calls.iter().map(owned).collect(),
    }
}

const OSLO: &str = r#"{"city": "Oslo", "days": 2}"#;

#[test]
fn calls_are_found_in_every_dialect() {
    let prompt = |dialect| {
        if dialect == "harmony" {
            "<|start|>assistant"
        } else {
            "assistant\n"
        }
    };
    for (dialect, one, two) in CALLS {
        let end = prompt(dialect);
        check(dialect, end, one, &expected("", "", &[("weather", OSLO)]));
        let both = [("weather", OSLO), ("clock", "{}")];
        check(dialect, end, two, &expected("", "", &both));
        // Content comes first; but Llama's calls without a mark are the whole answer.
        let (answer, reasoned) = match dialect {
            "llama3" => (
                format!("I look. <|python_tag|>{one}"),
                format!("<think>\nHm, {{.\n</think>\n\n{one}"),
            ),
            "harmony" => (
                format!("<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{one}"),
                format!("<|channel|>analysis<|message|>Hm, {{.<|end|><|start|>assistant{one}"),
            ),
            "command-r" => (
                format!("<|START_RESPONSE|>I look.<|END_RESPONSE|>{one}"),
                format!("<|START_THINKING|>Hm, {{.<|END_THINKING|>{one}"),
            ),
            "seed-oss" => (
                format!("I look.\n{one}"),
                format!("<seed:think>\nHm, {{.\n</seed:think>\n{one}"),
            ),
            "gemma4" => (
                format!("I look.{one}<|tool_response>"),
                format!("<|channel>thought\nHm, {{.\n<channel|>{one}"),
            ),
            "apertus" => (
                format!("I look.{one}"),
                format!("<|inner_prefix|>Hm, {{.<|inner_suffix|>{one}"),
            ),
            "mistral" | "mistral-args" => (
                format!("I look.\n\n{one}"),
                format!("[THINK]Hm, {{.[/THINK]{one}"),
            ),
            _ => (
                format!("I look.\n\n{one}"),
                format!("<think>\nHm, {{.\n</think>\n\n{one}"),
            ),
        };
        let calls = [("weather", OSLO)];
        check(dialect, end, &answer, &expected("", "I look.", &calls));
        check(dialect, end, &reasoned, &expected("Hm, {.", "", &calls));
    }
}

#[test]
fn reasoning_may_begin_in_the_prompt() {
    let answer = "Hm <tool_call> hm.\n</think>\n\nSo <think> it is.\n";
    let told = expected("Hm <tool_call> hm.", "So <think> it is.\n", &[]);
    check("hermes", "<|im_start|>assistant\n<think>\n", answer, &told);
    let end = "<|start|>assistant<|channel|>analysis<|message|>";
    let answer = "Hm.<|end|><|start|>assistant<|channel|>final<|message|>So it is.<|return|>";
    check("harmony", end, answer, &expected("Hm.", "So it is.", &[]));
    let empty = "<think>\n\n</think>\n\nSo.";
    check("hermes", "assistant\n", empty, &expected("", "So.", &[]));
    check("hermes", "<think>", "Hm", &expected("Hm", "", &[]));
}

/// Malformed calls become content, without marks.
#[test]
fn malformed_calls_are_content() {
    let cases = [
        (
            "hermes",
            "A <tool_call>\n{\"name\": \"clock\", x}</tool_call> B",
            "A \n{\"name\": \"clock\", x} B",
        ),
        (
            "hermes",
            "<tool_call>\nclock()\n</tool_call>",
            "\nclock()\n",
        ),
        ("hermes", "<tool_call></tool_call>", ""),
        ("llama3", "{\"a\": 1}", "{\"a\": 1}"),
        ("llama3", " {\"name\": 1}", " {\"name\": 1}"),
        ("llama3", "<|python_tag|>print(1)", "print(1)"),
        ("mistral", "[TOOL_CALLS] well", " well"),
        ("gemma", "```tool_code\nprint(1)\n```\n", "\nprint(1)\n\n"),
        ("command-r", "<|START_ACTION|>[1]<|END_ACTION|>", "[1]"),
        (
            "harmony",
            "<|channel|>commentary to=functions.f<|message|>f()<|call|>",
            "f()",
        ),
        (
            "deepseek-v3.1",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜>",
            "f<｜tool▁sep｜>",
        ),
        (
            "qwen3-coder",
            "<tool_call>\n<function weather>\n</tool_call>",
            "\n<function weather>\n",
        ),
        (
            "glm",
            "<tool_call>{\"name\": 1}\n7</tool_call>",
            "{\"name\": 1}\n7",
        ),
        ("gemma4", "<|tool_call>clock{}<tool_call|>", "clock{}"),
        (
            "minimax-m2",
            "<minimax:tool_call>clock</minimax:tool_call>",
            "clock",
        ),
        (
            "kimi-k2",
            "<|tool_call_begin|>functions.f:0<|tool_call_end|>",
            "functions.f:0",
        ),
        (
            "generic",
            "a < b, <tool and <tool_cal",
            "a < b, <tool and <tool_cal",
        ),
    ];
    for (dialect, answer, content) in cases {
        check(dialect, "", answer, &expected("", content, &[]));
    }
}

#[test]
fn broken_arguments_are_content_unless_they_were_told() {
    let tools = tools();
    let answer = "<tool_call>{\"name\": \"clock\", \"arguments\": {1}}</tool_call>.";
    let mut options = ParserOptions {
        tools: &tools,
        ..ParserOptions::default()
    };
    let whole = told("hermes", &options, &[answer]);
    let content = "{\"name\": \"clock\", \"arguments\": {1}}.";
    assert_eq!(whole, expected("", content, &[]));
    options.stream_arguments = true;
    let whole = told("hermes", &options, &[answer]);
    assert_eq!(whole.calls, [("clock".to_owned(), "{1}".to_owned())]);
}

#[test]
fn tags_become_json_by_the_schema() {
    let answer = "<tool_call>\n<function=weather>\n<parameter=city>\n\"Oslo\"\n<b>\t\n\n</parameter>\n\
                  <parameter=days>\nTrue\n</parameter>\n<parameter=more>\n7\n</parameter>\n</function>\n</tool_call>";
    let arguments = r#"{"city": "\"Oslo\"\n<b>\t\n", "days": true, "more": "7"}"#;
    let calls = [("weather", arguments)];
    check("qwen3-coder", "", answer, &expected("", "", &calls));
}

/// Some formats keep line breaks at the ends of values; some say whether a value is a text.
#[test]
fn values_between_tags_are_whole() {
    let glm = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>\nOslo <b>\n</arg_value>\n\
               <arg_key>days</arg_key>\n<arg_value>[1, 2]</arg_value>\n</tool_call>";
    let arguments = r#"{"city": "\nOslo <b>\n", "days": [1, 2]}"#;
    check("glm", "", glm, &expected("", "", &[("weather", arguments)]));
    let gemma = "<|tool_call>call:weather{city:<|\"|>a \"b\", <|c<|\"|>,days:[1,{x:<|\"|>y<|\"|>, z:[]},true]}<tool_call|>";
    let arguments = r#"{"city": "a \"b\", <|c", "days": [1, {"x": "y", "z": []}, true]}"#;
    check(
        "gemma4",
        "",
        gemma,
        &expected("", "", &[("weather", arguments)]),
    );
    let dsml = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n\
                <｜DSML｜parameter name=\"city\" string=\"false\">7</｜DSML｜parameter>\n\
                <｜DSML｜parameter name=\"days\" string=\"true\">7</｜DSML｜parameter>\n\
                </｜DSML｜invoke>\n</｜DSML｜function_calls>";
    let told = expected("", "", &[("weather", r#"{"city": 7, "days": "7"}"#)]);
    check("deepseek-v3.2", "", dsml, &told);
}

#[test]
fn options_are_kept_to() {
    let tools = tools();
    let two = CALLS[0].2;
    let mut options = ParserOptions {
        tools: &tools,
        ..ParserOptions::default()
    };
    assert_eq!(told("hermes", &options, &[two]).calls.len(), 1);
    options.tools = &[];
    assert_eq!(told("hermes", &options, &[two]).content, two);
    let reasoned = "<think>\nHm.</think>\nSo.";
    assert_eq!(told("hermes", &options, &[reasoned]).content, reasoned);
    let message =
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.";
    let content = "<|channel|>analysis<|message|>Hm.<|end|>So.";
    assert_eq!(told("harmony", &options, &[message]).content, content);
}

/// Marks and pieces of calls.
const PARTS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "{\"name\": \"clock\"",
    ", \"arguments\": {",
    "}",
    "}\n",
    "[TOOL_CALLS]",
    "[",
    "]",
    "clock",
    "[ARGS]",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "to=functions.f",
    "analysis",
    "<function=f>",
    "<parameter=p>",
    "</parameter>",
    "</function>",
    " ",
    "\n",
    "```tool_code",
    "```",
    "\"",
    "\\",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    ";",
    ",",
    "é",
    "<",
    "<|python_tag|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<invoke name=\"",
    "\">",
    "</invoke>",
    "<minimax:tool_call>",
    "<|tool_call_begin|>",
    "functions.f:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_call>",
    "call:f{",
    "a:",
    "<|\"|>",
    "<tool_call|>",
];

/// Pieces of marks and calls in any order: nothing panics, and splits do not matter.
#[test]
fn cuts_do_not_matter() {
    let tools = tools();
    let mut random = Random(1);
    for round in 0..3000 {
        let n = 1 + random.below(12);
        let answer: String = (0..n).map(|_| PARTS[random.below(PARTS.len())]).collect();
        let (dialect, ..) = CALLS[round % CALLS.len()];
        let options = ParserOptions {
            tools: &tools,
            parallel: true,
            split_reasoning: round % 3 > 0,
            stream_arguments: round % 2 > 0,
            ..ParserOptions::default()
        };
        let whole = told(dialect, &options, &[&answer]);
        for _ in 0..4 {
            let pieces = cut(&answer, &mut random);
            assert_eq!(
                told(dialect, &options, &pieces),
                whole,
                "{dialect}: {pieces:?}"
            );
        }
        if !options.stream_arguments {
            for (_, arguments) in &whole.calls {
                let value = serde_json::from_str::<serde_json::Value>(arguments);
                assert!(
                    value.is_ok_and(|value| value.is_object()),
                    "{dialect}: {answer}: {arguments}"
                );
            }
        }
    }
}

#[test]
fn ids_are_those_that_templates_take() {
    let dialect = |name| Dialect::from_name(name).expect("known");
    let id = dialect("mistral").call_id(3, 0);
    assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let id = dialect("hermes").call_id(3, 0);
    assert!(id.starts_with("call_") && id != dialect("hermes").call_id(3, 1));
    assert_eq!(id, dialect("hermes").call_id(3, 0));
}
