use super::super::Drop;
use crate::test_vocabulary::TestFolder;
use core::fmt::Write as _;

/// Rows of texts that differ.
fn texts(n: usize) -> String {
    let mut rows = String::new();
    for at in 0..n {
        let _ = writeln!(rows, "{{\"text\": \"Once there was a fox named {at}.\"}}");
    }
    rows
}

/// What a file of these bytes is refused with.
fn refusal(name: &str, file: &str, bytes: &str, settings: &str) -> String {
    let folder = TestFolder::new(name);
    folder.write(file, bytes);
    let text = format!("dataset: DIR/{file}\nchat_template: chatml\n{settings}");
    folder.prepare(&text).expect_err("it is refused")
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = TestFolder::new("unreadable");
    let error = folder
        .prepare("dataset: DIR/none.jsonl\n")
        .expect_err("missing");
    assert!(
        error.starts_with("none.jsonl: cannot read the rows: No such file"),
        "{error}"
    );
    let error = folder.prepare("").expect_err("no data set");
    assert!(error.starts_with("dataset is not set"), "{error}");
    folder.write("empty.jsonl", "\n\n");
    let error = folder
        .prepare("dataset: DIR/empty.jsonl\n")
        .expect_err("empty");
    assert_eq!(error, "empty.jsonl: the file has no rows");
    for (file, hint) in [
        ("a.parquet", "write the table as .jsonl first"),
        ("a.gz", "unpack"),
        ("a.doc", ""),
    ] {
        folder.write(file, "x");
        let error = folder
            .prepare(&format!("dataset: DIR/{file}\n"))
            .expect_err("a format");
        assert!(
            error.starts_with(&format!("{file}: not supported")) && error.contains(hint),
            "{error}"
        );
    }
    folder.write("none/x.txt", "");
    let error = folder.prepare("dataset: DIR/none\n").expect_err("a folder");
    assert!(
        error.starts_with("none: the folder has no train.jsonl"),
        "{error}"
    );
}

#[test]
fn broken_json_names_line_and_column() {
    let error = refusal(
        "json",
        "a.jsonl",
        "{\"text\": \"a\"}\n{\"text\": \"b\",}\n",
        "",
    );
    assert_eq!(
        error,
        "a.jsonl, line 2, column 14: not JSON: trailing comma"
    );
    let error = refusal(
        "json-list",
        "a.json",
        "[{\"text\": \"a\"},\n {\"text\" \"b\"}]",
        "",
    );
    assert_eq!(error, "a.json, line 2, column 10: not JSON: expected `:`");
    let error = refusal("json-no-rows", "a.json", "{\"a\": [1], \"b\": [2]}", "");
    assert!(error.contains("are both lists"), "{error}");
    let error = refusal("jsonl-list", "a.jsonl", "[1]\n", "");
    assert_eq!(
        error,
        "a.jsonl, line 1: expected an object: {\"column\": value}"
    );
    let error = refusal("csv", "a.csv", "prompt,completion\na,b\nc\n", "");
    assert_eq!(
        error,
        "a.csv, line 3: not CSV: the header has 2 columns, and this row 1"
    );
}

#[test]
fn wrong_columns_and_values_name_the_row() {
    for (name, rows, settings, expected) in WRONG_ROWS {
        let error = refusal(name, "a.jsonl", rows, settings);
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn messages_need_a_template() {
    let folder = TestFolder::new("no-template");
    folder.write(
        "a.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n",
    );
    let error = folder
        .prepare("dataset: DIR/a.jsonl\n")
        .expect_err("no template");
    assert!(
        error.starts_with("a.jsonl, line 1: the model has no chat template"),
        "{error}"
    );
    let error = folder
        .prepare("dataset: DIR/a.jsonl\nchat_template: llama9\n")
        .expect_err("unknown");
    assert!(
        error.starts_with("chat_template: unknown chat template \"llama9\""),
        "{error}"
    );
    let error = folder.prepare("dataset: DIR/a.jsonl\nchat_template_path: DIR/none\n");
    assert!(
        error
            .expect_err("missing")
            .starts_with("chat_template_path: none")
    );
}

#[test]
fn duplicates_are_dropped_and_counted() {
    let folder = TestFolder::new("duplicates");
    folder.write("a.jsonl", texts(6) + &texts(3));
    folder.write("b.jsonl", texts(8));
    let text = "dataset: DIR/a.jsonl\neval_dataset: DIR/b.jsonl\n";
    let dataset = folder.prepare(text).expect("rows");
    assert_eq!((dataset.train.len(), dataset.eval.len()), (6, 2));
    assert_eq!(dataset.report.train.dropped[&Drop::Duplicate], 3);
    assert_eq!(dataset.report.eval.dropped[&Drop::Trained], 6);
    assert_eq!(dataset.eval[0].id, 15, "ids count what was read");
    let kept = folder
        .prepare(&format!("{text}dataset_exact_deduplication: false\n"))
        .expect("rows");
    assert_eq!((kept.train.len(), kept.eval.len()), (9, 8));
    assert_ne!(kept.sha256, dataset.sha256);
}

#[test]
fn long_rows_keep_their_beginning_and_are_counted() {
    let folder = TestFolder::new("long");
    folder.write("a.jsonl", texts(5));
    let dataset = folder
        .prepare("dataset: DIR/a.jsonl\nmax_length: 4\ndeduplicate: false\n")
        .expect("rows");
    assert!(
        dataset
            .train
            .iter()
            .all(|row| row.tokens.len() == 4 && row.labels.count() == 3)
    );
    assert_eq!(dataset.report.train.n_cut, 5);
    folder.write(
        "b.jsonl",
        "{\"prompt\": \"One two three four five six\", \"completion\": \"seven\"}\n",
    );
    let error = folder
        .prepare("dataset: DIR/b.jsonl\nmax_length: 3\n")
        .expect_err("too short");
    assert!(
        error.starts_with("max_length 3 is below the shortest prompt ("),
        "{error}"
    );
}

#[test]
fn a_run_stops_if_a_fifth_of_the_rows_have_nothing_to_learn() {
    let folder = TestFolder::new("fifth");
    let empty = "{\"prompt\": \"Who came here\", \"completion\": \"\"}\n";
    let row = |at: usize| format!("{{\"prompt\": \"Who {at}\", \"completion\": \" a fox\"}}\n");
    let rows = |n: usize| (0..n).map(row).collect::<String>() + empty;
    folder.write("a.jsonl", rows(4));
    let error = folder
        .prepare("dataset: DIR/a.jsonl\n")
        .expect_err("a fifth");
    let expected = "1 of 5 rows have nothing to learn: 1 no label; the first is a.jsonl, line 5:\nWho came here";
    assert!(error.starts_with(expected), "{error}");
    folder.write("a.jsonl", rows(5));
    let dataset = folder.prepare("dataset: DIR/a.jsonl\n").expect("a sixth");
    assert_eq!(dataset.report.train.dropped[&Drop::Unlabelled], 1);
}

#[test]
fn folders_weights_and_splits() {
    let folder = TestFolder::new("folders");
    folder.write("set/train.jsonl", texts(10));
    folder.write("set/valid.jsonl", "{\"text\": \"A bear.\"}\n");
    folder.write("set/test.jsonl", "{\"text\": \"An owl.\"}\n");
    folder.write("more.csv", "text\nA cat\nA dog\nA cow\nA pig\n");
    let text = "dataset:\n  - DIR/set\n  - {path: DIR/more.csv, weight: 0.5, max_samples: 2}\n";
    let dataset = folder.prepare(text).expect("rows");
    assert_eq!((dataset.train.len(), dataset.eval.len()), (12, 1));
    assert_eq!(dataset.report.unused_files.len(), 1);
    let config = folder.config(text);
    assert_eq!(dataset.order(&config).len(), 11);
    let error = folder
        .prepare(&format!("{text}val_size: 2\n"))
        .expect_err("two ways");
    assert!(error.contains("are both rows for evaluation"), "{error}");

    let text = "dataset: DIR/more.csv\nval_size: 0.3\n";
    let dataset = folder.prepare(text).expect("rows");
    assert_eq!((dataset.train.len(), dataset.eval.len()), (2, 2));
    assert_eq!(dataset.groups[0].rows, 0..2);
    assert_eq!(folder.prepare(text).expect("rows").sha256, dataset.sha256);
    assert_ne!(
        folder
            .prepare(&format!("{text}data_seed: 1\n"))
            .expect("rows")
            .eval,
        dataset.eval
    );
}

/// Rows are labelled on several threads, and stay in their order; of two errors the first counts.
#[test]
fn threads_change_nothing() {
    let folder = TestFolder::new("threads");
    folder.write("a.jsonl", texts(300));
    let of = |threads: usize| {
        let text = format!("dataset: DIR/a.jsonl\nval_size: 7\nthreads: {threads}\n");
        folder.prepare(&text).expect("rows")
    };
    let one = of(1);
    for threads in [2, 3, 8] {
        let other = of(threads);
        assert_eq!(
            (other.train, other.eval, other.sha256),
            (one.train.clone(), one.eval.clone(), one.sha256)
        );
    }
    let ids = "{\"input_ids\": [1, 2]}\n".repeat(100);
    folder.write(
        "b.jsonl",
        format!("{ids}{{\"input_ids\": [1, 99999]}}\n{ids}{{broken\n"),
    );
    let error = folder
        .prepare("dataset: DIR/b.jsonl\n")
        .expect_err("a token");
    assert!(
        error.starts_with("b.jsonl, line 101: input_ids[1] is 99999"),
        "{error}"
    );
}

#[test]
fn prompts_of_the_configuration_are_rows() {
    let folder = TestFolder::new("prompts");
    let dataset = folder
        .prepare("prompts: [One day., Two days.]\n")
        .expect("rows");
    assert_eq!(dataset.train.len(), 2);
}

/// A name, a row, settings, and what the error says.
const WRONG_ROWS: [(&str, &str, &str, &str); 17] = [
    (
        "unknown",
        "{\"a\": 1, \"b\": 2}\n",
        "",
        "a.jsonl, line 1: the columns a, b are of no known form",
    ),
    (
        "later",
        "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n",
        "",
        "a.jsonl, line 2: the column text is missing: there are txt",
    ),
    (
        "number",
        "{\"text\": 3}\n",
        "",
        "a.jsonl, line 1: text is a number, not a text",
    ),
    (
        "field",
        "{\"text\": \"a\"}\n",
        "text_field: story\n",
        "a.jsonl, line 1: the column story is missing",
    ),
    (
        "prompt",
        "{\"prompt\": \"a\"}\n",
        "",
        "rows have only a prompt",
    ),
    (
        "role",
        "{\"messages\": [{\"role\": \"narrator\", \"content\": \"a\"}]}\n",
        "",
        "a.jsonl, line 1: message 0 has the role \"narrator\", which the chat template does not know",
    ),
    (
        "no-role",
        "{\"messages\": [{\"content\": \"a\"}]}\n",
        "",
        "messages[0] has no role",
    ),
    (
        "no-content",
        "{\"messages\": [{\"role\": \"user\"}]}\n",
        "",
        "messages[0] has no content",
    ),
    (
        "train",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"train\": true}]}\n",
        "",
        "only the assistant's messages are",
    ),
    (
        "weight",
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.5}]}\n",
        "",
        "messages[0] has weight: 0.5, expected",
    ),
    (
        "no-list",
        "{\"messages\": \"hello\"}\n",
        "",
        "messages is a text, not a list of messages",
    ),
    (
        "from",
        "{\"conversations\": [{\"from\": \"martian\", \"value\": \"a\"}]}\n",
        "",
        "conversations[0] is from \"martian\"",
    ),
    (
        "ids",
        "{\"input_ids\": [1, 99999]}\n",
        "",
        "input_ids[1] is 99999, and the vocabulary has",
    ),
    (
        "negative",
        "{\"input_ids\": [1, -1]}\n",
        "",
        "input_ids[1] is -1, not a token",
    ),
    (
        "mask",
        "{\"input_ids\": [1, 2], \"labels\": [-100]}\n",
        "",
        "labels has 1 entries, and input_ids 2",
    ),
    (
        "label",
        "{\"input_ids\": [1, 2], \"labels\": [-100, 3]}\n",
        "",
        "labels[1] is 3, and input_ids[1] 2",
    ),
    (
        "history",
        "{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"c\"]]}\n",
        "",
        "history[0] is not",
    ),
];
