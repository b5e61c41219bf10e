//! `sluice run` from the outside: text, footer, messages and exit codes.

use crate::support::{MODEL, TemporaryFile, fails, fixture, footer_number, ran, run_to, sluice};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

/// The greedy continuation: the same on every machine, kernel table and thread count.
const GREEDY: [&str; 8] = ["-p", "The little dog", "-n", "24", "--temp", "0", "-s", "1"];

fn greedy(more: &[&str]) -> String {
    run_to(0, &[&["run"], &GREEDY[..], more].concat()).stdout
}

#[test]
fn without_arguments_it_tells_a_story_and_how_long_it_took() {
    let ran = ran(sluice().output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.starts_with("Once upon a time"), "{ran:?}");
    assert!(ran.stdout.len() > 60, "{ran:?}");
    assert!(ran.stdout.ends_with('\n'), "{ran:?}");
    for words in [
        "load time = ",
        "prompt eval time = ",
        "  eval time = ",
        "tokens per second",
        "total time = ",
        "time to first token = ",
        "peak memory = ",
        "threads = ",
        "isa = ",
        "seed ",
    ] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    // No progress bar and no colours where stderr is not a terminal.
    assert!(!ran.stderr.contains(['\r', '\x1b']), "{ran:?}");
}

#[test]
fn the_footer_counts_tokens_and_memory() {
    let ran = run_to(
        0,
        &[
            "-p",
            "Once upon a time",
            "-n",
            "10",
            "--ignore-eos",
            "-c",
            "256",
        ],
    );
    // BOS and four words; the tenth token is chosen but not entered.
    assert!((footer_number(&ran, "prompt eval time", "tokens") - 5.0).abs() < 0.5);
    assert!((footer_number(&ran, "eval time", "runs") - 9.0).abs() < 0.5);
    // 3.5 MiB of weights, 0.8 MiB of KV, the program and its model: far below 64 MiB more.
    assert!(footer_number(&ran, "peak memory", "MiB") < 60.0, "{ran:?}");
}

#[test]
fn the_text_depends_on_nothing_but_the_request() {
    let text = greedy(&[]);
    assert!(text.starts_with("The little dog "), "{text}");
    let same: [&[&str]; 11] = [
        &["-t", "1"],
        &["-t", "2"],
        &["-t", "5"],
        &["-ub", "1"],
        &["-ub", "3", "-b", "2"],
        &["--isa", "scalar"],
        &["-m", MODEL],
        &["-m", MODEL, "-lm", "mmap"],
        &["-c", "300"],
        &["--cores", "efficiency"],
        &["--cores", "all", "--share-by-speed", "-t", "3"],
    ];
    for more in same {
        assert_eq!(greedy(more), text, "{more:?}");
    }
    let table = sluice().args(GREEDY).env("SLUICE_ISA", "scalar").output();
    assert_eq!(ran(table.unwrap()).stdout, text);
    for (k, v) in [
        ("f32", "f32"),
        ("bf16", "bf16"),
        ("q8_0", "q8_0"),
        ("q8_0", "q4_0"),
    ] {
        assert!(greedy(&["-ctk", k, "-ctv", v]).starts_with("The little dog "));
    }
}

#[test]
fn a_seed_gives_the_same_text_again() {
    let args = ["-n", "30", "--ignore-eos"];
    let first = run_to(0, &args);
    let seed = first
        .stderr
        .split("seed ")
        .nth(1)
        .expect("the seed is printed");
    let seed = seed.split_whitespace().next().expect("a number");
    let again = run_to(0, &[&args[..], &["-s", seed]].concat());
    assert_eq!(first.stdout, again.stdout);
    let texts: Vec<_> = ["1", "2", "3"]
        .map(|seed| run_to(0, &[&args[..], &["-s", seed]].concat()).stdout)
        .into();
    assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
}

#[test]
fn the_prompt_can_be_left_out_and_come_from_a_file() {
    let text = greedy(&[]);
    let rest = greedy(&["--no-display-prompt"]);
    assert_eq!(format!("The little dog{rest}"), text);
    let file = TemporaryFile::new("prompt.txt", b"The little dog\n");
    let args = ["-f", file.path(), "-n", "24", "--temp", "0"];
    assert_eq!(run_to(0, &args).stdout, text);
}

#[test]
fn no_tokens_and_no_prompt() {
    let none = run_to(0, &["-p", "Hello", "-n", "0"]);
    assert_eq!(none.stdout, "Hello\n");
    assert!((footer_number(&none, "eval time", "runs") - 0.0).abs() < 0.5);
    let empty = run_to(0, &["-p", "", "-n", "5", "--ignore-eos"]);
    assert!((footer_number(&empty, "prompt eval time", "tokens") - 1.0).abs() < 0.5);
    assert!(!empty.stdout.trim().is_empty(), "{empty:?}");
}

#[test]
fn a_full_context_ends_the_text_with_a_word() {
    let ran = run_to(0, &["-c", "64", "--ignore-eos", "-p", "Once"]);
    assert!(
        ran.stderr.contains("the context of 64 tokens is full"),
        "{ran:?}"
    );
    // Two prompt tokens leave 62 to enter; one more is chosen.
    assert!(
        (footer_number(&ran, "eval time", "runs") - 62.0).abs() < 0.5,
        "{ran:?}"
    );
}

#[test]
fn files_that_are_no_model() {
    let empty = TemporaryFile::new("empty.gguf", b"");
    let magic = TemporaryFile::new("magic.gguf", b"PK\x04\x03 not a model at all");
    let zip = TemporaryFile::new("zip.gguf", b"PK\x03\x04 not a model at all");
    let model = fs::read(MODEL).unwrap();
    let cut = TemporaryFile::new("cut.gguf", &model[..model.len() - 1]);
    let short = TemporaryFile::new("short.gguf", &model[..1000]);
    let unreadable = TemporaryFile::new("unreadable.gguf", &model);
    fs::set_permissions(&unreadable.0, fs::Permissions::from_mode(0o000)).unwrap();
    for mode in ["none", "mmap"] {
        let refused = |path: &str, expected: &str| {
            fails(1, &["run", "-m", path, "-lm", mode], &[path, expected]);
        };
        refused("/does/not/exist.gguf", "No such file");
        refused(env!("CARGO_MANIFEST_DIR"), "is a directory");
        refused("/dev/null", "not a regular file");
        refused(empty.path(), "is empty");
        refused(magic.path(), "GGUF");
        refused(zip.path(), "zip archive");
        refused(cut.path(), "file");
        refused(short.path(), "file");
        if fs::read(&unreadable.0).is_ok() {
            eprintln!("SKIPPED: this user may read everything");
        } else {
            refused(unreadable.path(), "Permission denied");
        }
    }
}

#[test]
fn models_that_cannot_be_run_are_named() {
    let path = fixture("tokenizer/bpe.gguf");
    fails(1, &["-m", &path], &[&path, "no tensors"]);
    let path = fixture("tokenizer/bert.gguf");
    fails(1, &["-m", &path], &[&path]);
}

#[test]
fn a_file_of_nothing_but_a_vocabulary_is_tokenized() {
    let path = fixture("tokenizer/bpe.gguf");
    let ran = run_to(0, &["tokenize", "-m", &path, "-p", "a<|user|>", "--ids"]);
    assert_eq!(ran.stdout.trim(), "[99, 1]");
}

#[test]
fn prompts_that_do_not_work() {
    let long = "and so on ".repeat(100);
    fails(
        1,
        &["-p", &long, "-c", "64"],
        &["tokens", "context of 64", "-c"],
    );
    let file = TemporaryFile::new("latin1.txt", b"caf\xe9 au lait");
    fails(
        1,
        &["-f", file.path()],
        &[file.path(), "not UTF-8", "byte 3"],
    );
    fails(
        1,
        &["-f", "/does/not/exist.txt"],
        &["/does/not/exist.txt", "No such file"],
    );
    fails(1, &["-f", "/"], &["prompt file /", "directory"]);
}

#[test]
fn wrong_usage_has_its_own_exit_code() {
    fails(2, &["run", "--nonsense"], &["--nonsense"]);
    fails(2, &["nonsense"], &["nonsense"]);
    fails(2, &["-n", "many"], &["many", "--predict"]);
    fails(2, &["-t", "1000"], &["1000", "--threads"]);
    fails(2, &["-ub", "0"], &["0", "--ubatch-size"]);
    fails(2, &["-ctk", "q9"], &["q9", "f16"]);
    fails(2, &["--temp", "nan"], &["--temp"]);
    fails(2, &["--repeat-penalty", "0"], &["--repeat-penalty"]);
    fails(2, &["--isa", "mmx"], &["mmx", "scalar"]);
    fails(2, &["-p", "a", "-f", "b"], &["--prompt", "--file"]);
}

#[test]
fn memory_that_cannot_be_had_is_an_error() {
    // 3 KiB per token: 48 GiB of KV cache, more than `ulimit -v` allows here.
    let limited = "ulimit -v 4000000; exec \"$0\" -c 16777216 -n 1";
    let mut command = std::process::Command::new("sh");
    let output = command
        .args(["-c", limited, env!("CARGO_BIN_EXE_sluice")])
        .output();
    let ran = ran(output.unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr
            .contains("not enough memory for a context of 16777216"),
        "{ran:?}"
    );
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut child = sluice()
        .args(["--ignore-eos", "-c", "2000", "-s", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 16];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stderr.contains("error"), "{ran:?}");
    assert!(footer_number(&ran, "eval time", "runs") < 1900.0, "{ran:?}");
}

#[test]
fn a_full_disk_is_an_error() {
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = sluice()
        .args(["-n", "3"])
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn();
    let ran = ran(output.unwrap().wait_with_output().unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("cannot write to stdout: No space left"),
        "{ran:?}"
    );
}

#[test]
fn a_closed_stderr_is_fine() {
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = sluice().args(GREEDY).stderr(full).output().unwrap();
    assert_eq!(ran(output).stdout, greedy(&[]));
}

#[test]
fn the_profile_names_every_operator() {
    let ran = run_to(0, &["-n", "8", "--ignore-eos", "--profile"]);
    for name in [
        "attn_qkv",
        "attention",
        "ffn_gate_up",
        "ffn_down",
        "output",
        "barrier",
        "GB/s",
    ] {
        assert!(ran.stderr.contains(name), "{name}: {ran:?}");
    }
    assert!(!ran.stderr.contains("were lost"), "{ran:?}");
}

#[test]
fn files_are_looked_for_before_anything_is_announced() {
    for flags in [
        ["-m", "/no/such.gguf"],
        ["-md", "/no/such.gguf"],
        ["--lora", "/no/such"],
        ["--prompt-cache", "/no/such/cache"],
        ["--grammar-file", "/no/such.gbnf"],
    ] {
        let ran = run_to(1, &[&["run", "-p", "Once", "-n", "1"], &flags[..]].concat());
        let lines: Vec<_> = ran.stderr.lines().collect();
        assert_eq!((lines.len(), &*ran.stdout), (1, ""), "{flags:?}: {ran:?}");
        assert!(lines[0].contains("/no/such"), "{flags:?}: {ran:?}");
    }
    let cut = fs::read(MODEL).unwrap();
    let cut = TemporaryFile::new("draft-cut.gguf", &cut[..300]);
    let ran = run_to(1, &["run", "-p", "Once", "-md", cut.path()]);
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
}

#[test]
fn help_has_examples_and_the_version_is_the_crates() {
    assert!(
        run_to(0, &["--help"])
            .stdout
            .contains("sluice run -m model.gguf")
    );
    let help = run_to(0, &["run", "--help"]).stdout;
    for words in [
        "Examples:",
        "--ctx-size",
        "-ub",
        "-ctk",
        "SLUICE_ISA",
        "[default: 0.8]",
    ] {
        assert!(help.contains(words), "{words}: {help}");
    }
    assert!(
        run_to(0, &["inspect", "--help"])
            .stdout
            .contains("sluice inspect model.gguf")
    );
    let version = format!("sluice {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run_to(0, &["--version"]).stdout, version);
}
