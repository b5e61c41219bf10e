//! Ctrl-C, with real signals.

use crate::support::{MODEL, TemporaryFile, footer_number, ran, sluice};
use core::time::Duration;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Starts with default signal handlers, which a background job of a script would not have.
pub(crate) fn interruptible(mut command: Command) -> Child {
    let reset = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: `signal` is async-signal-safe and sets a default action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: the closure only calls an async-signal-safe function.
    unsafe { command.pre_exec(reset) };
    command.spawn().expect("the program starts")
}

pub(crate) fn interrupt(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::INT).expect("the program is still there");
}

/// Reads some of the text on stdout: then the program is past that point. Returns it.
pub(crate) fn read_some(child: &mut Child, len: usize) -> Vec<u8> {
    let mut some = vec![0; len];
    let stdout = child.stdout.as_mut().expect("stdout is a pipe");
    stdout
        .read_exact(&mut some)
        .expect("there is that much text");
    some
}

#[test]
fn during_decode_the_text_so_far_and_the_footer_are_printed() {
    let mut command = sluice();
    command.args(["--ignore-eos", "-c", "100000", "-p", "Once upon a time"]);
    let mut child = interruptible(command);
    let mut text = read_some(&mut child, 200);
    let since = Instant::now();
    interrupt(&child);
    let ran = ran(child.wait_with_output().unwrap());
    assert!(since.elapsed() < Duration::from_secs(10), "{ran:?}");
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(footer_number(&ran, "eval time", "runs") >= 10.0, "{ran:?}");
    assert!(ran.stderr.contains("peak memory"), "{ran:?}");
    // Nothing follows a story that has just ended a line.
    text.extend(ran.stdout.as_bytes());
    assert!(text.ends_with(b"\n"), "{ran:?}");
}

#[test]
fn during_prefill_it_ends_within_a_step() {
    // A prompt that takes minutes on the slowest kernels: each token attends to all before it.
    let prompt = "and so on ".repeat(8000);
    let file = TemporaryFile::new("long-prompt.txt", prompt.as_bytes());
    let mut command = sluice();
    command.args(["-f", file.path(), "-c", "65536", "--isa", "scalar"]);
    let mut child = interruptible(command);
    read_some(&mut child, prompt.trim_end().len());
    let since = Instant::now();
    interrupt(&child);
    let ran = ran(child.wait_with_output().unwrap());
    assert!(since.elapsed() < Duration::from_secs(10), "{ran:?}");
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(
        footer_number(&ran, "prompt eval time", "tokens") < 24_000.0,
        "{ran:?}"
    );
    assert!(
        (footer_number(&ran, "eval time", "runs") - 0.0).abs() < 0.5,
        "{ran:?}"
    );
    assert!(!ran.stderr.contains("time to first token"), "{ran:?}");
}

#[test]
fn the_second_one_ends_a_program_that_hangs() {
    // Nothing reads stdout, so writing a prompt longer than a pipe holds never ends.
    let prompt = "and so on ".repeat(20_000);
    let file = TemporaryFile::new("blocking-prompt.txt", prompt.as_bytes());
    let mut command = sluice();
    command.args(["-f", file.path(), "-c", "100000"]);
    let mut child = interruptible(command);
    read_some(&mut child, 1);
    interrupt(&child);
    // The flag is set, but the program cannot look at it.
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "it still waits for its reader"
        );
        std::thread::yield_now();
    }
    interrupt(&child);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGINT));
}

#[test]
fn a_program_started_with_interrupts_ignored_goes_on() {
    let mut command = Command::new("sh");
    let script = "trap '' INT; exec \"$0\" --ignore-eos -c 100000 -n 400";
    command.args(["-c", script, env!("CARGO_BIN_EXE_sluice")]);
    let mut child = interruptible(command);
    let mut first_line = String::new();
    let stderr = child.stderr.as_mut().expect("stderr is a pipe");
    BufReader::with_capacity(1, stderr)
        .read_line(&mut first_line)
        .unwrap();
    assert!(first_line.starts_with("model "), "{first_line}");
    interrupt(&child);
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        (footer_number(&ran, "eval time", "runs") - 399.0).abs() < 0.5,
        "{ran:?}"
    );
}

#[test]
fn other_signals_leave_no_partial_file() {
    for signal in [Signal::TERM, Signal::HUP] {
        let folder = TemporaryFile::new(&format!("signal-{}", signal.as_raw()), b"");
        std::fs::remove_file(&folder.0).unwrap();
        std::fs::create_dir(&folder.0).unwrap();
        let mut command = sluice();
        command.args(["gate", "-", "--format", "f32", "--out"]);
        command
            .arg(folder.0.join("passed.f32"))
            .stdin(Stdio::piped());
        let mut child = interruptible(command);
        let since = Instant::now();
        while std::fs::read_dir(&folder.0).unwrap().next().is_none() {
            assert!(since.elapsed() < Duration::from_secs(10), "no partial file");
            assert!(
                child.try_wait().unwrap().is_none(),
                "{:?}",
                child.wait_with_output()
            );
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(signal.as_raw()), "{status:?}");
        let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().collect();
        std::fs::remove_dir_all(&folder.0).unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_server_that_is_told_to_end_lets_answers_end() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["serve", "-m", MODEL, "--port", "0", "--threads", "1"]);
    command.args(["-c", "512", "--context-shift"]);
    let mut child = interruptible(command);
    let mut said = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
    let mut lines = (&mut said).lines().map_while(Result::ok);
    let address =
        lines.find_map(|line| Some(line.strip_prefix("listening on http://")?.to_owned()));
    let address = address.expect("it says where it listens");
    let mut client = TcpStream::connect(address).expect("it listens");
    let patience = Duration::from_secs(60);
    client.set_read_timeout(Some(patience)).expect("a limit");
    // The model may still be loading: then the request waits for it.
    let body = r#"{"prompt": "Once", "max_tokens": 3000, "ignore_eos": true, "stream": true}"#;
    let length = body.len();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    write!(
        client,
        "{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("it reads");
    let mut some = [0; 2000];
    client.read_exact(&mut some).expect("the answer begins");
    kill_process(Pid::from_child(&child), Signal::TERM).expect("the program is still there");
    let mut rest = String::new();
    client.read_to_string(&mut rest).expect("it is whole");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}
