//! Labels of conversations through published chat templates, against transformers' `return_assistant_tokens_mask`.
//!
//! `tests/tools/label_goldens.py` records what transformers finds marked. Templates of our own, in the styles of common
//! families, are in `tests/templates`; published ones belong to their authors, so they are kept elsewhere, in the folder
//! that `SLUICE_TEMPLATES` names.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "what is measured is printed")]

use core::ops::Range;
use core::time::Duration;
use serde_json::{Value, json};
use sluice::core::gguf::Gguf;
use sluice::core::tokenizer::Detokenizer;
use sluice::file::{GgufHeader, LoadMode, MetaValue};
use sluice::vocabulary::VocabularyFile;
use sluice_text::chat_template::{ChatTemplate, Message, RenderOptions};
use sluice_train::config::SftConfig;
use sluice_train::data::prepare;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The goldens of a folder.
fn read(folder: &Path) -> Option<Value> {
    let text = fs::read_to_string(folder.join("labels.json")).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// The folder of templates of our own.
fn own() -> (PathBuf, Value) {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/templates"));
    let goldens = read(&folder).expect("it is in the repository");
    (folder, goldens)
}

/// The folder of published templates; `None` after a line that says why.
fn published() -> Option<(PathBuf, Value)> {
    let Some(folder) = std::env::var_os("SLUICE_TEMPLATES").map(PathBuf::from) else {
        println!("SKIPPED: SLUICE_TEMPLATES names no folder of templates");
        return None;
    };
    let goldens = read(&folder);
    if goldens.is_none() {
        println!("SKIPPED: label_goldens.py has not been run on the folder");
    }
    Some((folder, goldens?))
}

/// Ranges of characters as ranges of bytes, without those that touch.
fn bytes(text: &str, spans: &Value) -> Vec<Range<usize>> {
    let mut starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
    starts.push(text.len());
    let place = |value: &Value| starts[usize::try_from(value.as_u64().unwrap()).unwrap()];
    let spans = spans.as_array().unwrap().iter();
    merged(spans.map(|span| place(&span[0])..place(&span[1])).collect())
}

fn merged(spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for span in spans.into_iter().filter(|span| !span.is_empty()) {
        match out.last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => out.push(span),
        }
    }
    out
}

#[test]
fn marked_text_is_what_transformers_finds() {
    let (folder, goldens) = own();
    assert_eq!(equal_marks(&folder, &goldens), 16);
    if let Some((folder, goldens)) = published() {
        let n_equal = equal_marks(&folder, &goldens);
        println!("MEASURED: {n_equal} renderings have transformers' marks");
        assert!(n_equal >= 150, "{n_equal}");
    }
}

/// The number of renderings of which what the template marks is what transformers finds: the same text, and the same
/// ranges. All have to be.
fn equal_marks(folder: &Path, goldens: &Value) -> usize {
    let now = UNIX_EPOCH + Duration::from_secs(goldens["now"].as_u64().unwrap());
    let (mut n_equal, mut wrong) = (0, Vec::new());
    for golden in goldens["templates"].as_array().unwrap() {
        let file = golden["file"].as_str().unwrap();
        let template =
            ChatTemplate::parse(&fs::read_to_string(folder.join(file)).unwrap()).unwrap();
        assert!(template.marks_generated(), "{file}");
        for case in golden["cases"].as_array().unwrap() {
            let talk = &goldens["talks"][case["talk"].as_str().unwrap()];
            let messages: Vec<Message> = serde_json::from_value(talk["messages"].clone()).unwrap();
            let options = RenderOptions {
                bos_token: Some("<s>".into()),
                eos_token: Some("</s>".into()),
                tools: talk["tools"].as_array().cloned(),
                now: Some(now),
                ..RenderOptions::default()
            };
            let label = format!("{file}, {}", case["talk"]);
            let text = case["text"].as_str().unwrap();
            match template.render_generated(&messages, &options) {
                Ok(found) if found.text != text => wrong.push(format!("{label}: another text")),
                Ok(found) => {
                    let found = merged(found.generated);
                    let expected = bytes(text, &case["spans"]);
                    match found == expected {
                        true => n_equal += 1,
                        false => wrong.push(format!("{label}: {found:?} {expected:?}")),
                    }
                }
                Err(error) => wrong.push(format!("{label}: {error}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    n_equal
}

/// Without marks, growing renderings find the turns that the same template's marks say, where both render the same text.
#[test]
fn growing_renderings_find_what_marks_say() {
    let (folder, goldens) = own();
    let found = grown(&folder, &goldens);
    assert!(found.differ.is_empty(), "{}", found.differ.join("\n"));
    assert_eq!([found.n_equal, found.n_later], [12, 4]);
    if let Some((folder, goldens)) = published() {
        let Grown {
            n_equal,
            n_later,
            differ,
        } = grown(&folder, &goldens);
        println!(
            "MEASURED: {n_equal} conversations labelled as by marks, {n_later} after what begins their reasoning"
        );
        println!("{} are not:\n{}", differ.len(), differ.join("\n"));
        assert!(
            differ.len() <= N_DIFFER && n_equal + n_later >= 70,
            "{}",
            differ.len()
        );
    }
}

/// How conversations are labelled without marks.
#[derive(Default)]
struct Grown {
    n_equal: usize,
    /// Some turns begin after what a request for an answer ends with.
    n_later: usize,
    differ: Vec<String>,
}

fn grown(folder: &Path, goldens: &Value) -> Grown {
    let name = folder.file_name().unwrap().display();
    let place = std::env::temp_dir().join(format!("sluice-train-{name}-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let templates = goldens["templates"].as_array().unwrap();
    let cases = || {
        templates
            .iter()
            .flat_map(|golden| golden["cases"].as_array().unwrap())
    };
    let controls = cases().flat_map(|case| case["control"].as_array().unwrap());
    let controls: BTreeSet<&str> = controls.map(|text| text.as_str().unwrap()).collect();
    fs::write(place.join("vocabulary.gguf"), header(&controls)).unwrap();
    let mut grown = Grown::default();
    for case in cases() {
        let Some(plain) = case["plain"].as_str() else {
            continue;
        };
        let talk = case["talk"].as_str().unwrap();
        let text = case["text"].as_str().unwrap();
        let marks = bytes(text, &case["spans"]);
        let marks: Vec<&str> = marks
            .into_iter()
            .map(|span| text[span].trim_end())
            .collect();
        let found = labelled(&place, &folder.join(plain), &goldens["talks"][talk]);
        match found.as_deref().map(|found| compared(found, &marks)) {
            Ok(Some(true)) => grown.n_equal += 1,
            Ok(Some(false)) => grown.n_later += 1,
            _ => grown
                .differ
                .push(format!("{plain}, {talk}: {found:?}, marks: {marks:?}")),
        }
    }
    fs::remove_dir_all(&place).unwrap();
    grown
}

/// Whether all texts are the marked ones, but for space after them. `Some(false)`: some begin later, after what
/// a request for an answer ends with.
fn compared(found: &[String], marks: &[&str]) -> Option<bool> {
    let mut are_equal = true;
    for (found, mark) in found.iter().zip(marks) {
        let begun = mark.strip_suffix(found.trim_end())?;
        are_equal &= begun.is_empty();
        BEGUN.contains(&begun).then_some(())?;
    }
    (found.len() == marks.len()).then_some(are_equal)
}

/// The texts that are learned of a conversation, as a run reads it.
fn labelled(place: &Path, template: &Path, talk: &Value) -> Result<Vec<String>, String> {
    let row = json!({"messages": talk["messages"], "tools": talk["tools"]});
    fs::write(place.join("rows.jsonl"), format!("{row}\n")).unwrap();
    let model = place.join("vocabulary.gguf");
    let flags = [
        format!("--model={}", model.display()),
        format!("--dataset={}", place.join("rows.jsonl").display()),
        format!("--chat_template_path={}", template.display()),
        "--max_length=100000".to_owned(),
    ];
    let config = SftConfig::load(None, &flags).unwrap();
    let vocabulary = VocabularyFile::open(&model, LoadMode::Read).unwrap();
    let dataset = prepare(&config, &vocabulary).map_err(|error| error.to_string())?;
    let row = &dataset.train[0];
    let tokenizer = vocabulary.tokenizer();
    let texts = row.labels.ranges().iter().map(|range| {
        let mut text = String::new();
        let mut detokenizer = Detokenizer::continuing().showing_special();
        for position in range.clone() {
            let id = row.tokens[usize::try_from(position).unwrap()];
            detokenizer
                .push(tokenizer, id, |piece| text.push_str(piece))
                .unwrap();
        }
        text
    });
    Ok(texts.collect())
}

/// The vocabulary of the project's own model with these control tokens.
fn header(controls: &BTreeSet<&str>) -> Vec<u8> {
    let model = Gguf::parse(MODEL, MODEL.len() as u64).unwrap();
    let pieces = model.strings("tokenizer.ggml.tokens").unwrap();
    let mut tokens: Vec<String> = pieces
        .map(|piece| String::from_utf8_lossy(piece).into_owned())
        .collect();
    let mut types = vec![1_i32; tokens.len()];
    let id = |at: usize| u32::try_from(at).unwrap();
    let (bos, eos) = (id(tokens.len()), id(tokens.len() + 1));
    let ends = ["<s>", "</s>"];
    for control in ends
        .iter()
        .chain(controls.iter().filter(|text| !ends.contains(text)))
    {
        tokens.push((*control).to_owned());
        // Models write reasoning and calls with tokens of the user's kind.
        types.push(if control.contains("think") || control.contains("tool") {
            4
        } else {
            3
        });
    }
    let mut header = GgufHeader::with_metadata_of(&model);
    header.set("tokenizer.ggml.tokens", MetaValue::strings(&tokens));
    header.set("tokenizer.ggml.token_type", MetaValue::i32s(&types));
    header.set("tokenizer.ggml.bos_token_id", bos);
    header.set("tokenizer.ggml.eos_token_id", eos);
    header.set("tokenizer.ggml.add_bos_token", false);
    header.bytes()
}

/// What a request for an answer may end with, and the marks of some templates include.
const BEGUN: [&str; 5] = [
    "",
    "<think>",
    "<think>\n",
    "<think>\n\n</think>\n\n",
    "<｜Assistant｜>",
];
/// One template goes on after a tool's result without a header when it asks, and with one when it has the answer. Two write
/// calls in a format that answers are not parsed in: like the server, a run writes them in its own.
const N_DIFFER: usize = 3;
const MODEL: &[u8] = include_bytes!("../../models/tale-5.8m-Q4_K_M.gguf");
