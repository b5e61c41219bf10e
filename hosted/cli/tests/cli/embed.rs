//! `sluice embed` against llama.cpp's embeddings, and its errors.

use crate::support::{TemporaryFile, fails, run_to};
use serde_json::Value;

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/embed/tiny-bert-f16.gguf"
);
const GOLDEN: &str = include_str!("../../../../tests/fixtures/embed/tiny-bert-f16.embeddings.json");

fn golden() -> Value {
    serde_json::from_str(GOLDEN).expect("the golden is JSON")
}

fn floats(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().expect("an array").iter();
    numbers.map(|x| x.as_f64().expect("a number")).collect()
}

/// The embeddings that the program prints.
fn embeddings(args: &[&str]) -> Vec<Vec<f64>> {
    let ran = run_to(0, &[&["embed", "-m", MODEL], args].concat());
    let json: Value = serde_json::from_str(&ran.stdout).expect("stdout is JSON");
    assert_eq!(json["object"], "list");
    let data = json["data"].as_array().expect("an array");
    for (i, entry) in data.iter().enumerate() {
        assert_eq!(entry["object"], "embedding");
        assert_eq!(entry["index"], i);
    }
    data.iter()
        .map(|entry| floats(&entry["embedding"]))
        .collect()
}

/// The texts, one per line.
fn texts() -> String {
    let golden = golden();
    let texts = golden["texts"].as_array().expect("an array").iter();
    let texts: Vec<&str> = texts.map(|text| text.as_str().expect("a text")).collect();
    texts.join("\n")
}

#[test]
fn every_pooling_is_llama_cpps() {
    let golden = golden();
    for pooling in ["cls", "mean", "last"] {
        let ours = embeddings(&["-p", &texts(), "--pooling", pooling]);
        let theirs: Vec<Vec<f64>> = golden[pooling]
            .as_array()
            .expect("rows")
            .iter()
            .map(floats)
            .collect();
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours.len(), 64);
            let norm: f64 = ours.iter().map(|x| x * x).sum();
            assert!((norm - 1.0).abs() < 1e-6, "{norm}");
            let cosine: f64 = ours.iter().zip(theirs).map(|(a, b)| a * b).sum();
            assert!(cosine > 0.99999, "{pooling}: {cosine}");
            let worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
            assert!(worst.fold(0.0, f64::max) < 2e-3, "{pooling}");
        }
    }
    // The file selects cls; without pooling there are as many rows as tokens.
    let all = texts();
    assert_eq!(
        embeddings(&["-p", &all]),
        embeddings(&["-p", &all, "--pooling", "cls"])
    );
    assert_eq!(embeddings(&["-p", &all, "--pooling", "none"]).len(), 36);
}

#[test]
fn a_text_does_not_depend_on_the_others_nor_on_the_threads() {
    let all = embeddings(&["-p", &texts(), "-t", "1"]);
    for (i, text) in texts().lines().enumerate() {
        assert_eq!(embeddings(&["-p", text, "-t", "3"]), all[i..=i]);
    }
    let file = TemporaryFile::new("lines.txt", format!("{}\n", texts()).as_bytes());
    assert_eq!(embeddings(&["-f", file.path()]), all);
    let parted = texts().replace('\n', "<#>");
    assert_eq!(embeddings(&["-p", &parted, "--embd-separator", "<#>"]), all);
}

#[test]
fn formats_and_norms() {
    let run =
        |args: &[&str]| run_to(0, &[&["embed", "-m", MODEL, "-p", "cat"], args].concat()).stdout;
    let raw = run(&["--embd-output-format", "raw"]);
    let raw: Vec<f64> = raw
        .split_whitespace()
        .map(|x| x.parse().expect("a number"))
        .collect();
    assert_eq!(vec![raw.clone()], embeddings(&["-p", "cat"]));
    let array: Vec<Vec<f64>> =
        serde_json::from_str(&run(&["--embd-output-format", "array"])).expect("JSON");
    assert_eq!(array, vec![raw]);
    let both: Value =
        serde_json::from_str(&run(&["-p", "cat\ncat", "--embd-output-format", "json+"]))
            .expect("JSON");
    assert_eq!(
        both["cosineSimilarity"].to_string(),
        "[[1.0,1.0],[1.0,1.0]]"
    );
    let largest = |x: &[f64]| x.iter().fold(0f64, |max, x| max.max(x.abs()));
    let whole = &embeddings(&["-p", "cat", "--embd-normalize", "0"])[0];
    assert!((largest(whole) - 32760.0).abs() < 0.5);
    let taxicab = &embeddings(&["-p", "cat", "--embd-normalize", "1"])[0];
    assert!((taxicab.iter().map(|x| x.abs()).sum::<f64>() - 1.0).abs() < 1e-5);
    let none = &embeddings(&["-p", "cat", "--embd-normalize", "-1"])[0];
    assert!(none.iter().map(|x| x * x).sum::<f64>() > 2.0);
}

#[test]
fn a_decoder_embeds_too() {
    let model = crate::support::MODEL;
    let json = |args: &[&str]| {
        let args = [&["embed", "-m", model, "-p", "Once upon\na time"], args].concat();
        serde_json::from_str::<Value>(&run_to(0, &args).stdout).expect("JSON")
    };
    let (mean, last) = (json(&[]), json(&["--pooling", "last"]));
    assert_eq!(mean, json(&["--pooling", "mean", "-ub", "2", "-t", "2"]));
    assert_ne!(mean, last);
    assert_eq!(
        mean["data"][1]["embedding"]
            .as_array()
            .expect("numbers")
            .len(),
        256
    );
}

#[test]
fn errors_name_what_is_wrong() {
    fails(2, &["embed", "-m", MODEL], &["-p TEXT, -f FILE, or a pipe"]);
    fails(
        2,
        &["embed", "-m", MODEL, "-p", "a", "--pooling", "rank"],
        &["rank", "mean"],
    );
    fails(
        2,
        &["embed", "-m", MODEL, "-p", "a", "--embd-separator", ""],
        &["--embd-separator"],
    );
    fails(
        1,
        &["embed", "-m", "/nowhere.gguf", "-p", "a"],
        &["/nowhere.gguf"],
    );
    fails(
        1,
        &["embed", "-m", MODEL, "-f", "/nowhere.txt"],
        &["/nowhere.txt"],
    );
    let long = "cat ".repeat(70);
    let long = format!("cat\n{long}");
    fails(
        1,
        &["embed", "-m", MODEL, "-p", &long],
        &["text 1 has 72 tokens", "64"],
    );
    let binary = TemporaryFile::new("binary.txt", &[b'a', 0xff]);
    fails(
        1,
        &["embed", "-m", MODEL, "-f", binary.path()],
        &["not UTF-8", "byte 1"],
    );
    fails(1, &["run", "-m", MODEL, "-p", "a"], &["encoder"]);
}
