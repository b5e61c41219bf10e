//! `sluice rerank`: order, formats and errors.

use crate::support::{TemporaryFile, fails, fixture, run_to};
use serde_json::Value;

const QUERY: &str = "the sea";
const DOCUMENTS: [&str; 3] = ["a cat slept", "the sea was calm", "12 boats!"];

fn json(args: &[&str]) -> Value {
    let model = fixture("embed/bert-rank.gguf");
    let first = [
        "rerank",
        "-m",
        &model,
        "--query",
        QUERY,
        "--output-format",
        "json",
    ];
    let ran = run_to(0, &[&first, args].concat());
    serde_json::from_str(&ran.stdout).expect("stdout is JSON")
}

/// The three documents as arguments.
fn documents() -> Vec<&'static str> {
    DOCUMENTS.iter().flat_map(|text| ["-d", text]).collect()
}

#[test]
fn the_best_comes_first_however_documents_come() {
    let all = json(&documents());
    let results = all["results"].as_array().expect("a list");
    assert_eq!(results.len(), 3);
    let score = |i: usize| results[i]["relevance_score"].as_f64().expect("a number");
    assert!(score(0) >= score(1) && score(1) >= score(2));
    assert!(all["usage"]["prompt_tokens"].as_u64() > Some(10));
    let file = TemporaryFile::new("documents.txt", DOCUMENTS.join("\n").as_bytes());
    assert_eq!(json(&["-f", file.path(), "-t", "2"]), all);
    let two = json(&["-f", file.path(), "--top-n", "2"]);
    assert_eq!(two["results"].as_array(), Some(&results[..2].to_vec()));
    let model = fixture("embed/bert-rank.gguf");
    let args = ["rerank", "-m", &model, "--query", QUERY, "-f", file.path()];
    let text = run_to(0, &args).stdout;
    let first: Vec<&str> = text.lines().next().expect("a line").split('\t').collect();
    let best: usize = first[1].parse().expect("a number");
    assert_eq!(
        (results[0]["index"].as_u64(), first[2]),
        (Some(best as u64), DOCUMENTS[best])
    );
}

#[test]
fn errors_name_what_is_wrong() {
    let model = fixture("embed/bert-rank.gguf");
    let asked = ["rerank", "-m", &model, "--query", "a"];
    fails(2, &asked, &["-d TEXT, -f FILE, or a pipe"]);
    fails(2, &["rerank", "-m", &model, "-d", "a"], &["--query"]);
    let with = |args: &[&'static str]| [&asked[..], args].concat();
    fails(2, &with(&["-d", "a", "--top-n", "0"]), &["--top-n", "0"]);
    fails(2, &with(&["-d", "a", "-f", "b"]), &["--file"]);
    fails(1, &with(&["-f", "/nowhere.txt"]), &["/nowhere.txt"]);
    let long = "cat ".repeat(260);
    let args = [&asked[..], &["-d", "a", "-d", &long]].concat();
    fails(1, &args, &["document 1 has", "256"]);
    let embedder = fixture("embed/eurobert.gguf");
    let args = ["rerank", "-m", &embedder, "--query", "a", "-d", "b"];
    fails(1, &args, &["no ranking head", "eurobert"]);
}
