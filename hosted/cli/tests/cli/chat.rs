//! `sluice chat`, in a pseudo-terminal and in a pipe.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::pty::{Pty, wait};
use crate::support::{Ran, TemporaryFile, fails, fixture, footer_number, ran, run_to, sluice};
use core::time::Duration;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The story model has no template: its text consists of the messages.
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

/// A name for a file that does not exist yet, removed at the end.
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
    // There was nothing to continue, and a file does not exist.
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for words in [
        "/regen        answer",
        "no message to answer",
        "9 messages written",
        "(9 messages)",
        "/does/not/exist",
        "a new conversation",
        " of ",
    ] {
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
    }
    let turns = messages(&saved.0);
    assert_eq!(turns[0], ("system".into(), "Be kind.".into()));
    assert_eq!(turns[3], ("user".into(), "A cat".into()));
    // In a pipe, a word that is not a command is a message.
    assert_eq!(turns[5], ("user".into(), "/nonsense".into()));
    assert_eq!(turns[7], ("user".into(), "two \nlines".into()));
    assert_eq!(turns.len(), 9);
    // A file of another kind is not replaced.
    let said = format!("Once\n/save {}\n", note.path());
    let ran = piped(&["-n", "2"], said.as_bytes());
    assert!(ran.stderr.contains("is not such a file"), "{ran:?}");
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
        shifted.stderr.matches("limit of -n reached").count(),
        4,
        "{shifted:?}"
    );
    let full = piped(
        &[&args[..], &["--no-context-shift"]].concat(),
        said.as_bytes(),
    );
    assert_eq!(full.code, Some(1), "{full:?}");
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
    assert!(
        once.stderr.contains("no chat template; using chatml"),
        "{once:?}"
    );
}

#[test]
fn typed_interrupted_and_resumed() {
    let saved = absent("typed.json");
    let mut pty = Pty::start(chat(&["--ignore-eos", "-c", "20000", "-s", "1"]));
    pty.expect("> ");
    pty.send(b"Once upun\x7f\x7fon a time\r");
    pty.expect_bytes(300);
    // Typed while the answer is generated: kept for later, not echoed in it.
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
    pty.expect("again exits");
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
    pty.expect("of -n reached");
    pty.expect("> ");
    pty.send(b"caf\xff dog\r");
    pty.expect("of -n reached");
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
            text.replace('\n', "\t ")
        };
        pty.send(pasted.as_bytes());
        pty.send(b"\r");
        // The editor has received the line. It takes long to read; the messages so far are kept if
        // that is stopped.
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

/// The texts of the conversation `saved`, once it has the given number of messages.
fn said(pty: &mut Pty, saved: &TemporaryFile, count: usize) -> Vec<String> {
    let _absent = fs::remove_file(&saved.0);
    pty.send(format!("/save {}\r", saved.path()).as_bytes());
    pty.expect(&format!("{count} messages written"));
    let turns = messages(&saved.0);
    let users = turns.into_iter().filter(|(role, _)| role == "user");
    users.map(|(_, content)| content).collect()
}

#[test]
fn bytes_that_are_no_text_take_nothing_with_them() {
    let saved = absent("bytes.json");
    let mut pty = Pty::start(chat(&["-n", "3", "-c", "4096"]));
    pty.expect("> ");
    // In one piece with text on both sides, cut within a character, in a marked paste.
    pty.send(b"a\xffb\xe9 c\xe2\x82 d\r");
    pty.expect("of -n reached");
    pty.expect("> ");
    pty.send(b"half \xe2\x82");
    wait(Duration::from_millis(30));
    pty.send(b"\xac whole\r");
    pty.expect("of -n reached");
    pty.expect("> ");
    pty.send(b"\x1b[200~one\xff\rtw\xe9o\r\x1b[31mred \x03 \x04\xf0\x9f\r\x1b[201~ end\r");
    pty.expect("of -n reached");
    pty.expect("> ");
    let expected = [
        "a\u{fffd}b\u{fffd} c\u{fffd} d",
        "half \u{20ac} whole",
        "one\u{fffd}\ntw\u{fffd}o\n\u{fffd}[31mred \x03 \x04\u{fffd}\n end",
    ];
    assert_eq!(said(&mut pty, &saved, 6), expected);
    pty.expect("> ");
    pty.send(b"\x04");
    assert_eq!(pty.code(), Some(0), "{}", pty.seen());
}

#[test]
fn lines_that_come_in_one_piece_are_all_heard() {
    let saved = absent("lines.json");
    let mut pty = Pty::start(chat(&["-n", "2", "-c", "4096"]));
    pty.expect("> ");
    let many: Vec<_> = (0..40).map(|i| format!("line {i}")).collect();
    pty.send((many.join("\r") + "\r").as_bytes());
    for _ in &many {
        pty.expect("of -n reached");
    }
    pty.expect("> ");
    assert_eq!(said(&mut pty, &saved, 80), many);
    pty.expect("> ");
    // Ctrl-C discards its own line, not the next one.
    pty.send(b"never mind\x03but this\\\rand that\r");
    pty.expect("of -n reached");
    pty.expect("> ");
    assert_eq!(said(&mut pty, &saved, 82)[40], "but this\nand that");
    pty.expect("> ");
    // Ctrl-Z, in a session where nothing could continue the program.
    pty.send(b"st\x1aill here\r");
    pty.expect("of -n reached");
    pty.expect("> ");
    assert_eq!(said(&mut pty, &saved, 84)[41], "still here");
}

#[test]
fn what_is_typed_and_pasted_into_an_answer_waits() {
    let saved = absent("ahead.json");
    let mut pty = Pty::start(chat(&["--ignore-eos", "-c", "65536", "-s", "1"]));
    pty.expect("> ");
    pty.send(b"Once\r");
    pty.expect_bytes(200);
    let text: String = (0..2500)
        .map(|i| format!("Line {i} of a long text with words.\r"))
        .collect();
    pty.send(format!("\x1b[200~{text}\x1b[201~").as_bytes());
    pty.send(b"\xff end\r");
    pty.expect_bytes(200);
    pty.send(b"\x03");
    pty.expect("(stopped");
    pty.expect("\x1b[?2004l");
    wait(Duration::from_millis(500));
    pty.send(b"\x03");
    pty.expect("(stopped");
    pty.expect("> ");
    let heard = said(&mut pty, &saved, 3);
    assert_eq!(heard[0], "Once");
    assert!(
        heard[1] == text.replace('\r', "\n") + "\u{fffd} end",
        "{}",
        heard[1].len()
    );
}

#[test]
fn answers_to_a_file_and_lines_that_the_terminal_edits() {
    let (saved, answers) = (
        absent("simple.json"),
        TemporaryFile::new("answers.txt", b""),
    );
    let to_file = |more: &[&str]| {
        let script = format!("exec \"$0\" \"$@\" > {}", answers.path());
        let sluice = chat(&[&["-n", "3", "--temp", "0"], more].concat());
        let mut command = Command::new("sh");
        command
            .args(["-c", &script])
            .arg(sluice.get_program())
            .args(sluice.get_args());
        command.env("SLUICE_HISTORY", "");
        Pty::start(command)
    };
    let mut texts = Vec::new();
    for more in [&[][..], &["--simple-io"]] {
        let mut pty = to_file(more);
        pty.expect("> ");
        pty.send(b"caf\xe9 dog\r");
        pty.expect("of -n reached");
        pty.expect("> ");
        assert_eq!(said(&mut pty, &saved, 2), ["caf\u{fffd} dog"], "{more:?}");
        pty.expect("> ");
        pty.send(b"\x04");
        assert_eq!(pty.code(), Some(0), "{}", pty.seen());
        texts.push(fs::read_to_string(&answers.0).unwrap());
    }
    assert!(
        !texts[0].trim().is_empty() && !texts[0].contains('\x1b'),
        "{texts:?}"
    );
    assert_eq!(texts[0], texts[1]);
    let mut dumb = chat(&["-n", "3"]);
    dumb.env("TERM", "dumb");
    let mut pty = Pty::start_as_is(dumb);
    pty.expect("> ");
    pty.send(b"Once\r");
    pty.expect("of -n reached");
    assert!(!pty.seen().contains('\x1b'), "{}", pty.seen());
}

#[test]
fn flags_of_llama_cpp_that_say_nothing_new_or_mean_another_command() {
    let same = piped(&["-cnv", "--jinja", "-n", "3", "--temp", "0"], b"Once\n");
    assert_eq!(same.code, Some(0), "{same:?}");
    assert_eq!(
        same.stdout,
        piped(&["-n", "3", "--temp", "0"], b"Once\n").stdout
    );
    fails(2, &["chat", "-no-cnv"], &["-no-cnv", "sluice run"]);
    fails(
        2,
        &["chat", "--no-jinja"],
        &["--no-jinja", "--chat-template"],
    );
    fails(2, &["run", "-cnv", "-p", "a"], &["-cnv", "sluice chat"]);
    fails(2, &["-i"], &["-i", "sluice chat"]);
    let run = run_to(
        0,
        &["run", "-no-cnv", "--simple-io", "-p", "-cnv", "-n", "0"],
    );
    assert_eq!(run.stdout, "-cnv\n");
}

#[test]
fn a_template_that_is_a_flag_goes_before_one_of_the_environment() {
    let file = TemporaryFile::new("last.jinja", b"{{ messages[-1].content }} the file");
    let tokens = |more: &[&str], name: &str, value: &str| {
        let mut command = sluice();
        command.args(["chat", "-st", "-p", "Once", "-n", "4", "--temp", "0"]);
        command.args(more).env(name, value);
        let ran = ran(command.output().unwrap());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout
    };
    let (text, path) = ("{{ messages[-1].content }} the text", file.path());
    let nothing = ("LLAMA_ARG_CHAT_TEMPLATE", "");
    let by_text = tokens(&["--chat-template", text], nothing.0, nothing.1);
    let by_file = tokens(&["--chat-template-file", path], nothing.0, nothing.1);
    assert_ne!(by_text, by_file);
    let mixed = [
        (
            &["--chat-template-file", path][..],
            "LLAMA_ARG_CHAT_TEMPLATE",
            text,
            &by_file,
        ),
        (
            &["--chat-template", text],
            "LLAMA_ARG_CHAT_TEMPLATE_FILE",
            path,
            &by_text,
        ),
        (&[], "LLAMA_ARG_CHAT_TEMPLATE", text, &by_text),
        (&[], "LLAMA_ARG_CHAT_TEMPLATE_FILE", path, &by_file),
        (
            &["--chat-template", text, "--chat-template-file", path],
            nothing.0,
            nothing.1,
            &by_file,
        ),
        (
            &["--chat-template-file", path, "--chat-template", text],
            nothing.0,
            nothing.1,
            &by_text,
        ),
    ];
    for (flags, name, value, expected) in mixed {
        assert_eq!(&tokens(flags, name, value), expected, "{flags:?} {name}");
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
        pty.expect("of -n reached");
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

/// Tokens cannot be removed from a recurrent state, so whole turns are dropped between answers.
#[test]
fn a_recurrent_model_forgets_turns() {
    let model = fixture("models/lfm2.gguf");
    let said = "a bird in the tree\nthe old boat sails\nover the sea\nwhat then\n";
    let args = ["-m", &model, "-c", "64", "-n", "8", "--ignore-eos"];
    let answered = piped(&args, said.as_bytes());
    assert_eq!(answered.code, Some(0), "{answered:?}");
    assert!(!answered.stderr.contains("error"), "{answered:?}");
    let n_answers = answered.stderr.matches("limit of -n reached").count();
    assert_eq!(n_answers, 4, "{answered:?}");
    // Within an answer, nothing can be dropped to make room.
    let args = ["-m", &model, "-c", "64", "--ignore-eos"];
    let full = piped(&args, said.as_bytes());
    assert_eq!(full.code, Some(0), "{full:?}");
    assert!(full.stderr.contains("the context is full"), "{full:?}");
}

/// This also holds if an answer's text has other tokens when it is tokenized: random weights write broken
/// characters.
#[test]
fn a_recurrent_model_reads_turns_once() {
    let model = fixture("models/lfm2.gguf");
    let args = ["-m", &model, "-n", "12", "--ignore-eos", "--temp", "0"];
    let n_read = |said: &str| {
        let ran = piped(&args, said.as_bytes());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        footer_number(&ran, "prompt eval time", "tokens")
    };
    let one = n_read("a bird in the tree\n");
    let two = n_read("a bird in the tree\nthe old boat\n");
    let again = n_read("a bird in the tree\n/regen\n");
    assert!(two < one + 70.0, "{one} {two}");
    assert!((again - one - 1.0).abs() < 0.5, "{one} {again}");
}

/// Fails without a wait for another line: stdin stays open.
#[test]
fn a_failed_turn_is_a_failed_run() {
    let refusing = ["--chat-template", "{{ raise_exception('no') }}"];
    for more in [&["-st"][..], &[]] {
        let mut command = sluice();
        command
            .arg("chat")
            .args(refusing)
            .args(["-p", "hi"])
            .args(more);
        command.stdin(if more.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let open = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(open);
        let ran = ran(output);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("rejects the messages: no"), "{ran:?}");
    }
    // A text given by a flag is a message, and an empty template drops it.
    let said = run_to(
        0,
        &["chat", PLAIN[0], PLAIN[1], "-p", "/exit", "-st", "-n", "2"],
    );
    assert!(!said.stdout.is_empty(), "{said:?}");
    let empty = TemporaryFile::new("empty.jinja", b"\n");
    let args = ["chat", "--chat-template-file", empty.path(), "-p", "x"];
    assert!(run_to(1, &args).stderr.contains("template is empty"));
}

/// Not every template renders a conversation that begins with an unusual message.
#[test]
fn templates_render_what_was_said_and_nothing_else() {
    let conversation =
        br#"{"messages":[{"role":"developer","content":"a"},{"role":"user","content":"c"}]}"#;
    let file = TemporaryFile::new("developer.json", conversation);
    let template = "{% if messages[0].role != 'developer' %}{{ raise_exception('no') }}{% endif %}\
                    {% for m in messages %}{{ m.content }} {% endfor %}";
    let mut command = sluice();
    command.args(["chat", "--chat-template", template, "-n", "4"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let said = format!("/load {}\n/regen\n/system\n", file.path());
    child
        .stdin
        .take()
        .unwrap()
        .write_all(said.as_bytes())
        .unwrap();
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("message is removed"), "{ran:?}");
}

/// A message is plain text: the end-of-text token is one token, its name is several.
#[test]
fn messages_cannot_write_control_tokens() {
    let ran = piped(&["-n", "1"], b"<|endoftext|>\n/tokens\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines = ran.stderr.lines().filter(|line| line.contains(" of "));
    let numbers = lines.filter_map(|line| line.split(' ').next()?.parse::<usize>().ok());
    let n = numbers.max().unwrap();
    assert!(n > 4, "{ran:?}");
}
