//! `sluice run --prompts`: several prompts in one session, each with the result that it has alone.

use crate::interrupt::{interrupt, interruptible, read_some};
use crate::support::{TemporaryFile, fails, fixture, ran, run_to, sluice};
use core::time::Duration;
use serde_json::{Value, json};
use std::fs::File;
use std::time::Instant;

const SEED: [&str; 4] = ["-s", "7", "-c", "64"];

/// The results for a file of these lines.
fn results(name: &str, lines: &[Value], more: &[&str]) -> Vec<Value> {
    let file = file(name, lines);
    let args = [&["run", "--prompts", file.path()], &SEED[..], more].concat();
    let ran = run_to(0, &args);
    let results = ran.stdout.lines().map(serde_json::from_str);
    let results: Vec<Value> = results.collect::<Result<_, _>>().expect("JSON");
    assert_eq!(results.len(), lines.len(), "{ran:?}");
    for (i, (result, line)) in results.iter().zip(lines).enumerate() {
        assert_eq!(result["index"], i);
        assert_eq!(result["prompt"], line["prompt"]);
    }
    results
}

fn file(name: &str, lines: &[Value]) -> TemporaryFile {
    let lines: Vec<_> = lines.iter().map(|line| format!("{line}\n")).collect();
    TemporaryFile::new(&format!("{name}.jsonl"), lines.concat().as_bytes())
}

/// Compares a result with the prompt's own run.
fn is_as_alone(result: &Value, more: &[&str]) {
    let prompt = result["prompt"].as_str().expect("a text");
    let alone = run_to(
        0,
        &[&["run", "--json", "-p", prompt], &SEED[..], more].concat(),
    );
    let alone: Value = serde_json::from_str(&alone.stdout).expect("JSON");
    for field in ["content", "stop_type", "tokens_evaluated"] {
        assert_eq!(result[field], alone[field], "{field}: {result} {alone}");
    }
    let n_predicted = &alone["timings"]["predicted_n"];
    assert_eq!(&result["tokens_predicted"], n_predicted, "{result}");
}

#[test]
fn each_text_is_that_of_its_prompt_and_adapters_alone() {
    let [one, two] = ["one", "two"].map(|name| fixture(&format!("adapters/tale/{name}")));
    let both = format!("{one}:0.5,{two}:1.25");
    let lines = [
        json!({"prompt": "Once upon a time", "lora": one}),
        json!({"prompt": "Once upon a time", "lora": []}),
        json!({"prompt": "The little dog", "n_predict": 9,
            "lora": [{"path": one, "scale": 0.5}, {"path": two, "scale": 1.25}]}),
        // Until the context is full, or the model ends the text.
        json!({"prompt": "A boat", "n_predict": -1, "lora": []}),
        json!({"prompt": "Once upon a time", "lora": one}),
        json!({"prompt": "Once upon a time"}),
        json!({"prompt": "", "lora": [{"path": one}]}),
    ];
    let flags = ["-n", "24", "--lora", &two];
    let together = results("adapters", &lines, &flags);
    let own: [&[&str]; 7] = [
        &["-n", "24", "--lora", &one],
        &["-n", "24"],
        &["-n", "9", "--lora-scaled", &both],
        &[],
        &["-n", "24", "--lora", &one],
        &["-n", "24", "--lora", &two],
        &["-n", "24", "--lora", &one],
    ];
    for (result, own) in together.iter().zip(own) {
        is_as_alone(result, own);
    }
    assert_ne!(together[0]["content"], together[1]["content"]);
    assert_ne!(together[0]["content"], together[5]["content"]);
    assert_eq!(together[3]["stop_type"], "context_full");
    assert_eq!(together[1]["lora"], json!([]));
    let expected = json!([{"path": one, "scale": 0.5}, {"path": two, "scale": 1.25}]);
    assert_eq!(together[2]["lora"], expected);
    assert_eq!(together[5]["lora"], json!([{"path": two, "scale": 1.0}]));
    for more in [
        &["-np", "1"][..],
        &["-np", "2", "-t", "1"],
        &["-np", "3", "-ub", "1"],
    ] {
        let again = results("adapters-again", &lines, &[&flags[..], more].concat());
        assert_eq!(again, together, "{more:?}");
    }
}

/// Recurrent states, windows, experts.
#[test]
fn models_of_other_families_as_well() {
    for name in ["lfm2", "gemma3", "gpt-oss", "qwen35"] {
        let model = fixture(&format!("models/{name}.gguf"));
        let lines = ["Once upon a time", "The dog", "A"].map(|prompt| json!({"prompt": prompt}));
        let flags = ["-m", &model, "-n", "12", "--ignore-eos"];
        for result in results(name, &lines, &flags) {
            is_as_alone(&result, &flags);
        }
    }
}

/// Texts that pass the original context of 16 tokens give the results that they give alone, in any context.
#[test]
fn longrope_texts_are_read_again_each_for_itself() {
    let model = fixture("models/llama-longrope.gguf");
    let lines = ["a", "b", "c"].map(|prompt| json!({"prompt": prompt}));
    let file = file("longrope", &lines);
    let flags = ["-m", &model, "-n", "30", "--ignore-eos", "-s", "7"];
    for n_ctx in ["40", "64"] {
        let flags = [&flags[..], &["-c", n_ctx]].concat();
        let all = run_to(
            0,
            &[&["run", "--prompts", file.path()], &flags[..]].concat(),
        );
        for line in all.stdout.lines() {
            let result: Value = serde_json::from_str(line).expect("JSON");
            let prompt = result["prompt"].as_str().expect("a text");
            let alone = ["run", "--json", "-p", prompt, "-c", "200"];
            let alone = run_to(0, &[&alone, &flags[..flags.len() - 2]].concat());
            let alone: Value = serde_json::from_str(&alone.stdout).expect("JSON");
            assert_eq!(result["content"], alone["content"], "{n_ctx}");
        }
    }
    let pinned = [&["run", "-p", "a", "--longrope", "long"], &flags[..]].concat();
    assert!(!run_to(0, &pinned).stderr.contains("--longrope"));
    let other = fixture("models/gemma3.gguf");
    let none = run_to(
        0,
        &[
            "run",
            "-m",
            &other,
            "-p",
            "a",
            "-n",
            "1",
            "--longrope",
            "short",
        ],
    );
    assert!(none.stderr.contains("--longrope has no effect"), "{none:?}");
}

#[test]
fn texts_end_where_each_is_to() {
    let lines = [
        json!({"prompt": "A boat", "stop": ["walking", "x y z"]}),
        json!({"prompt": "A boat", "n_predict": 0}),
        json!({"prompt": "A boat", "stop": []}),
        json!({"prompt": "A boat"}),
    ];
    let found = results("stops", &lines, &["-n", "24", "--stop", " was", "-np", "2"]);
    let field = |name: &str| {
        found
            .iter()
            .map(|result| result[name].clone())
            .collect::<Vec<_>>()
    };
    let contents = field("content");
    assert_eq!(field("stop_type"), ["stop", "length", "length", "stop"]);
    assert_eq!(contents[1], "");
    assert_eq!(contents[3], "");
    let whole = contents[2].as_str().expect("a text");
    let (start, _) = whole.split_once("walking").expect("it is in the text");
    assert_eq!(contents[0], start);
    let counts = field("tokens_predicted");
    assert_eq!([&counts[1], &counts[2]], [0, 24]);
}

#[test]
fn stdin_is_a_file_too_and_empty_lines_are_none() {
    let text = "\n{\"prompt\": \"A boat\"}\r\n  \n{\"prompt\": \"A bird\"}";
    let piped = TemporaryFile::new("piped.jsonl", text.as_bytes());
    let mut command = sluice();
    command.args(["run", "--prompts", "-", "-n", "3", "-s", "1", "--profile"]);
    command.stdin(File::open(&piped.0).expect("it is there"));
    let ran = ran(command.output().expect("the program starts"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 2, "{ran:?}");
    assert!(
        ran.stderr
            .contains("2 of 2 prompts done, 2 at once: 6 tokens"),
        "{ran:?}"
    );
}

/// Everything is checked before the first token, and errors name line and field.
#[test]
fn what_is_wrong_is_named_before_anything_is_written() {
    let good = json!({"prompt": "x"});
    let foreign = fixture("adapters/llama/one");
    let long = "a ".repeat(100);
    let cases = [
        (
            json!({"prompt": "x", "temperature": 1}),
            "line 2: \"temperature\": unknown field",
        ),
        (
            json!({"prompt": "x", "n_predict": "9"}),
            "line 2: \"n_predict\" is \"9\", expected",
        ),
        (
            json!({"prompt": "x", "lora": "/no/such"}),
            "line 2: cannot read /no/such",
        ),
        (
            json!({"prompt": "x", "lora": foreign}),
            "adapters/llama/one",
        ),
        (json!({"prompt": long}), "line 2: the prompt has 1"),
        (json!({"lora": []}), "line 2: \"prompt\" is missing"),
    ];
    for (bad, expected) in cases {
        let file = file("bad", &[good.clone(), bad]);
        let args = [&["run", "--prompts", file.path(), "-n", "2"], &SEED[..]].concat();
        fails(1, &args, &[file.path(), expected]);
        assert_eq!(run_to(1, &args).stdout, "");
    }
    let empty = TemporaryFile::new("no-prompts.jsonl", b"\n\n");
    fails(
        1,
        &["run", "--prompts", empty.path()],
        &["contains no prompts"],
    );
    fails(
        1,
        &["run", "--prompts", "/no/such"],
        &["cannot read prompts file /no/such"],
    );
    let one = file("one", &[good]);
    let others: [&[&str]; 7] = [
        &["-p", "x"],
        &["-f", "x"],
        &["--prompt-cache", "x"],
        &["--context-shift"],
        &["--keep", "1"],
        &["--json"],
        &["--logprobs", "1"],
    ];
    for other in others {
        let args = [&["run", "--prompts", one.path()], other].concat();
        fails(2, &args, &["cannot be used with"]);
    }
    let alone = run_to(0, &["run", "-p", "x", "-n", "1", "-np", "4"]);
    assert!(
        alone.stderr.contains("--parallel 4 has no effect"),
        "{alone:?}"
    );
}

/// Finished results are printed in order, at once; Ctrl-C ends the others.
#[test]
fn an_interrupt_leaves_whole_lines() {
    let long = json!({"prompt": "Once upon a time", "n_predict": -1});
    let lines = [
        json!({"prompt": "A boat", "n_predict": 2}),
        long.clone(),
        long,
    ];
    let file = file("interrupted", &lines);
    let mut command = sluice();
    command.args([
        "run",
        "--prompts",
        file.path(),
        "--ignore-eos",
        "-c",
        "100000",
    ]);
    let mut child = interruptible(command);
    let mut text = read_some(&mut child, 20);
    let since = Instant::now();
    interrupt(&child);
    let ran = ran(child.wait_with_output().expect("it ends"));
    assert!(since.elapsed() < Duration::from_secs(10), "{ran:?}");
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.stderr.contains("1 of 3 prompts done"), "{ran:?}");
    text.extend(ran.stdout.as_bytes());
    let result: Value = serde_json::from_slice(&text).expect("a line of JSON");
    assert_eq!(result["index"], 0);
}
