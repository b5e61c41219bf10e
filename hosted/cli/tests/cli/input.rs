//! User input: llama.cpp's flags, texts from files and pipes.

use crate::support::{MODEL, Ran, TemporaryFile, fails, ran, run_to, sluice};
use std::io::Write as _;
use std::process::Stdio;

const STORY: [&str; 7] = ["run", "-n", "8", "--temp", "0", "-m", MODEL];

fn with_stdin(args: &[&str], text: &[u8]) -> Ran {
    let mut command = sluice();
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.args(args).spawn().expect("the program runs");
    child
        .stdin
        .take()
        .expect("the program runs")
        .write_all(text)
        .expect("the program runs");
    ran(child.wait_with_output().expect("the program runs"))
}

#[test]
fn flags_of_llama_cpp_are_known() {
    let plain = run_to(0, &[&STORY[..], &["-p", "Once"]].concat());
    let ignored: [&[&str]; 6] = [
        &["-ngl", "99"],
        &["-fa", "on"],
        &["-nkvo"],
        &["-ts", "1,1", "-sm", "none"],
        &["-tb", "4"],
        &["--no-warmup", "-lv", "3", "-co", "auto"],
    ];
    for flags in ignored {
        let ran = run_to(0, &[&STORY[..], flags, &["-p", "Once"]].concat());
        assert_eq!(ran.stdout, plain.stdout, "{flags:?}");
        assert!(
            ran.stderr.contains(&format!("note: {}", flags[0])),
            "{ran:?}"
        );
    }
    let refused: [(&[&str], &str); 8] = [
        (
            &["--spec-type", "draft-eagle3"],
            "trained to draft for another",
        ),
        (&["-ns", "4"], "runs one sequence"),
        (
            &["-sys", "hi"],
            "not a flag of `sluice run`, but of `sluice chat`",
        ),
        (&["--mmproj", "x"], "not supported"),
        (&["--rope-freq-base", "1e6"], "--override-kv"),
        (&["-mu", "http://x"], "-hf USER/NAME"),
        (&["--port", "80"], "use `sluice serve`"),
        (
            &["--chunks", "3"],
            "but of `sluice imatrix`, `sluice sparsify`, `sluice perplexity`",
        ),
    ];
    for (flags, expected) in refused {
        fails(2, &[&STORY[..], flags].concat(), &[expected]);
    }
}

#[test]
fn negative_numbers_are_out_of_range() {
    for args in [
        &["run", "-c", "-1"][..],
        &["run", "--logprobs", "-1"],
        &["gate", "x.wav", "--threshold", "-1"],
        &["bench", "-p", "-1"],
    ] {
        let ran = run_to(2, args);
        let message = ran.stderr.lines().next().unwrap_or_default();
        assert!(
            !message.contains("unexpected argument"),
            "{args:?}: {ran:?}"
        );
    }
}

#[test]
fn a_prompt_comes_from_a_pipe_or_a_file() {
    let expected = run_to(0, &[&STORY[..], &["-p", "Once"]].concat()).stdout;
    let piped = with_stdin(&STORY, b"Once\n");
    assert_eq!(
        (piped.code, &piped.stdout),
        (Some(0), &expected),
        "{piped:?}"
    );
    let dash = with_stdin(
        &[&STORY[..], &["-f", "-"]].concat(),
        b"\xef\xbb\xbfOnce\r\n",
    );
    assert_eq!(dash.stdout, expected, "{dash:?}");
    let file = TemporaryFile::new("prompt.txt", b"\xef\xbb\xbfOnce\r\n");
    let filed = run_to(0, &[&STORY[..], &["-f", file.path()]].concat());
    assert_eq!(filed.stdout, expected);
    fails(
        1,
        &[&STORY[..], &["-f", "/dev/zero"]].concat(),
        &["/dev/zero is not a regular file"],
    );
    fails(
        1,
        &[&STORY[..], &["-f", "/"]].concat(),
        &["/ is a directory"],
    );
}

#[test]
fn lines_of_windows_are_the_same_lines() {
    let of = |name: &str, bytes: &[u8]| {
        let file = TemporaryFile::new(name, bytes);
        run_to(0, &["embed", "-m", MODEL, "-f", file.path()]).stdout
    };
    let plain = of("lines.txt", b"a dog\na cat\n");
    assert_eq!(of("crlf.txt", b"\xef\xbb\xbfa dog\r\na cat\r\n"), plain);
    assert_ne!(of("other.txt", b"a dog\na bird\n"), plain);
}

#[test]
fn one_model_is_named_once() {
    let bare = run_to(0, &["run", MODEL, "-n", "8", "--temp", "0", "-p", "Once"]).stdout;
    assert_eq!(
        bare,
        run_to(0, &[&STORY[..], &["-p", "Once"]].concat()).stdout
    );
    fails(
        2,
        &[&STORY[..], &["x.gguf"]].concat(),
        &["several models are named"],
    );
    fails(
        2,
        &["tokenize", "-p", "x"],
        &["no model is named: use -m FILE or -hf"],
    );
}

#[test]
fn an_error_says_each_cause_once_on_a_line_of_its_own() {
    let args = [
        &STORY[..],
        &["-p", "Once", "--prompt-cache", "/nonexistent/x"],
    ]
    .concat();
    let ran = run_to(1, &args);
    let line = ran.stderr.lines().find(|line| line.starts_with("error: "));
    let line = line.unwrap_or_else(|| panic!("{ran:?}"));
    assert_eq!(line.matches("/nonexistent/x").count(), 1, "{line}");
}

#[test]
fn texts_come_from_pipes() {
    let text = b"\xef\xbb\xbfOnce upon\r\n";
    let tokens = with_stdin(&["tokenize", "-m", MODEL, "--ids"], b"Once upon");
    assert_eq!(tokens.code, Some(0), "{tokens:?}");
    let plain = run_to(0, &["tokenize", "-m", MODEL, "--ids", "-p", "Once upon"]);
    assert_eq!(tokens.stdout, plain.stdout);
    let vector = with_stdin(&["embed", "-m", MODEL], text);
    let plain = run_to(0, &["embed", "-m", MODEL, "-p", "Once upon"]);
    assert_eq!(vector.stdout, plain.stdout);
    for command in ["tokenize", "embed"] {
        fails(
            2,
            &[command, "-m", MODEL],
            &["no text is given: use -p TEXT, -f FILE, or a pipe"],
        );
    }
}
