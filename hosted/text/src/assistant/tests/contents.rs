//! Text written under a grammar of calls and content is parsed as one or the other.

use super::calls::{DIALECTS, is_valid, read, sampled, tools};
use crate::assistant::Dialect;
use crate::assistant::ReasoningState::{NotBegun, Open};
use crate::grammar::{Grammar, GrammarSource};
use crate::test_vocabulary::{MARKS, Random, with_tokenizer};
use serde_json::{Value, json};

/// Answers under a grammar of calls and content: each is one or the other, in every format, and both occur.
fn check_both(marks: &[&str]) {
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"], "additionalProperties": false});
    with_tokenizer(marks, |tokenizer| {
        for (name, state, content) in DIALECTS.into_iter().flat_map(|name| {
            let schema = GrammarSource::JsonSchema(schema.to_string());
            let regex = GrammarSource::Regex("[xy]{3}".to_owned());
            [
                (name, NotBegun, schema.clone()),
                (name, Open, schema),
                (name, NotBegun, regex),
            ]
        }) {
            let dialect = Dialect::from_name(name).expect("known");
            let is_open = state == Open;
            let (open, _) = dialect.reasoning_marks().expect("it reasons");
            let end = match (name, is_open) {
                ("harmony", true) => format!("<|start|>assistant{open}"),
                ("harmony", false) => "<|start|>assistant".to_owned(),
                (_, true) => open.to_owned(),
                (_, false) => "assistant\n".to_owned(),
            };
            for tools in [tools(), Vec::new()] {
                let made = dialect.answer_grammar(&tools, true, &content, state);
                if tools.is_empty() && name != "harmony" {
                    assert_eq!(made, None);
                    continue;
                }
                let made = made.expect("it can be composed");
                let mut grammar = Grammar::new(&made, tokenizer)
                    .unwrap_or_else(|error| panic!("{name}: {error}: {made:?}"));
                let (mut n_contents, mut n_calls) = (0, 0);
                if name != "harmony" && !is_open {
                    let sample = match &content {
                        GrammarSource::Regex(_) => "xyx",
                        _ => "{\"a\":\"y\"}",
                    };
                    let is_taken = grammar.accept_bytes(sample.as_bytes());
                    assert!(is_taken && grammar.may_end(), "{name}: {made:?}");
                    n_contents += 1;
                }
                for seed in 0..60 {
                    let mut random = Random(0x51_7cc1 + seed * 7919);
                    let Some(answer) = sampled(name, &mut grammar, tokenizer, &mut random) else {
                        continue;
                    };
                    let (text, calls) = read(&dialect, &answer, &end, true);
                    let told = format!("{name}: {answer:?}: {text:?} {calls:?}");
                    for (called, arguments) in &calls {
                        let value = serde_json::from_str(arguments).expect(&told);
                        assert!(is_valid(called, &value), "{told}");
                    }
                    if !calls.is_empty() {
                        assert_eq!(text, "", "{told}");
                        n_calls += 1;
                        continue;
                    }
                    n_contents += 1;
                    if let GrammarSource::Regex(_) = &content {
                        let is_code = text.bytes().all(|c| c == b'x' || c == b'y');
                        assert!(text.len() == 3 && is_code, "{told}");
                    } else {
                        let value: Value = serde_json::from_str(&text).expect(&told);
                        assert!(value["a"] == "x" || value["a"] == "y", "{told}");
                    }
                }
                assert!(n_contents > 0 || is_open, "{name}");
                assert_eq!(n_calls > 0, !tools.is_empty(), "{name}");
            }
        }
    });
}

#[test]
fn an_answer_calls_or_keeps_to_a_schema_where_marks_are_text() {
    check_both(&[]);
}

#[test]
fn an_answer_calls_or_keeps_to_a_schema_where_marks_are_tokens() {
    check_both(&MARKS);
}
