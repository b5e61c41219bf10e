//! MiniCPM5 wraps texts with `<`, `&` or line breaks.

use super::answers::{check, expected, tools};
use crate::assistant::{
    AnswerParser, Delta, Dialect, ParserOptions, ReasoningState, Tool, ToolChoice,
};
use crate::grammar::Grammar;
use crate::test_vocabulary::with_tokenizer;
use serde_json::{Value, json};

fn answer(city: &str) -> String {
    format!(
        "<function name=\"weather\"><param name=\"city\">{city}</param><param name=\"days\">2</param></function>"
    )
}

#[test]
fn wrapped_texts_are_unwrapped() {
    for (written, city) in [
        ("<![CDATA[a < b\n]]>", "a < b\n"),
        ("<![CDATA[</param>]]]]>", "</param>]]"),
        ("<![CDATA[a[b[0]]>c]]>", "a[b[0]]>c"),
        ("<![CDATA[]]>", ""),
        ("<![CDAT", "<![CDAT"),
        ("a <![CDATA[b]]>", "a <![CDATA[b]]>"),
        ("", ""),
    ] {
        let arguments = format!("{{\"city\": {}, \"days\": 2}}", Value::from(city));
        let told = expected("", "", &[("weather", &arguments)]);
        check("minicpm5", "", &answer(written), &told);
    }
    let dialect = Dialect::from_name("minicpm5").expect("known");
    let past = dialect.call_text("weather", "{\"city\": \"a < b\\n\", \"days\": 2}");
    assert_eq!(past, answer("<![CDATA[a < b\n]]>"));
}

/// Wherever it is cut, nothing of it is content, and nothing of the wrapper an argument.
#[test]
fn a_cut_wrapper_is_never_told() {
    let tools = tools();
    let dialect = Dialect::from_name("minicpm5").expect("known");
    let answer = answer("<![CDATA[a < b\n]]>");
    for end in 1..=answer.len() {
        for stream_arguments in [false, true] {
            let options = ParserOptions {
                tools: &tools,
                stream_arguments,
                ..ParserOptions::default()
            };
            let mut arguments = String::new();
            let mut take = |delta| match delta {
                Delta::CallArguments { text, .. } => arguments += &text,
                Delta::CallBegin { .. } => {}
                other => panic!("{end}: {other:?}"),
            };
            let mut parser = AnswerParser::new(&dialect, &options);
            for c in answer[..end].chars() {
                parser.push(c.encode_utf8(&mut [0; 4]), &mut take);
            }
            parser.finish(true, &mut take);
            let whole = r#"{"city": "a < b\n", "days": 2}"#;
            assert!(whole.starts_with(&arguments), "{end}: {arguments}");
        }
    }
}

#[test]
fn a_grammar_wraps_what_the_template_wraps() {
    for (schema, taken) in [
        (json!({"type": "string"}), "a < b\n"),
        (json!({"type": "string", "maxLength": 6}), "a < b\n"),
        (json!({"enum": ["a", "a < b\n"]}), "a < b\n"),
        (json!({"type": "string", "pattern": "^<"}), "< b"),
    ] {
        let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": {
            "type": "object",
            "properties": {"city": schema, "days": {"type": "integer"}},
            "required": ["city", "days"]
        }}}]);
        let tools = Tool::all_of(&tools).expect("well formed");
        let dialect = Dialect::from_name("minicpm5").expect("known");
        let made = dialect.call_grammar(
            &tools,
            &ToolChoice::Required,
            false,
            ReasoningState::NotBegun,
        );
        with_tokenizer(&[], |tokenizer| {
            let source = made.expect("calls").source;
            let mut grammar = Grammar::new(&source, tokenizer).expect("small");
            let mut takes = |city: &str| {
                grammar.restart();
                grammar.accept_bytes(answer(city).as_bytes()) && grammar.may_end()
            };
            let wrapped = format!("<![CDATA[{taken}]]>");
            assert!(takes(&wrapped), "{schema}: {wrapped}");
            assert!(!takes(taken), "{schema}: {taken}");
            assert_eq!(takes("a"), schema.get("pattern").is_none(), "{schema}");
        });
    }
}
