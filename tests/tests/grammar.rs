//! What the project's own model writes under a JSON schema and under grammars.
//!
//! The documents are checked by a validator of a few lines here, not by what constrained them.

use serde_json::Value;
use sluice::file::ModelFile;
use sluice::generate::EndReason;
use sluice::host::topology::Cores;
use sluice::model::ModelSource;
use sluice::{Limits, Session, Settings, Team};
use sluice_core::sampler::SamplerConfig;
use sluice_text::grammar::{Grammar, GrammarSource};
use sluice_text::sampling::{Sampler, SamplingSettings};

const MODEL: &[u8] = include_bytes!("../../hosted/models/tale-5.8m-Q4_K_M.gguf");
const N_CTX: usize = 512;

/// The model of the project at work.
fn session() -> Session {
    let file = ModelFile::from_static("tale", MODEL).expect("the model of the project runs");
    let opened = ModelSource::of_file(file).expect("the model of the project runs");
    let team = Team::new(1, &Cores::detect()).expect("a thread starts");
    let limits = Limits {
        n_ctx: N_CTX,
        n_batch: 32,
        ..Limits::default()
    };
    let model = opened.load(&team).expect("the model of the project runs");
    model.session_on(&team, limits).expect("there is memory")
}

/// What is written after `prompt` until the grammar or the model ends it; `None` where the
/// context is full before.
fn generate(session: &mut Session, sampler: Sampler, prompt: &str) -> Option<String> {
    let mut sequence = session
        .begin(prompt, &Settings::default())
        .expect("the prompt fits");
    sequence.set_sampler(Box::new(sampler));
    let mut text = String::new();
    while sequence.ended().is_none() {
        for event in session
            .step(&mut [&mut sequence])
            .expect("the model of the project runs")
        {
            text.push_str(&event.piece);
        }
    }
    (sequence.ended() == Some(EndReason::EndOfText)).then_some(text)
}

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "kind": {"enum": ["cat", "dog", "bird", null]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
        "home": {
            "type": "object",
            "properties": {"warm": {"type": "boolean"}, "rooms": {"type": "number", "minimum": 1, "maximum": 9}},
            "required": ["warm"],
            "additionalProperties": false
        }
    },
    "required": ["name", "kind", "age", "likes"],
    "additionalProperties": false
}"#;

/// Whether `document` is what [`SCHEMA`] describes, by hand.
fn is_valid(document: &Value) -> bool {
    let keys = |value: &Value, known: &[&str]| {
        let object = value.as_object();
        object.is_some_and(|object| object.keys().all(|key| known.contains(&key.as_str())))
    };
    let text = |value: &Value, least, most| {
        let length = value.as_str().map(|text| text.chars().count());
        length.is_some_and(|length| (least..=most).contains(&length))
    };
    let home_is_valid = |home: &Value| {
        let rooms = &home["rooms"];
        keys(home, &["warm", "rooms"])
            && home["warm"].is_boolean()
            && (home.get("rooms").is_none()
                || rooms.as_f64().is_some_and(|n| (1.0..=9.0).contains(&n)))
    };
    keys(document, &["name", "kind", "age", "likes", "home"])
        && text(&document["name"], 1, 12)
        && document.get("kind").is_some()
        && (document["kind"].is_null()
            || ["cat", "dog", "bird"]
                .iter()
                .any(|kind| document["kind"] == *kind))
        && document["age"].as_u64().is_some_and(|age| age <= 120)
        && document["likes"]
            .as_array()
            .is_some_and(|likes| likes.len() <= 3 && likes.iter().all(|like| text(like, 0, 10)))
        && document.get("home").is_none_or(home_is_valid)
}

#[test]
fn the_validator_refuses() {
    let good =
        r#"{"name":"Bo","kind":null,"age":3,"likes":["a"],"home":{"warm":true,"rooms":2.5}}"#;
    assert!(is_valid(
        &serde_json::from_str(good).expect("the model of the project runs")
    ));
    for (from, to) in [
        ("\"Bo\"", "\"\""),
        ("null", "\"cow\""),
        ("3", "121"),
        ("3", "3.5"),
        ("[\"a\"]", "[1]"),
        ("[\"a\"]", "[\"a\",\"b\",\"c\",\"d\"]"),
        ("2.5", "0"),
        ("\"warm\"", "\"cold\""),
        ("\"age\"", "\"years\""),
    ] {
        let bad = good.replacen(from, to, 1);
        assert!(
            !is_valid(&serde_json::from_str(&bad).expect("the model of the project runs")),
            "{bad}"
        );
    }
}

#[test]
fn a_schema_makes_two_hundred_valid_documents() {
    let mut session = session();
    let model = session.model().clone();
    let tokenizer = model.tokenizer();
    let source = GrammarSource::JsonSchema(SCHEMA.into());
    let prompt = "Once upon a time there was an animal. This is what it was: ";
    let mut documents = std::collections::HashSet::new();
    for seed in 0..200 {
        let settings = SamplingSettings {
            config: SamplerConfig {
                seed,
                ..SamplerConfig::DEFAULT
            },
            ..SamplingSettings::default()
        };
        // Compiled once a seed, as a program would.
        let grammar = Grammar::new(&source, tokenizer).expect("the model of the project runs");
        let sampler =
            Sampler::new(&settings, tokenizer, N_CTX).expect("the model of the project runs");
        let sampler = sampler.with_grammar(grammar);
        let text = generate(&mut session, sampler, prompt);
        let text = text.unwrap_or_else(|| panic!("seed {seed}: not complete"));
        let document = serde_json::from_str(&text);
        let document: Value = document.unwrap_or_else(|error| panic!("{seed}: {error}: {text}"));
        assert!(is_valid(&document), "seed {seed}: {text}");
        documents.insert(text);
    }
    assert!(
        documents.len() > 150,
        "{} different documents",
        documents.len()
    );
}

#[test]
fn grammars_are_obeyed() {
    let is_list = |text: &str| {
        text.split('\n').all(|line| {
            let item = line.strip_prefix("- ").unwrap_or_default();
            let words: Vec<&str> = item.split(' ').collect();
            let letters =
                |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphabetic());
            (1..=4).contains(&words.len()) && words.iter().all(letters)
        })
    };
    let is_nested = |text: &str| {
        let depths = text.bytes().scan(0i32, |depth, byte| {
            *depth += i32::from(byte == b'(') - i32::from(byte == b')');
            Some(*depth)
        });
        let depths: Vec<i32> = depths.collect();
        depths.iter().all(|&depth| depth >= 0)
            && depths.last() == Some(&0)
            && text.bytes().all(|byte| b"()0123456789+*- ".contains(&byte))
    };
    let is_game = |text: &str| {
        text.split(' ').all(|part| {
            let squares = part.as_bytes();
            squares.len() == 4
                && squares
                    .chunks(2)
                    .all(|s| (b'a'..=b'h').contains(&s[0]) && (b'1'..=b'8').contains(&s[1]))
        })
    };
    type Check<'c> = &'c dyn Fn(&str) -> bool;
    let cases: [(&str, Check<'_>); 3] = [
        (
            "root ::= item (\"\\n\" item){0,5}\nitem ::= \"- \" word (\" \" word){0,3}\nword ::= [a-zA-Z]{1,9}",
            &is_list,
        ),
        (
            "root ::= sum\nsum ::= part (\" \" [-+*] \" \" part){0,2}\npart ::= [0-9]{1,3} | \"(\" sum \")\"",
            &is_nested,
        ),
        (
            "root ::= move (\" \" move){3,9}\nmove ::= [a-h] [1-8] [a-h] [1-8]",
            &is_game,
        ),
    ];
    let mut session = session();
    let model = session.model().clone();
    let tokenizer = model.tokenizer();
    let prompt = "This is what Tom wrote down: ";
    for (gbnf, obeys) in cases {
        let source = GrammarSource::Gbnf(gbnf.into());
        let mut n_complete = 0;
        for seed in 0..10 {
            let mut settings = SamplingSettings::default();
            settings.config.seed = seed;
            let grammar = Grammar::new(&source, tokenizer).expect("the model of the project runs");
            let sampler =
                Sampler::new(&settings, tokenizer, N_CTX).expect("the model of the project runs");
            let sampler = sampler.with_grammar(grammar);
            // A model may open parentheses until the context is full.
            let text = generate(&mut session, sampler, prompt);
            let Some(text) = text else { continue };
            n_complete += 1;
            assert!(obeys(&text), "{gbnf}: {text:?}");
        }
        assert!(n_complete > 4, "{gbnf}: {n_complete} were complete");
    }
}
