//! Grammars after triggers, and reasoning budgets, with logits that write a given text as far as
//! it is allowed.

use super::{Helper, Sampler, SamplingSettings};
use crate::assistant::{Dialect, ReasoningState, Tool, ToolChoice, Triggers};
use crate::grammar::{Grammar, GrammarSource, Vocabulary};
use crate::test_vocabulary::{MARKS, encode, with_tokenizer};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use serde_json::json;
use sluice::sequence::Choose as _;
use sluice_core::sampler::SamplerConfig;
use sluice_core::tokenizer::Tokenizer;
use std::sync::Arc;

fn sampler(tokenizer: &Tokenizer<'_>) -> Sampler {
    let settings = SamplingSettings {
        config: SamplerConfig {
            temperature: 0.0,
            ..SamplerConfig::DEFAULT
        },
        ..SamplingSettings::default()
    };
    Sampler::new(&settings, tokenizer, 4096).expect("in range")
}

fn tools() -> Vec<Tool> {
    let tools = json!([{"type": "function", "function": {"name": "clock", "parameters": {
        "type": "object",
        "properties": {"zone": {"type": "string", "enum": ["north", "south"]}},
        "required": ["zone"]
    }}}]);
    Tool::all_of(&tools).expect("well formed")
}

/// The text of a model that tries to write `wanted`: each of its tokens in turn, if it is
/// allowed, and then any token.
fn written(
    sampler: &mut Sampler,
    tokenizer: &Tokenizer<'_>,
    wanted: &[u32],
    n_most: usize,
) -> (String, Vec<u32>) {
    let mut rest = wanted.iter().copied().peekable();
    let mut history = Vec::new();
    let mut text = Vec::new();
    let mut piece = vec![0; tokenizer.piece_len_max()];
    sampler.restart();
    for position in 0..n_most {
        let mut logits = vec![0.0; tokenizer.n_vocab() as usize];
        for (id, logit) in logits.iter_mut().enumerate() {
            // Among the others, later tokens are slightly more likely: these are longer.
            *logit = f32::from(u16::try_from(id).expect("few")) * 1e-4;
        }
        match rest.peek() {
            Some(next) => logits[*next as usize] = 9.0,
            None => logits[0] = 9.0,
        }
        let position = u32::try_from(position).expect("few");
        // Asking for forced and allowed tokens before each sample does not change the result.
        let forced = sampler.forced();
        assert!(sampler.n_allowed(&forced) <= forced.len());
        let token = sampler.sample(&logits, &history, 0, position);
        let token = token.expect("something is allowed");
        rest.next_if_eq(&token);
        if tokenizer.is_end_of_generation(token) {
            break;
        }
        history.push(token);
        text.extend_from_slice(tokenizer.decode_piece(token, &mut piece).expect("known"));
        if sampler.is_complete() {
            break;
        }
    }
    (String::from_utf8_lossy(&text).into_owned(), history)
}

fn lazy(name: &str, is_open: bool, tokenizer: &Tokenizer<'_>) -> Sampler {
    let dialect = Dialect::from_name(name).expect("known");
    let state = match is_open {
        true => ReasoningState::Open,
        false => ReasoningState::NotBegun,
    };
    let made = dialect.call_grammar(&tools(), &ToolChoice::Auto, false, state);
    let made = made.expect("calls may come");
    assert!(!made.triggers.is_empty());
    let grammar = Grammar::new(&made.source, tokenizer).expect(name);
    sampler(tokenizer).with_lazy_grammar(grammar, made.triggers)
}

/// A dialect, the text that begins a call, and the call.
const CALLS: [(&str, &str, &str); 11] = [
    (
        "hermes",
        "<tool_call>",
        "\n{\"name\": \"clock\", \"arguments\": {\"zone\": \"south\"}}\n</tool_call>",
    ),
    (
        "generic",
        "<tool_call>",
        "{\"name\": \"clock\", \"arguments\": {\"zone\": \"north\"}}</tool_call>",
    ),
    (
        "qwen3-coder",
        "<tool_call>",
        "\n<function=clock>\n<parameter=zone>\nsouth\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "llama3",
        "<|python_tag|>{\"name\": \"",
        "clock\", \"parameters\": {\"zone\": \"south\"}}",
    ),
    (
        "mistral",
        "[TOOL_CALLS]",
        "[{\"name\": \"clock\", \"arguments\": {\"zone\": \"south\"}}]",
    ),
    (
        "mistral-args",
        "[TOOL_CALLS]",
        "clock[ARGS]{\"zone\": \"south\"}",
    ),
    (
        "gemma",
        "```tool_code",
        "\n{\"name\": \"clock\", \"parameters\": {\"zone\": \"south\"}}\n```",
    ),
    (
        "deepseek-v3",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>clock\n```json\n{\"zone\": \"south\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>clock<｜tool▁sep｜>{\"zone\": \"south\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "harmony",
        "<|channel|>commentary to=functions.",
        "clock <|constrain|>json<|message|>{\"zone\": \"south\"}",
    ),
    (
        "command-r",
        "<|START_ACTION|>",
        "[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"clock\", \"parameters\": {\"zone\": \"south\"}}\n]<|END_ACTION|>",
    ),
];

/// Free text is unchanged; the call is the one the model wants, and then the text ends.
#[test]
fn free_text_then_a_call() {
    for marks in [&[][..], &MARKS] {
        with_tokenizer(marks, |tokenizer| {
            for (name, trigger, call) in CALLS {
                let mut sampler = lazy(name, false, tokenizer);
                let wanted = format!("I look <too. {trigger}{call}");
                let more = format!("{wanted} and more");
                let tokens = encode(tokenizer, &more);
                for _ in 0..2 {
                    let (text, _) = written(&mut sampler, tokenizer, &tokens, 400);
                    assert_eq!(text, wanted, "{name}");
                }
            }
        });
    }
}

#[test]
fn a_call_that_goes_wrong_is_kept_right() {
    with_tokenizer(&MARKS, |tokenizer| {
        let mut sampler = lazy("hermes", false, tokenizer);
        let wanted = "So <tool_call>\n{\"name\": \"clock\", \"arguments\": {\"zone\": \"east\"}}";
        let (text, _) = written(&mut sampler, tokenizer, &encode(tokenizer, wanted), 400);
        let call = text.strip_prefix("So <tool_call>").expect("free");
        let call = call.strip_suffix("</tool_call>").expect("to the end");
        let call: serde_json::Value = serde_json::from_str(call).expect("JSON");
        assert_eq!(call["name"], "clock");
        let zone = &call["arguments"]["zone"];
        assert!(*zone == "north" || *zone == "south", "{text}");
    });
}

/// Calls that are only mentioned in reasoning do not constrain the text.
#[test]
fn triggers_in_reasoning_do_not_count() {
    with_tokenizer(&[], |tokenizer| {
        for (is_open, wanted) in [
            (
                false,
                "<think>A <tool_call> would be wrong.</think>So it is.",
            ),
            (true, "A <tool_call> would be wrong.</think>So it is."),
        ] {
            let mut sampler = lazy("hermes", is_open, tokenizer);
            let (text, _) = written(&mut sampler, tokenizer, &encode(tokenizer, wanted), 400);
            assert_eq!(text, wanted);
        }
        // A call without a mark is a whole answer.
        let mut sampler = lazy("llama3", false, tokenizer);
        let wanted = "As JSON: {\"name\": \"Tom\"}.";
        let (text, _) = written(&mut sampler, tokenizer, &encode(tokenizer, wanted), 400);
        assert_eq!(text, wanted);
        let wanted = "{\"name\": \"Tom\"}.";
        let (text, _) = written(&mut sampler, tokenizer, &encode(tokenizer, wanted), 400);
        assert!(text.starts_with("{\"name\": \"clock\""), "{text}");
    });
}

#[test]
fn reasoning_ends_within_its_budget() {
    for marks in [&[][..], &MARKS] {
        with_tokenizer(marks, |tokenizer| {
            let dialect = Dialect::from_name("hermes").expect("known");
            let vocabulary = Vocabulary::new(tokenizer).expect("small");
            let thought = encode(tokenizer, &"once upon a time ".repeat(40));
            let close = encode(tokenizer, "</think>\n\n");
            for n in [0, 1, 7] {
                let made = sampler(tokenizer).with_reasoning_budget(
                    n,
                    &dialect,
                    "<think>\n",
                    tokenizer,
                    &vocabulary,
                );
                let mut made = made.expect("it can be written");
                for _ in 0..2 {
                    let (_, tokens) = written(&mut made, tokenizer, &thought, 40);
                    assert_eq!(tokens[..n], thought[..n]);
                    assert_eq!(tokens[n..n + close.len()], close);
                    // Afterwards the text is free.
                    assert_eq!(tokens[n + close.len()..][..5], thought[n..n + 5]);
                }
                // Reasoning that starts in the answer.
                let open = encode(tokenizer, "<think>");
                let wanted = [&*open, &thought].concat();
                let made = sampler(tokenizer).with_reasoning_budget(
                    n,
                    &dialect,
                    "",
                    tokenizer,
                    &vocabulary,
                );
                let mut made = made.expect("it can be written");
                let (_, tokens) = written(&mut made, tokenizer, &wanted, 40);
                let begin = open.len() + n;
                assert_eq!(tokens[begin..begin + close.len()], close);
            }
        });
    }
}

/// A budget and a grammar that both apply to the same reasoning.
#[test]
fn a_budget_and_a_call() {
    for marks in [&[][..], &MARKS] {
        with_tokenizer(marks, |tokenizer| {
            for name in ["hermes", "mistral", "harmony", "command-r"] {
                let dialect = Dialect::from_name(name).expect("known");
                let made = dialect.call_grammar(
                    &tools(),
                    &ToolChoice::Required,
                    false,
                    ReasoningState::Open,
                );
                let made = made.expect("a call must come");
                let vocabulary = Vocabulary::new(tokenizer).expect("small");
                let grammar = Grammar::compiled(&made.source, &vocabulary).expect(name);
                let (open, close) = dialect.reasoning_marks().expect("it reasons");
                let made = sampler(tokenizer).with_grammar(grammar);
                let made = made.with_reasoning_budget(5, &dialect, open, tokenizer, &vocabulary);
                let mut made = made.expect("it can be written");
                let thought = encode(tokenizer, &"once upon a time ".repeat(40));
                let (text, tokens) = written(&mut made, tokenizer, &thought, 200);
                assert_eq!(tokens[..5], thought[..5]);
                let (_, call) = text.split_once(close).expect("it is closed");
                assert!(call.contains("clock"), "{name}: {text}");
                assert!(made.is_complete(), "{name}: {text}");
            }
        });
    }
}

/// If a token continues after a trigger, the grammar must accept the rest, or the trigger does not count.
#[test]
fn triggers_may_end_within_tokens() {
    with_tokenizer(&[], |tokenizer| {
        let source = GrammarSource::Gbnf("root ::= \"ce \" [a-c]{3}".into());
        let grammar = Grammar::new(&source, tokenizer).expect("well formed");
        let triggers = Triggers {
            all: vec!["on".into()],
            reasoning: None,
        };
        let mut sampler = sampler(tokenizer).with_lazy_grammar(grammar, triggers);
        let wanted = encode(tokenizer, "one tone of stone once upon a time");
        assert!(wanted.contains(&encode(tokenizer, " once")[0]));
        let (text, _) = written(&mut sampler, tokenizer, &wanted[..], 60);
        let (free, rest) = text.split_once(" once ").expect("it is free until then");
        assert_eq!(free, "one tone of stone");
        assert_eq!(rest.len(), 3, "{text}");
    });
}

/// The thread that makes a mask does not affect the tokens. A helper that never runs is not waited for, and one that
/// panics fails the text.
#[test]
fn masks_may_be_made_by_a_helper() {
    with_tokenizer(&[], |tokenizer| {
        let source = GrammarSource::Gbnf("root ::= (\"once \" | \"upon \"){2,20} \"a\"".into());
        let grammar = Grammar::new(&source, tokenizer).expect("well formed");
        let wanted = encode(tokenizer, "once upon upon a time");
        let n_asked = Arc::new(AtomicUsize::new(0));
        let text = |help: fn(Box<dyn FnOnce() + Send>)| {
            let mut sampler = sampler(tokenizer).with_grammar(grammar.clone());
            let asked = Arc::clone(&n_asked);
            let helper: Helper = Arc::new(move |work| {
                asked.fetch_add(1, Ordering::Relaxed);
                help(work);
            });
            sampler = sampler.with_helper(helper);
            if let Some(grammar) = &mut sampler.grammar {
                grammar.worth = Duration::ZERO;
            }
            written(&mut sampler, tokenizer, &wanted, 80)
        };
        let alone = written(
            &mut sampler(tokenizer).with_grammar(grammar.clone()),
            tokenizer,
            &wanted,
            80,
        );
        assert!(alone.0.starts_with("once upon upon "), "{}", alone.0);
        assert_eq!(text(|work| work()), alone);
        assert_eq!(text(|work| drop(std::thread::spawn(work))), alone);
        assert_eq!(text(drop), alone);
        assert!(n_asked.load(Ordering::Relaxed) >= 3 * (alone.1.len() - 1));
        let mut broken = sampler(tokenizer).with_grammar(grammar.clone());
        let guide = broken.grammar.as_ref().expect("it has one");
        let panicked = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
            let _held = guide.lock();
            panic!("in the midst of a mask");
        }));
        assert!(panicked.is_err());
        let logits = vec![0.0; tokenizer.n_vocab() as usize];
        let error = broken.sample(&logits, &[], 0, 0).expect_err("it is lost");
        assert!(
            error.to_string().contains("could not be computed"),
            "{error}"
        );
    });
}
