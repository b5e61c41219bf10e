//! Structural tags: what they accept and refuse, with marks that are text and with control tokens.

use super::{BOUND, accepts, with_tokenizer as with_model};
use crate::grammar::{Grammar, Structure, Tag};
use crate::test_vocabulary::{encode, with_tokenizer};
use sluice_core::tokenizer::Tokenizer;
use std::time::Instant;

fn tag(begin: &str, schema: Option<&str>, end: &str) -> Tag {
    Tag {
        begin: begin.to_owned(),
        schema: schema.map(str::to_owned),
        end: end.to_owned(),
    }
}

fn structure(triggers: &[&str], tags: Vec<Tag>) -> Structure {
    Structure {
        tags,
        triggers: triggers.iter().map(|text| (*text).to_owned()).collect(),
        ..Structure::default()
    }
}

fn compiled(structure: &Structure, tokenizer: &Tokenizer<'_>) -> Grammar {
    let source = structure.grammar().expect("tags with triggers");
    Grammar::new(&source, tokenizer).expect("a grammar")
}

/// Whether the grammar accepts a text whose parts are tokenized separately. Names of control tokens are parsed.
fn takes(grammar: &mut Grammar, tokenizer: &Tokenizer<'_>, parts: &[&str]) -> bool {
    grammar.restart();
    for token in parts.iter().flat_map(|part| encode(tokenizer, part)) {
        let mask = grammar.mask().expect("within the bounds");
        if (mask[token as usize / 64] >> (token % 64)) & 1 == 0 {
            return false;
        }
        grammar.accept(token).expect("it was allowed");
    }
    grammar.may_end()
}

#[test]
fn behind_a_trigger_stands_a_tag() {
    let number = r#"{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
        "additionalProperties": false}"#;
    let structure = Structure {
        tags: vec![
            tag("<f=add>", Some(number), "</f>"),
            tag("<f=say>", None, "</f>"),
            tag("[!]", Some(r#"{"enum": ["yes"]}"#), ""),
        ],
        triggers: vec!["<f=".to_owned(), "[!]".to_owned()],
        ..Structure::default()
    };
    let add = r#"<f=add>{"n": 1}</f>"#;
    with_model(|tokenizer| {
        let check = |structure: &Structure, good: &[&str], bad: &[&str]| {
            let source = structure.grammar().expect("tags with triggers");
            let mut grammar = Grammar::new(&source, tokenizer).expect("a grammar");
            for text in good {
                assert!(accepts(&mut grammar, tokenizer, text), "{text}");
            }
            for text in bad {
                assert!(!accepts(&mut grammar, tokenizer, text), "{text}");
            }
        };
        let twice = format!("A sum: {add}, and {add} <f and\n[!]\"yes\" more");
        let good = [
            "",
            "Free text < f=",
            add,
            &twice,
            "<f=say>what <it> is</f> then",
        ];
        let bad = [
            "<f=sub>{}</f>",
            "a <f=add>{\"n\": \"x\"}</f>",
            "<f=add>{\"n\": 1}",
            "so [!]\"no\"",
            "<f=",
        ];
        check(&structure, &good, &bad);
        let one = Structure {
            at_least_one: true,
            ..structure.clone()
        };
        check(&one, &[add, &twice], &["", "Free text"]);
        let first = Structure {
            stop_after_first: true,
            ..one
        };
        let (led, more) = (format!("So: {add}"), format!("{add} more"));
        check(&first, &[add, &led], &["", &more, &twice]);
    });
}

#[test]
fn marks_with_bars_and_slashes_are_kept_to_as_texts() {
    let tags = vec![
        tag("<|call|>", Some(NUMBERS), "<|/call|>"),
        tag("<|channel|>commentary to=say", None, "<|/a.b*|>"),
        tag("/x[\"\\\n", Some(NUMBERS), ""),
    ];
    let triggers = ["<|call|>", "<|channel|>commentary to=", "/x["];
    let structure = structure(&triggers, tags);
    with_model(|tokenizer| {
        let mut grammar = compiled(&structure, tokenizer);
        for text in [
            "free < and <| and <|calls|> and <|channel|>final",
            "a <| b <|call|>[1, 2]<|/call|> <|c",
            "<|channel|>commentary to=say <|/axb*|> / <|/a.b*|>",
            "<<|call|>[]<|/call|><|call|>[3]<|/call|>",
            "/x /x[\"\\\n[1]",
        ] {
            assert!(accepts(&mut grammar, tokenizer, text), "{text}");
        }
        for text in [
            "<|call|>garbage",
            "a <| b <|call|>",
            "<|call|>[1]<|/call",
            "<|call|>[1]<|/cal|> ",
            "<|call|>[1]<|/call|> <|call|>x",
            "<|channel|>commentary to=hear",
            "<|channel|>commentary to=say <|/axb*|>",
            "/x[\"",
            "/x[ ",
        ] {
            assert!(!accepts(&mut grammar, tokenizer, text), "{text}");
        }
    });
}

#[test]
fn control_tokens_are_reached_behind_any_text() {
    let tags = vec![
        tag("<|go|>add", Some(NUMBERS), "<|no|>"),
        tag("<|to|>a<|go|>", Some(NUMBERS), "\n<|no|>"),
        tag("<|to|>b", None, "<|no|>!"),
        tag("<f>", Some(NUMBERS), "</f>"),
    ];
    let structure = structure(&["<|go|>", "<|to|>", "<f"], tags);
    with_tokenizer(&CONTROLS, |tokenizer| {
        let mut grammar = compiled(&structure, tokenizer);
        for parts in [
            &["a < b <| c <|", "go|> <f", ">[1]</f> <|x"][..],
            &["<|go|>add[1]<|no|>"],
            &["a < <|go|>add[1]<|no|> b"],
            &["a <| <| b <|go|>add[1]<|no|> <|x| <|go|>add[]<|no|>"],
            &["<| ", "<|to|>a<|go|>[2]\n<|no|>"],
            &["<f>[1]</f><|", "<|to|>b <| any <", "<|no|>! <| x"],
        ] {
            assert!(takes(&mut grammar, tokenizer, parts), "{parts:?}");
        }
        for parts in [
            &["<|go|>sub[1]<|no|>"][..],
            &["<| <|go|>"],
            &["<|go|>add[1]<|", "no|>"],
            &["<|go|>add[1]"],
            &["<|to|>c"],
            &["<|to|>a<|", "go|>[2]\n<|no|>"],
            &["<|to|>b any <|no|>?"],
            &["free <|no|>"],
            &["<| <f>x"],
        ] {
            assert!(!takes(&mut grammar, tokenizer, parts), "{parts:?}");
        }
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "a list of cases")]
fn what_cannot_be_kept_to_is_refused_by_name() {
    let numbers = |begin: &str| tag(begin, Some(NUMBERS), "</f>");
    for (triggers, tags, what) in [
        (
            &["<f"][..],
            vec![numbers("<g>")],
            "tag 0 does not begin with a trigger",
        ),
        (
            &["<f"],
            vec![tag("<f>", None, "")],
            "tag 0: content of any text requires an end",
        ),
        (&["<f", ""], vec![numbers("<f>")], "a trigger is empty"),
        (
            &["<f=", "<"],
            vec![numbers("<f=a>"), numbers("<g>")],
            r#"the trigger "<f=" contains the trigger "<""#,
        ),
        (
            &["<f", "<g"],
            vec![numbers("<f>")],
            r#"no tag begins with the trigger "<g""#,
        ),
        (
            &[],
            vec![numbers("<f>")],
            "needs at least one tag and one trigger",
        ),
        (
            &["<f"],
            vec![numbers("<f>"); 1025],
            "1025 tags exceed the maximum of 1024",
        ),
        (
            &["<f"; 129],
            vec![numbers("<f>")],
            "129 triggers exceed the maximum of 128",
        ),
    ] {
        let error = structure(triggers, tags).grammar();
        assert_eq!(error.expect_err("refused"), what);
    }
    let long = structure(&["<f"], vec![numbers(&format!("<f{}", "é".repeat(200)))]);
    let error = long.grammar().expect_err("too long");
    assert!(
        error.ends_with("is longer than 256 bytes") && error.len() < 120,
        "{error}"
    );
    let twice = structure(&["<f", "<f"], vec![numbers("<f>")]);
    assert_eq!(
        twice.grammar(),
        structure(&["<f"], vec![numbers("<f>")]).grammar()
    );
    with_tokenizer(&CONTROLS, |tokenizer| {
        for (trigger, begin, end, what) in [
            (
                "<",
                "<|go|>",
                "</f>",
                r#""<" ends within the control token "<|go|>""#,
            ),
            (
                "a<|go|>",
                "a<|go|>",
                "</f>",
                r#""a<|go|>" has a control token after text"#,
            ),
            (
                "<f",
                "<f>",
                "\n<|no|>",
                r#""\n<|no|>" has a control token after text"#,
            ),
            (
                "<|endoftext|>",
                "<|endoftext|>",
                "</f>",
                r#""<|endoftext|>" begins with an end-of-text token"#,
            ),
        ] {
            let source = structure(&[trigger], vec![tag(begin, None, end)]).grammar();
            let source = source.expect("known with the vocabulary");
            let error = Grammar::new(&source, tokenizer).expect_err("refused");
            assert!(error.to_string().contains(what), "{error}");
        }
    });
}

#[test]
fn the_most_of_all_ends_soon() {
    let all = |pad: &str| {
        let trigger = |n: usize| format!("{pad}{n:04}");
        let begin = |n: usize| format!("{}={n:04}>", trigger(n % 128));
        let triggers: Vec<_> = (0..128).map(trigger).collect();
        let tags = (0..1024).map(|n| tag(&begin(n), None, &trigger(n)));
        Structure {
            tags: tags.collect(),
            triggers,
            ..Structure::default()
        }
    };
    with_tokenizer(&CONTROLS, |tokenizer| {
        let start = Instant::now();
        let mut grammar = compiled(&all(NAMESPACE), tokenizer);
        let called = format!("Now <f {NAMESPACE}0003=0003> <f any {NAMESPACE}0003 free");
        assert!(takes(&mut grammar, tokenizer, &[&called]));
        let wrong = format!("{NAMESPACE}0003=0004>");
        assert!(!takes(&mut grammar, tokenizer, &[&wrong]));
        // Exceeds a limit of the lexer, which is reported.
        let pad = "<>".repeat(120);
        let source = all(&pad).grammar().expect("within the bounds");
        let written = Grammar::new(&source, tokenizer).and_then(|mut grammar| {
            for token in encode(tokenizer, &pad.repeat(2)) {
                grammar.mask()?;
                grammar.accept(token)?;
            }
            Ok(())
        });
        let took = start.elapsed();
        assert!(took < BOUND, "{took:?}");
        let error = written.expect_err("too much").to_string();
        assert!(error.contains("too many expressions"), "{error}");
    });
}

const NUMBERS: &str = r#"{"type": "array", "items": {"type": "integer"}}"#;
const CONTROLS: [&str; 3] = ["<|go|>", "<|to|>", "<|no|>"];
const NAMESPACE: &str = "<function=company.department.project.tools.version_1.f_";
