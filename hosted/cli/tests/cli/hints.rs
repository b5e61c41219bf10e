//! Suggestions for flags and commands of other programs, and for nearly correct ones.

use crate::pty::Pty;
use crate::support::{MODEL, TemporaryFile, fails, fixture, ran, run_to, sluice};

const SHORT: [&str; 8] = ["run", "-m", MODEL, "-n", "2", "--temp", "0", "-p"];

fn short<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&SHORT[..], more].concat()
}

#[test]
fn commands_of_other_programs_have_a_hint() {
    for (name, hint) in [
        ("server", "`sluice serve`"),
        ("version", "`sluice --version`"),
        ("list", "~/.cache/huggingface/hub"),
        ("show", "`sluice inspect FILE`"),
        ("some/model.gguf", "`sluice run some/model.gguf`"),
    ] {
        fails(2, &[name, "-m", "x"], &[name, hint]);
    }
    fails(2, &["nonsense"], &["unrecognized subcommand 'nonsense'"]);
}

#[test]
fn nearly_right_words_are_answered_with_the_right_ones() {
    let cases: [(&[&str], &str); 13] = [
        (&["rnu"], "did you mean `run`?"),
        (&["sreve", "-m", "x"], "did you mean `serve`?"),
        (&["lora", "mrege"], "'merge'"),
        (&["run", "--tmep", "0"], "'--temp'"),
        (&["serve", "--prot", "80"], "'--port'"),
        (&["gate", "bench", "--frame-length", "3"], "'--frame-len'"),
        (&["run", "-ctk", "q8"], "'q8_0'"),
        (&["run", "--numa", "isolated"], "'isolate'"),
        (&["run", "--isa", "avx22"], "'avx2'"),
        (&["run", "--spec-type", "draft-slef"], "'draft-self'"),
        (&["experts", "replay", "x", "--policy", "lrru"], "'lru'"),
        (&["quantize", "a.gguf", "Q4_KM"], "did you mean Q4_K_M?"),
        (
            &["convert", "a", "b.gguf", "--type", "bf61"],
            "did you mean BF16?",
        ),
    ];
    for (args, expected) in cases {
        fails(2, args, &[expected]);
    }
}

#[test]
fn files_in_the_place_of_texts_have_a_hint() {
    let grammar = TemporaryFile::new("near.gbnf", b"root ::= \"yes\"");
    fails(
        1,
        &short(&["x", "--grammar", grammar.path()]),
        &["--grammar-file reads a file"],
    );
    fails(
        1,
        &short(&["x", "-j", "person.json"]),
        &["--json-schema person.json (--json-schema-file reads a file)"],
    );
    let ran = run_to(1, &short(&["x", "-j", "{\"type\": 1.5}"]));
    assert!(!ran.stderr.contains("reads a file"), "{ran:?}");
}

#[test]
fn negative_numbers_reach_the_range() {
    let cases: [(&[&str], &str); 8] = [
        (&["bench", "-p", "-1"], "-1 is not in 0..=16777216"),
        (&["bench", "-n", "4,-3"], "-3 is not in 0..=16777216"),
        (&["run", "-c", "-1"], "-1 is not in 0..=16777216"),
        (&["run", "--logprobs", "-1"], "-1 is not in 0..=1000"),
        (&["run", "--repeat-last-n", "-2"], "-2 is not in -1.."),
        (&["run", "--dry-penalty-last-n", "-2"], "-2 is not in -1.."),
        (
            &["gate", "bench", "--frame-len", "-1"],
            "-1 is not in 1..=16777216",
        ),
        (
            &["gate", "x.f32", "--threshold", "-1"],
            "threshold is negative",
        ),
    ];
    for (args, expected) in cases {
        fails(2, args, &[expected]);
    }
}

#[test]
fn flags_of_single_programs_are_known() {
    let cases: [(&[&str], &str); 5] = [
        (
            &["bench", "-mmp", "0"],
            "-mmp 0: use -lm none to read the file",
        ),
        (&["bench", "-embd", "1"], "measures prompts"),
        (
            &["bench", "-nkvo", "1", "-rpc", "x"],
            "note: -nkvo 1 has no effect",
        ),
        (
            &["bench", "-nopo", "0", "--port", "3"],
            "use `sluice serve`",
        ),
        (
            &["quantize", "--prune-layers", "3", MODEL, "Q8_0"],
            "--prune-layers 3: removing layers is not supported",
        ),
    ];
    for (args, expected) in cases {
        fails(2, args, &[expected]);
    }
}

#[test]
fn a_variable_is_blamed_by_its_own_name() {
    for (name, named) in [
        ("LLAMA_ARG_THREADS", "invalid digit"),
        ("LLAMA_ARG_CACHE_TYPE_K", "f32, f16"),
    ] {
        let blamed = |more: &[&str]| {
            let args = short(&[&["x"], more].concat());
            ran(sluice().args(args).env(name, "abc").output().unwrap())
        };
        let found = blamed(&[]);
        let expected = format!("error: invalid value 'abc' of the environment variable {name}");
        assert!(found.stderr.starts_with(&expected), "{found:?}");
        assert!(found.stderr.contains(named), "{found:?}");
        assert_eq!(found.code, Some(2));
        // Here the flag is to blame.
        let found = blamed(&["-t", "abc", "-ctk", "f16"]);
        assert!(found.stderr.contains("'--threads <N>'"), "{found:?}");
    }
}

#[test]
fn a_token_that_is_there_twice_is_a_warning() {
    let twice = "warning: the text begins with <|endoftext|>";
    let tokens = ["tokenize", "-m", MODEL, "--ids", "-p"];
    for (text, is_warned) in [("<|endoftext|>Once", true), ("Once", false)] {
        let tokenized = run_to(0, &[&tokens[..], &[text]].concat());
        let continued = run_to(0, &short(&[text]));
        for ran in [tokenized, continued] {
            assert_eq!(ran.stderr.contains(twice), is_warned, "{ran:?}");
        }
    }
}

#[test]
fn cpus_that_are_not_there_are_a_warning() {
    let none = "none of them is there and allowed";
    for (flags, expected) in [
        (["-Cr", "500-510"], Some(none)),
        (["-Cr", "500-"], Some(none)),
        (["-Cr", "0-510"], Some("requested CPU 0-510, got CPU ")),
        (["-Cr", "0-"], None),
    ] {
        let ran = run_to(0, &short(&[&["x"][..], &flags].concat()));
        let is_warned = ran.stderr.contains("warning: CPUs: ");
        assert_eq!(is_warned, expected.is_some(), "{ran:?}");
        assert!(ran.stderr.contains(expected.unwrap_or_default()), "{ran:?}");
    }
}

#[test]
fn spellings_of_llama_cpp() {
    let plain = run_to(0, &short(&["Once", "--ctx-size", "32"]));
    let ran = run_to(0, &short(&["Once", "--ctx_size", "32", "--display-prompt"]));
    assert_eq!(ran.stdout, plain.stdout);
    let text = TemporaryFile::new("message.txt", b"\xef\xbb\xbfHello\r\n");
    let chat = |more: &[&str]| {
        let args = ["chat", "-m", MODEL, "-n", "4", "--temp", "0", "-st", "-e"];
        run_to(0, &[&args[..], more].concat()).stdout
    };
    assert_eq!(
        chat(&["-f", text.path(), "-sysf", text.path()]),
        chat(&["-p", "Hello", "-sys", "Hello"])
    );
}

#[test]
fn all_tokens_made_are_counted() {
    for n in ["1", "3"] {
        let flags = ["Once", "-n", n, "--ignore-eos", "--json"];
        let ran = run_to(0, &short(&flags));
        let object: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(object["timings"]["predicted_n"].to_string(), n);
    }
}

#[test]
fn a_prompt_cache_is_a_regular_file() {
    for path in ["/dev/full", "/dev/zero"] {
        fails(
            1,
            &short(&["x", "--prompt-cache", path]),
            &["prompt cache", path, "not a regular file"],
        );
    }
}

#[test]
fn a_terminal_is_not_told_to_obey_a_text() {
    let mut command = sluice();
    command.args(short(&["a\x1b]0;title\x07b"]));
    let mut pty = Pty::start(command);
    pty.expect(r"a\u{1b}]0;title\u{7}b");
    assert_eq!(pty.code(), Some(0));
    assert!(!pty.seen().contains("\x1b]0"), "{}", pty.seen());
    let piped = run_to(0, &short(&["a\x1b]0;title\x07b"]));
    assert!(piped.stdout.starts_with("a\x1b]0;title\x07b"), "{piped:?}");
}

#[test]
fn words_in_another_order_have_a_hint() {
    fails(
        2,
        &["quantize", MODEL, "Q8_0", "out.gguf"],
        &["out.gguf follows the type Q8_0", "IN OUT Q8_0"],
    );
}

#[test]
fn flags_that_a_base_answers_are_named() {
    let text = TemporaryFile::new("base.txt", "Once upon a time. ".repeat(40).as_bytes());
    let base = TemporaryFile::new("base.kld", b"");
    std::fs::remove_file(&base.0).unwrap();
    let flags = [
        "perplexity",
        "-m",
        MODEL,
        "--kl-divergence-base",
        base.path(),
    ];
    let write = ["-f", text.path(), "-c", "32", "--chunks", "1"];
    run_to(0, &[&flags[..], &write].concat());
    let compare = ["--kl-divergence", "-f", text.path(), "-c", "64"];
    let ran = run_to(0, &[&flags[..], &compare].concat());
    for note in ["is not read: the text is in", "-c 64 has no effect"] {
        assert!(ran.stderr.contains(note), "{ran:?}");
    }
}

#[test]
fn logs_are_for_their_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let log = TemporaryFile::new("private.log", b"");
    std::fs::remove_file(&log.0).unwrap();
    run_to(0, &short(&["x", "--log-file", log.path()]));
    let mode = std::fs::metadata(&log.0).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_copy_of_a_model_whose_experts_stay_on_disk_is_refused() {
    let model = fixture("models/gpt-oss.gguf");
    let flags = [
        "-m",
        &*model,
        "--expert-cache",
        "1",
        "--spec-type",
        "draft-self",
    ];
    let said = ["--spec-type draft-self", "gpt-oss.gguf", "--expert-cache"];
    fails(2, &[&["run", "-p", "x"], &flags[..]].concat(), &said);
    fails(2, &[&["serve", "--port", "0"], &flags[..]].concat(), &said);
}

/// llama-server's flags are honoured, or refused with what to do instead.
#[test]
fn flags_of_llama_server_have_a_reason() {
    for (flag, hint) in [
        ("--no-jinja", "--chat-template chatml"),
        ("--reasoning-effort", "--chat-template-kwargs"),
        ("--reasoning-budget-message", "the model's own mark"),
        ("--reasoning-preserve", "the chat template decides"),
    ] {
        fails(2, &["serve", "-m", "x", flag, "low"], &[flag, hint]);
    }
    fails(
        2,
        &["serve", "-m", "x", "--reasoning", "maybe"],
        &["on, off, auto"],
    );
    fails(
        1,
        &[
            "serve",
            "-m",
            "missing.gguf",
            "-rea",
            "off",
            "--mmproj-device",
            "none",
        ],
        &["--mmproj-device none has no effect", "missing.gguf"],
    );
}
