//! Gemma 4's notation, which is not JSON.

use super::answers::{check, expected, told, tools};
use crate::assistant::{Dialect, ParserOptions, ReasoningState, Tool, ToolChoice};
use crate::grammar::Grammar;
use crate::test_vocabulary::{Random, with_tokenizer};
use serde_json::{Value, json};

#[test]
fn a_comma_too_many_is_dropped() {
    let cases = [
        ("{city:<|\"|>Oslo<|\"|>,}", r#"{"city": "Oslo"}"#),
        ("{days:[1,],}", r#"{"days": [1]}"#),
        ("{days:[[],{a:1 , } , ] , }", r#"{"days": [[], {"a": 1}]}"#),
    ];
    for (written, arguments) in cases {
        let answer = format!("<|tool_call>call:weather{written}<tool_call|>");
        let told = expected("", "", &[("weather", arguments)]);
        check("gemma4", "", &answer, &told);
    }
}

#[test]
fn white_space_between_parts_is_skipped() {
    for written in [
        "call:weather{\n  city:<|\"|>Oslo<|\"|>,\n  days:2\n}\n",
        "call: weather { city : <|\"|>Oslo<|\"|> , days : 2 } ",
        "\ncall:\nweather{<|\"|>city<|\"|>:\n<|\"|>Oslo<|\"|>\n,days:2}",
    ] {
        let answer = format!("<|tool_call>{written}<tool_call|>");
        let arguments = r#"{"city": "Oslo", "days": 2}"#;
        let told = expected("", "", &[("weather", arguments)]);
        check("gemma4", "", &answer, &told);
    }
    // A line of prose is not a name.
    let prose = "call:a friend\nor {x}";
    let answer = format!("<|tool_call>{prose}<tool_call|>");
    check("gemma4", "", &answer, &expected("", prose, &[]));
}

/// Whatever is between the marks, the arguments of what is reported as a call are JSON.
#[test]
fn arguments_are_json_or_the_call_is_content() {
    const PARTS: [&str; 14] = [
        "a:", "b:", ",", ",", "}", "]", "[", "{", "07", "-1.5", "<|\"|>", "\n", "\"x", " ",
    ];
    let tools = tools();
    let mut random = Random(11);
    let mut n_calls = 0;
    for round in 0..20_000 {
        let n = 1 + random.below(10);
        let inside: String = (0..n).map(|_| PARTS[random.below(PARTS.len())]).collect();
        let answer = format!("<|tool_call>call:f{{{inside}}}<tool_call|>");
        let options = ParserOptions {
            tools: &tools,
            stream_arguments: round % 2 > 0,
            ..ParserOptions::default()
        };
        let told = told("gemma4", &options, &[&answer]);
        // Streamed arguments of a call that turns out to be malformed are cut off.
        for (_, arguments) in told.calls.iter().filter(|_| told.content.is_empty()) {
            let value = serde_json::from_str::<Value>(arguments);
            let is_cut = value.as_ref().is_err_and(serde_json::Error::is_eof);
            let is_whole = value.as_ref().is_ok_and(Value::is_object);
            let is_right = is_whole || (options.stream_arguments && is_cut);
            assert!(is_right, "{answer}: {arguments}");
            n_calls += usize::from(is_whole);
        }
    }
    assert!(n_calls > 1000, "{n_calls}");
}

#[test]
fn unions_of_scalars_and_texts_are_enforced() {
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {
        "type": "object",
        "properties": {
            "any": {},
            "either": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null},
            "listed": {"type": ["integer", "null"], "minimum": 5},
            "mixed": {"enum": [1, "x", true]},
            "named": {"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}]},
            "one": {"allOf": [{"$ref": "#/$defs/unit"}], "description": "Pydantic's"},
            "text": {"type": ["string", "null"]}
        },
        "required": ["what", "what"],
        "$defs": {"unit": {"type": ["string", "null"], "enum": ["K", "C", null]}}
    }}}]);
    let tools = Tool::all_of(&tools).expect("well formed");
    let dialect = Dialect::from_name("gemma4").expect("known");
    let made = dialect.call_grammar(
        &tools,
        &ToolChoice::Required,
        false,
        ReasoningState::NotBegun,
    );
    let taken = [
        "any:0,what:1",
        "any:-10.5e-7,what:1",
        "either:7,what:1",
        "either:null,what:1",
        "listed:5,what:1",
        "listed:null,what:1",
        "mixed:1,what:1",
        "mixed:|x|,what:1",
        "mixed:true,what:1",
        "named:|K|,what:1",
        "named:null,what:1",
        "one:|C|,what:1",
        "text:|any|,what:[|1|]",
        "text:null,what:{a:1}",
    ];
    let refused = [
        "",
        "any:007,what:1",
        "what:1,what:1",
        "either:|x|,what:1",
        "either:[1],what:1",
        "either:1.5,what:1",
        "listed:4,what:1",
        "listed:|5|,what:1",
        "mixed:2,what:1",
        "mixed:|y|,what:1",
        "named:|M|,what:1",
        "named:7,what:1",
        "one:|M|,what:1",
        "text:7,what:1",
    ];
    with_tokenizer(&[], |tokenizer| {
        let mut grammar = Grammar::new(&made.expect("calls").source, tokenizer).expect("small");
        let mut takes = |inside: &str| {
            grammar.restart();
            let inside = inside.replace('|', "<|\"|>");
            let answer = format!("<|tool_call>call:f{{{inside}}}<tool_call|>");
            grammar.accept_bytes(answer.as_bytes()) && grammar.may_end()
        };
        for inside in taken {
            assert!(takes(inside), "{inside}");
        }
        for inside in refused {
            assert!(!takes(inside), "{inside}");
        }
    });
}
