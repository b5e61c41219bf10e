//! Prompts of models that fill in: marks in the order of the models' documentation, on small vocabularies with their names.

use super::*;
use crate::api::InfillFile;
use serde_json::Value;
use sluice::file::{GgufHeader, MetaValue};
use sluice_core::gguf::Gguf;
use sluice_core::tokenizer::plan;
use std::path::Path;

fn with_tokenizer<T>(file: &[u8], test: impl FnOnce(&Tokenizer<'_>) -> T) -> T {
    let gguf = Gguf::parse(file, file.len() as u64).expect("a file");
    let mut words = vec![0; plan(&gguf).expect("a vocabulary").words];
    test(&Tokenizer::new(&gguf, &mut words).expect("a vocabulary"))
}

/// A vocabulary of the fixtures with other names for its last tokens, as control tokens.
fn marked(name: &str, marks: &[&str], more: &[(&str, bool)]) -> Vec<u8> {
    const CONTROL: i32 = 3;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokenizer");
    let bytes = std::fs::read(folder.join(name)).expect("a fixture");
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).expect("a file");
    let list = |key: &str| gguf.array(key).expect("a list");
    let tokens = list("tokenizer.ggml.tokens").strings().expect("strings");
    let mut tokens: Vec<String> = tokens
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect();
    let types = list("tokenizer.ggml.token_type").i32s().expect("numbers");
    let mut types: Vec<i32> = types.collect();
    let first = tokens.len() - marks.len();
    for (i, mark) in marks.iter().enumerate() {
        tokens[first + i] = (*mark).to_owned();
        types[first + i] = CONTROL;
    }
    let mut header = GgufHeader::with_metadata_of(&gguf);
    header.set("tokenizer.ggml.tokens", MetaValue::strings(&tokens));
    header.set("tokenizer.ggml.token_type", MetaValue::i32s(&types));
    for (key, value) in more {
        header.set(&format!("tokenizer.ggml.{key}"), *value);
    }
    header.bytes()
}

fn infill(prefix: &str, suffix: &str, files: &[(&str, &str)]) -> Infill {
    let file = |&(name, text): &(&str, &str)| InfillFile {
        name: name.to_owned(),
        text: text.to_owned(),
    };
    Infill {
        prefix: prefix.to_owned(),
        suffix: suffix.to_owned(),
        extra: files.iter().map(file).collect(),
    }
}

/// The tokens of texts between marks.
fn tokens(tokenizer: &Tokenizer<'_>, parts: &[&str]) -> Vec<u32> {
    let mut all = Vec::new();
    for part in parts {
        match tokenizer.token(part.as_bytes()) {
            Some(mark) if tokenizer.is_control(mark) => all.push(mark),
            _ => all.extend(encode("part", tokenizer, part, PLAIN).expect("tokens")),
        }
    }
    all
}

#[test]
fn a_gap_is_between_its_marks_in_the_documented_order() {
    for marks in [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ] {
        let [before, gap, end] = marks;
        let file = marked("bpe.gguf", &marks, &[("add_bos_token", false)]);
        with_tokenizer(&file, |tokenizer| {
            let expected = tokens(tokenizer, &[before, "a boat ", gap, "\n\nthe sea", end]);
            let found = filled(&infill("a boat ", "\n\nthe sea", &[]), tokenizer);
            assert_eq!(found.expect("a prompt"), expected, "{before}");
            // Names of marks in a text are text.
            let found = filled(&infill(gap, end, &[]), tokenizer).expect("a prompt");
            let marks = found.iter().filter(|&&id| tokenizer.is_control(id));
            assert_eq!(marks.count(), 3, "{before}");
        });
    }
}

#[test]
fn other_files_are_a_repository_where_the_model_has_marks_for_one() {
    let marks = [
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "<|repo_name|>",
        "<|file_sep|>",
    ];
    let [before, gap, end, repository, separator] = marks;
    let asked = infill("a", "b", &[("a.py", "one"), ("b.py", "two\n")]);
    let prompt = |marks: &[&str], parts: &[&str]| {
        let file = marked("bpe.gguf", marks, &[("add_bos_token", false)]);
        with_tokenizer(&file, |tokenizer| {
            let found = filled(&asked, tokenizer).expect("a prompt");
            assert_eq!(found, tokens(tokenizer, parts));
        });
    };
    prompt(
        &marks,
        &[
            repository,
            "myproject\n",
            separator,
            "a.py\none\n",
            separator,
            "b.py\ntwo\n",
            separator,
            "filename\n",
            before,
            "a",
            gap,
            "b",
            end,
        ],
    );
    let files = ["\n\n--- a.py ---\none", "\n\n--- b.py ---\ntwo\n"];
    prompt(
        &marks[..3],
        &[files[0], files[1], before, "a", gap, "b", end],
    );
}

#[test]
fn a_suffix_gets_no_space_where_other_texts_get_one() {
    let marks = ["▁<PRE>", "▁<SUF>", "▁<MID>"];
    let [file, bare] =
        [true, false].map(|adds| marked("spm.gguf", &marks, &[("add_space_prefix", adds)]));
    for suffix in ["the sea", " the sea", "\n", ""] {
        let plain = with_tokenizer(&bare, |tokenizer| tokens(tokenizer, &[suffix]));
        with_tokenizer(&file, |tokenizer| {
            let mut expected: Vec<u32> = tokenizer.bos().into_iter().collect();
            expected.extend(tokens(tokenizer, &[marks[0], "a boat", marks[1]]));
            expected.extend(&plain);
            expected.extend(tokens(tokenizer, &[marks[2]]));
            let found = filled(&infill("a boat", suffix, &[]), tokenizer);
            assert_eq!(found.expect("a prompt"), expected, "{suffix:?}");
        });
    }
}

/// `SLUICE_INFILL` names a file of `tests/tools/real_infill.py`: published vocabularies.
#[test]
#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn published_vocabularies_give_the_documented_tokens() {
    let Ok(path) = std::env::var("SLUICE_INFILL") else {
        println!("SKIPPED: SLUICE_INFILL is not set (tests/tools/real_infill.py)");
        return;
    };
    let cases = std::fs::read(path).expect("a file");
    let cases: Vec<Value> = serde_json::from_slice(&cases).expect("cases");
    for case in &cases {
        let text = |key: &str| case[key].as_str().expect("a text");
        let pairs = case["files"].as_array().expect("files").iter();
        let pairs = pairs.map(|pair| (pair[0].as_str(), pair[1].as_str()));
        let files: Vec<_> = pairs.filter_map(|(a, b)| Some((a?, b?))).collect();
        let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("tokens");
        let file = std::fs::read(text("file")).expect("a model");
        let asked = infill(text("prefix"), text("suffix"), &files);
        let found = with_tokenizer(&file, |tokenizer| filled(&asked, tokenizer));
        assert_eq!(found.expect("a prompt"), expected, "{case}");
    }
    assert!(cases.len() >= 12, "{}", cases.len());
}
