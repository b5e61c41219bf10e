//! Gemma 4's notation, which is not JSON.

use super::answers::{check, expected, told, tools};
use crate::assistant::ParserOptions;
use crate::test_vocabulary::Random;
use serde_json::Value;

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
    // A line of prose is no name.
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
