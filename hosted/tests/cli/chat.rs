//! `sluice chat`, in a pseudo-terminal and in a pipe.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::pty::{Pty, wait};
use crate::support::{Ran, TemporaryFile, fails, ran, run_to, sluice};
use core::time::Duration;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The story model has no template: its text is what was said.
const PLAIN: [&str; 2] = [
    "--chat-template",
    "{% for m in messages %}{{ m.content }} {% endfor %}",
];

fn chat(more: &[&str]) -> Command {
    let mut command = sluice();
    command
        .arg("chat")
        .args(PLAIN)
        .args(more)
        .env("SLUICE_HISTORY", "");
    command
}

fn piped(more: &[&str], said: &[u8]) -> Ran {
    let mut command = chat(more);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(said).unwrap();
    ran(child.wait_with_output().unwrap())
}

/// A name for a file that is not there yet, removed at the end.
fn absent(name: &str) -> TemporaryFile {
    let file = TemporaryFile::new(name, b"");
    fs::remove_file(&file.0).unwrap();
    file
}

fn messages(path: &PathBuf) -> Vec<(String, String)> {
    let saved: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let all = saved["messages"].as_array().unwrap().iter();
    all.map(|m| (text(&m["role"]), text(&m["content"])))
        .collect()
}

#[test]
fn an_answer_is_what_run_says_and_turns_are_read_once() {
    let saved = absent("turns.json");
    let said = format!("The little dog\nOne day\n/save {}\n", saved.path());
    let ran = piped(&["-n", "12", "--temp", "0", "-c", "512"], said.as_bytes());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let turns = messages(&saved.0);
    let roles: Vec<_> = turns.iter().map(|(role, _)| &**role).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    // The same prompt in one piece, by another program.
    let mut text = String::new();
    for (role, content) in &turns {
        if role == "assistant" {
            let args = [
                "run",
                "-p",
                &text,
                "-n",
                "12",
                "--temp",
                "0",
                "--no-display-prompt",
                "--no-escape",
            ];
            let alone = run_to(0, &args).stdout;
            assert_eq!(
                alone.trim_end_matches('\n'),
                content.trim_end_matches('\n'),
                "{text:?}"
            );
        }
        text += content;
        text.push(' ');
    }
    // 5 and some tokens of the two messages; the first answer was not read again.
    let line = ran
        .stderr
        .lines()
        .find(|line| line.contains("prompt eval time"))
        .unwrap();
    let read = line
        .split(" tokens")
        .next()
        .unwrap()
        .split_whitespace()
        .last()
        .unwrap();
    assert!(read.parse::<usize>().unwrap() <= 12, "{line}");
}

#[test]
fn commands_in_a_pipe() {
    let (saved, note) = (
        absent("commands.json"),
        TemporaryFile::new("note.txt", b"A cat\n"),
    );
    let said = format!(
        "/help\n/continue\nOnce\n/regen\n/continue\n/system Be kind.\n/read {}\n/nonsense\n/tokens\n\
         two \\\nlines\n/save {}\n/clear\n/load {}\n/load /does/not/exist\n/exit\nnever said\n",
        note.path(),
        saved.path(),
        saved.path()
    );
    let ran = piped(&["-n", "4", "-s", "3"], said.as_bytes());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for words in [
        "/regen        answer",
        "nothing to answer",
        "no command /nonsense",
        "7 messages written",
        "(7 messages)",
        "/does/not/exist",
        "a new conversation",
        " of ",
    ] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    let turns = messages(&saved.0);
    assert_eq!(turns[0], ("system".into(), "Be kind.".into()));
    assert_eq!(turns[3], ("user".into(), "A cat".into()));
    assert_eq!(turns[5], ("user".into(), "two \nlines".into()));
    assert_eq!(turns.len(), 7);
    // A file that is something else is not replaced.
    let said = format!("Once\n/save {}\n", note.path());
    let ran = piped(&["-n", "2"], said.as_bytes());
    assert!(ran.stderr.contains("something else"), "{ran:?}");
    assert_eq!(fs::read(&note.0).unwrap(), b"A cat\n");
}

#[test]
fn a_full_context_is_shifted_or_said() {
    let said =
        "Once upon a time there was a dog. ".repeat(4) + "\nAnd then?\nAnd then?\nAnd then?\n";
    let args = ["-n", "40", "-c", "128", "--ignore-eos", "--temp", "0"];
    let shifted = piped(&args, said.as_bytes());
    assert_eq!(shifted.code, Some(0), "{shifted:?}");
    assert!(!shifted.stderr.contains("full"), "{shifted:?}");
    assert_eq!(
        shifted.stderr.matches("as long as -n allows").count(),
        4,
        "{shifted:?}"
    );
    let full = piped(
        &[&args[..], &["--no-context-shift"]].concat(),
        said.as_bytes(),
    );
    assert_eq!(full.code, Some(0), "{full:?}");
    assert!(full.stderr.contains("context"), "{full:?}");
    let long = "word ".repeat(300) + "\nOnce\n";
    let long = piped(&args, long.as_bytes());
    assert!(long.stderr.contains("the message is too long"), "{long:?}");
    assert!(
        !long.stdout.is_empty(),
        "the next one is answered: {long:?}"
    );
}

#[test]
fn input_that_is_not_utf_8_and_flags_that_do_not_work() {
    let ran = piped(&["-n", "3"], b"caf\xe9 dog\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("not UTF-8 from byte 3"), "{ran:?}");
    assert!(!ran.stdout.is_empty(), "{ran:?}");
    let none = piped(&["-n", "3"], b"");
    assert_eq!((none.code, &*none.stdout), (Some(0), ""), "{none:?}");
    fails(
        2,
        &["chat", "--chat-template", "nonsense"],
        &["nonsense", "chatml"],
    );
    fails(
        1,
        &["chat", "--chat-template", "{% if"],
        &["template line 1"],
    );
    fails(
        1,
        &["chat", "--chat-template-file", "/no.jinja"],
        &["/no.jinja"],
    );
    fails(
        2,
        &["chat", "--chat-template-kwargs", "{"],
        &["--chat-template-kwargs"],
    );
    let once = sluice()
        .args(["chat", "-st", "-p", "Once", "-n", "3"])
        .output()
        .unwrap();
    let once = crate::support::ran(once);
    assert_eq!(once.code, Some(0), "{once:?}");
    assert!(once.stderr.contains("no chat template; chatml"), "{once:?}");
}

#[test]
fn typed_interrupted_and_resumed() {
    let saved = absent("typed.json");
    let mut pty = Pty::start(chat(&["--ignore-eos", "-c", "20000", "-s", "1"]));
    pty.expect("> ");
    pty.send(b"Once upun\x7f\x7fon a time\r");
    pty.expect_bytes(300);
    // Typed while the answer comes: kept for later, not shown in it.
    pty.send(format!("/save {}\r", saved.path()).as_bytes());
    pty.expect_bytes(100);
    pty.send(b"\x03");
    pty.expect("(stopped");
    pty.expect("2 messages written");
    let turns = messages(&saved.0);
    assert_eq!(turns[0], ("user".into(), "Once upon a time".into()));
    assert!(turns[1].1.len() > 100, "{turns:?}");
    fs::remove_file(&saved.0).unwrap();
    pty.expect("> ");
    pty.send(b"/continue\r");
    pty.expect_bytes(300);
    pty.send(b"\x03");
    pty.expect("(stopped");
    pty.expect("> ");
    pty.send(format!("/save {}\r", saved.path()).as_bytes());
    pty.expect("2 messages written");
    let more = messages(&saved.0);
    assert!(more[1].1.starts_with(&turns[1].1), "{more:?}");
    assert!(more[1].1.len() > turns[1].1.len() + 100);
    pty.expect("> ");
    pty.send(b"\x03");
    pty.expect("again leaves");
    pty.send(b"\x03");
    assert_eq!(pty.code(), Some(130), "{}", pty.seen());
}

#[test]
fn ctrl_c_twice_in_an_answer_leaves_and_so_does_ctrl_d() {
    let mut pty = Pty::start(chat(&["--ignore-eos", "-c", "20000"]));
    pty.expect("> ");
    pty.send(b"Once\r");
    pty.expect_bytes(300);
    pty.send(b"\x03");
    pty.expect("(stopped");
    pty.expect("> ");
    pty.send(b"\x03");
    assert_eq!(pty.code(), Some(130), "{}", pty.seen());
    let mut pty = Pty::start(chat(&[]));
    pty.expect("> ");
    pty.send(b"\x04");
    assert_eq!(pty.code(), Some(0), "{}", pty.seen());
}

#[test]
fn a_window_that_changes_and_bytes_that_are_no_text() {
    let saved = absent("resized.json");
    let mut pty = Pty::start(chat(&["-n", "4"]));
    pty.expect("> ");
    let half = "the quick brown fox jumps over the lazy dog ".repeat(4);
    pty.send(half.as_bytes());
    pty.resize(10, 31);
    wait(Duration::from_millis(50));
    pty.send(half.as_bytes());
    pty.resize(50, 200);
    wait(Duration::from_millis(50));
    pty.send(b"end\r");
    pty.expect("allows");
    pty.expect("> ");
    // What the editor read in one piece with such bytes, behind them, it loses.
    pty.send(b"caf\xff");
    pty.expect("caf\u{fffd}");
    pty.send(b" dog\r");
    pty.expect("allows");
    pty.expect("> ");
    pty.send(format!("/save {}\r", saved.path()).as_bytes());
    pty.expect("4 messages written");
    let turns = messages(&saved.0);
    assert_eq!(turns[0].1, format!("{half}{half}end"));
    assert!(turns[2].1.starts_with("caf\u{fffd}"), "{turns:?}");
    assert!(turns[2].1.ends_with(" dog"), "{turns:?}");
}

#[test]
fn a_paste_of_100_kb_arrives_whole() {
    let saved = absent("pasted.json");
    let text: String = (0..2500)
        .map(|i| format!("Line {i} of a long text with words.\n"))
        .collect();
    let text = text.trim_end();
    assert!(text.len() > 90_000);
    for is_marked in [true, false] {
        let mut pty = Pty::start(chat(&["-n", "4", "-c", "65536"]));
        pty.expect("> ");
        let pasted = if is_marked {
            format!("\x1b[200~{text}\x1b[201~")
        } else {
            // A terminal that does not mark pastes: one line, or each would be a message.
            text.replace('\n', " ")
        };
        pty.send(pasted.as_bytes());
        pty.send(b"\r");
        // The editor has the line. It takes long to read; what was said stays when that is stopped.
        pty.expect("\x1b[?2004l");
        wait(Duration::from_millis(500));
        pty.send(b"\x03");
        pty.expect("(stopped");
        pty.expect("> ");
        pty.send(format!("/save {}\r", saved.path()).as_bytes());
        pty.expect("1 messages written");
        let expected = if is_marked { text.to_owned() } else { pasted };
        assert!(messages(&saved.0)[0].1 == expected, "is_marked {is_marked}");
        pty.send(b"/exit\r");
        assert_eq!(pty.code(), Some(0));
    }
}

#[test]
fn the_history_is_kept() {
    let history = absent("history");
    for said in ["Once upon", "\x1b[A"] {
        let mut command = chat(&["-n", "3"]);
        command.env("SLUICE_HISTORY", history.path());
        let mut pty = Pty::start(command);
        pty.expect("> ");
        pty.send(said.as_bytes());
        pty.send(b"\r");
        pty.expect("allows");
        assert!(pty.seen().contains("Once upon"));
        pty.expect("> ");
        pty.send(b"\x04");
        assert_eq!(pty.code(), Some(0));
    }
    assert!(
        fs::read_to_string(&history.0)
            .unwrap()
            .contains("Once upon")
    );
}
