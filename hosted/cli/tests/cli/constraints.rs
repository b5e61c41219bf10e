//! How tokens are chosen and texts end: grammars, schemas, stops, samplers, log-probabilities.

use crate::support::{TemporaryFile, fails, run_to};
use serde_json::Value;

const GREEDY: [&str; 9] = [
    "run",
    "-p",
    "Once upon a time",
    "-n",
    "40",
    "--temp",
    "0",
    "-q",
    "--no-display-prompt",
];

/// The text generated after the prompt, without the newline that ends it.
fn greedy(more: &[&str]) -> String {
    let text = run_to(0, &[&GREEDY[..], more].concat()).stdout;
    text.strip_suffix('\n').unwrap_or(&text).to_owned()
}

#[test]
fn log_probabilities_are_those_of_the_text() {
    let text = greedy(&[]);
    let lines = greedy(&["--logprobs", "1000"]);
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect();
    assert_eq!(lines.len(), 40);
    let mut written = Vec::new();
    for line in &lines {
        let bytes = line["bytes"].as_array().expect("bytes").iter();
        written.extend(
            bytes.map(|byte| u8::try_from(byte.as_u64().expect("a number")).expect("a byte")),
        );
        let top = line["top_logprobs"].as_array().expect("the likeliest");
        let of = |entry: &Value| entry["logprob"].as_f64().expect("a number");
        assert_eq!(top.len(), 1000);
        assert!(top.is_sorted_by(|a, b| of(a) >= of(b)));
        // The most likely token is chosen, and a thousand tokens have nearly all of the
        // probability.
        assert_eq!(line["id"], top[0]["id"]);
        let sum: f64 = top.iter().map(|entry| of(entry).exp()).sum();
        assert!((0.95..=1.000_01).contains(&sum), "{sum}");
    }
    assert_eq!(String::from_utf8(written).expect("UTF-8"), text);
    fails(
        2,
        &["run", "--logprobs", "1", "--json"],
        &["--logprobs", "--json"],
    );
    // A forbidden token has no log-probability.
    let first = lines[0]["id"].to_string();
    let banned = greedy(&["--logprobs", "2", "-l", &format!("{first}-inf"), "-n", "1"]);
    let banned: Value = serde_json::from_str(&banned).expect("a JSON line");
    assert_eq!(banned["id"], lines[0]["top_logprobs"][1]["id"]);
    fails(2, &["run", "-l", "12"], &["12", "15043-1.5"]);
    fails(1, &["run", "-l", "99999+1"], &["99999"]);
}

const SCHEMA: &str = r#"{"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 8},
    "age": {"type": "integer", "minimum": 0, "maximum": 30},
    "is_tame": {"type": "boolean"}}, "required": ["name", "age"]}"#;

#[test]
fn documents_keep_to_a_schema() {
    let file = TemporaryFile::new("schema.json", SCHEMA.as_bytes());
    for seed in ["1", "2", "3", "4"] {
        let args = [
            "run",
            "-p",
            "A pet: ",
            "-q",
            "--no-display-prompt",
            "-s",
            seed,
            "-c",
            "512",
        ];
        let by_flag = run_to(0, &[&args[..], &["-j", SCHEMA]].concat()).stdout;
        let document: Value = serde_json::from_str(&by_flag).expect("a document");
        let object = document.as_object().expect("an object");
        assert!(
            object["name"].as_str().expect("a name").chars().count() <= 8,
            "{by_flag}"
        );
        assert!(object["age"].as_u64().expect("an age") <= 30, "{by_flag}");
        // As in llama.cpp, properties that the schema does not name are not allowed.
        let known = ["name", "age", "is_tame"];
        assert!(
            object.keys().all(|key| known.contains(&&**key)),
            "{by_flag}"
        );
        let by_file = run_to(0, &[&args[..], &["-jf", file.path()]].concat()).stdout;
        assert_eq!(by_file, by_flag);
    }
    fails(
        1,
        &["run", "-n", "1", "-j", "{"],
        &["--json-schema", "not valid JSON"],
    );
    fails(
        1,
        &["run", "-n", "1", "-j", "[1]"],
        &["--json-schema", "[1]"],
    );
    fails(
        1,
        &["run", "-n", "1", "-jf", "/no.json"],
        &["/no.json", "No such file"],
    );
    fails(
        2,
        &["run", "-j", "{}", "--grammar", "root ::= \"a\""],
        &["--grammar", "--json-schema"],
    );
}

#[test]
fn texts_keep_to_a_grammar() {
    let grammar = "root ::= (\"yes\" | \"no\") \", \" [a-z]{3,5} \"!\"";
    let file = TemporaryFile::new("answer.gbnf", grammar.as_bytes());
    for seed in ["1", "2", "3"] {
        let args = [
            "run",
            "-p",
            "Is it? ",
            "-q",
            "--no-display-prompt",
            "-s",
            seed,
            "--temp",
            "2",
        ];
        let text = run_to(0, &[&args[..], &["--grammar", grammar]].concat()).stdout;
        let word = text
            .trim_end()
            .strip_prefix("yes, ")
            .or(text.trim_end().strip_prefix("no, "));
        let word = word
            .and_then(|rest| rest.strip_suffix('!'))
            .expect("the grammar");
        assert!((3..=5).contains(&word.len()), "{text}");
        assert!(word.bytes().all(|b| b.is_ascii_lowercase()), "{text}");
        let by_file = run_to(0, &[&args[..], &["--grammar-file", file.path()]].concat()).stdout;
        assert_eq!(by_file, text);
    }
    let wrong = ["run", "-n", "1", "--grammar", "root ::= a"];
    fails(
        1,
        &wrong,
        &["--grammar: line 1: the rule \"a\" is not defined"],
    );
    assert_eq!(
        run_to(1, &wrong).stderr.matches("is not defined").count(),
        1
    );
    fails(
        1,
        &["run", "--grammar-file", "/no.gbnf"],
        &["/no.gbnf", "No such file"],
    );
}

#[test]
fn texts_end_before_a_stop_and_behind_a_reverse_prompt() {
    let text = greedy(&[]);
    // From the middle of one token into another.
    let at = text.len() / 2;
    let stop = &text[at..at + 7];
    let end = text.find(stop).expect("it is there");
    assert_eq!(greedy(&["--stop", "never", "--stop", stop]), text[..end]);
    assert_eq!(greedy(&["-r", stop]), text[..end + stop.len()]);
    assert_eq!(
        greedy(&["--reverse-prompt", stop, "--stop", "never"]),
        text[..end + stop.len()]
    );
    assert_eq!(greedy(&["--stop", "never"]), text);
    let object: Value = serde_json::from_str(&greedy(&["--json", "--stop", stop])).expect("JSON");
    assert_eq!(object["content"], text[..end]);
}

#[test]
fn samplers_run_in_the_order_given() {
    let best = greedy(&[]);
    let with = |more: &[&str]| {
        let args = [
            "run",
            "-p",
            "Once upon a time",
            "-n",
            "40",
            "-q",
            "--no-display-prompt",
            "-s",
            "5",
            "--ignore-eos",
            "--temp",
            "1000",
            "--min-p",
            "0.999",
        ];
        let text = run_to(0, &[&args[..], more].concat()).stdout;
        text.trim_end_matches('\n').to_owned()
    };
    // One token is nearly as likely as the best one, unless the temperature has made all so.
    assert_eq!(with(&["--samplers", "min_p;temperature"]), best);
    assert_ne!(with(&["--samplers", "temperature;min_p"]), best);
    assert_eq!(with(&["--sampling-seq", "mt"]), best);
    assert_eq!(
        with(&["--sampling-seq", "tm"]),
        with(&["--samplers", "temperature;min_p"])
    );
    // The last of the two flags counts, and samplers that are not in the list do not run.
    assert_eq!(
        with(&["--samplers", "temperature", "--sampling-seq", "mt"]),
        best
    );
    assert_ne!(with(&["--samplers", "temperature"]), best);
    assert_eq!(
        with(&["--samplers", "temperature;top_k", "--top-k", "1"]),
        best
    );
    fails(
        2,
        &["run", "--samplers", "top_k;nope"],
        &["--samplers", "nope", "xtc"],
    );
    fails(
        2,
        &["run", "--sampling-seq", "k!"],
        &["--sampling-seq", "!"],
    );
}

#[test]
fn the_doctor_says_what_runs_and_how_to_mend_the_rest() {
    let report = run_to(0, &["doctor"]).stdout;
    for words in [
        "Kernels",
        "scalar",
        "avx2",
        "Processor",
        "NUMA",
        "huge pages",
        "Limits",
        "locked memory",
        "Drives",
        "O_DIRECT",
        "io_uring",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    let object: Value =
        serde_json::from_str(&run_to(0, &["doctor", "--json"]).stdout).expect("JSON");
    let problems = report.lines().filter(|line| line.starts_with('!')).count();
    let fixes = report.matches("fix: ").count();
    assert!(fixes >= problems.min(1), "{report}");
    let titles = object["sections"].as_array().expect("a list").len();
    assert!(titles >= 6, "{object}");
    let mut command = crate::support::sluice();
    command
        .args(["doctor"])
        .env("SLUICE_ISA", "scalar")
        .env("NO_COLOR", "1");
    let ran = crate::support::ran(command.output().expect("it starts"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stdout.contains('\x1b'), "{ran:?}");
}
