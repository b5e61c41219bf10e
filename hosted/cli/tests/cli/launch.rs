//! `sluice launch`, with clients that are shell scripts.

use crate::support::{Folder, MODEL, Ran, ran, sluice};
use core::time::Duration;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A folder with a client of this name.
fn client(name: &str, script: &str) -> Folder {
    let folder = Folder::new("client");
    let path = folder.path(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    folder
}

fn launch(folder: &Folder, args: &[&str]) -> Command {
    let mut command = sluice();
    let path = format!("{}:/usr/bin:/bin", folder.0.display());
    command.arg("launch").args(args).env("PATH", path);
    command
        .env_remove("LLAMA_API_KEY")
        .env("ANTHROPIC_API_KEY", "theirs");
    command
}

fn launched(folder: &Folder, args: &[&str]) -> Ran {
    ran(launch(folder, args).output().expect("the program starts"))
}

/// A port that nothing listens on.
fn port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener
        .local_addr()
        .expect("an address")
        .port()
        .to_string()
}

fn is_up(port: &str) -> bool {
    std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
}

#[test]
fn a_client_gets_a_server_and_its_exit_code_is_passed_on() {
    let shown = "$ANTHROPIC_BASE_URL $ANTHROPIC_MODEL [$ANTHROPIC_API_KEY] $ANTHROPIC_AUTH_TOKEN";
    let folder = client("claude", &format!("echo \"{shown} $@\"; exit 7"));
    let port = port();
    for (key, token) in [(&[][..], "none"), (&["--api-key", "own"], "own")] {
        let mut all = vec!["claude", "-m", MODEL, "--port", &port];
        all.extend(key);
        all.extend(["--", "-p", "it's"]);
        let run = launched(&folder, &all);
        assert_eq!(run.code, Some(7), "{run:?}");
        let expected = format!("http://127.0.0.1:{port} tale-5.8m-Q4_K_M [] {token} -p it's\n");
        assert_eq!(run.stdout, expected);
        let warning = "warning: \"tale-5.8m-Q4_K_M\" has a context of 1024 tokens";
        assert!(run.stderr.contains(warning), "{run:?}");
        assert!(!is_up(&port), "its server is still there");
    }
}

#[test]
fn a_server_that_is_there_is_used_and_left() {
    let port = port();
    let mut served = sluice();
    served.args([
        "serve",
        "-m",
        &format!("mine={MODEL}"),
        "--port",
        &port,
        "-t",
        "1",
        "--api-key",
        "k",
    ]);
    let mut served = served
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let begun = Instant::now();
    while !is_up(&port) {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let folder = client("codex", "echo \"$SLUICE_API_KEY $@\"");
    let all = [
        "codex",
        "--port",
        &port,
        "--api-key",
        "k",
        "-m",
        "mine",
        "--",
        "exec",
        "x",
    ];
    let used = launched(&folder, &all);
    let no_key = launched(&folder, &["codex", "--port", &port]);
    let no_model = launched(
        &folder,
        &["codex", "--port", &port, "--api-key", "k", "-m", "gpt-4"],
    );
    let is_left = is_up(&port);
    let _ended = served.kill();
    let _status = served.wait();
    assert_eq!(used.code, Some(0), "{used:?}");
    assert!(
        used.stdout
            .starts_with("k -c model=\"mine\" -c model_provider=\"sluice\""),
        "{used:?}"
    );
    assert!(
        used.stdout.contains(&format!("http://127.0.0.1:{port}/v1")),
        "{used:?}"
    );
    assert!(used.stdout.ends_with(" exec x\n"), "{used:?}");
    assert!(is_left);
    assert_eq!(no_key.code, Some(1), "{no_key:?}");
    assert!(no_key.stderr.contains("--api-key"), "{no_key:?}");
    assert_eq!(no_model.code, Some(1), "{no_model:?}");
    assert!(no_model.stderr.contains("available: mine"), "{no_model:?}");
}

#[test]
fn what_would_be_set_is_printed_and_nothing_runs() {
    let folder = client("opencode", "echo ran > ran");
    // Another program has the port: another one is taken.
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = other.local_addr().expect("an address").port();
    let answer = std::thread::spawn(move || drop(other.accept()));
    let all = [
        "opencode",
        "--print",
        "-m",
        MODEL,
        "--port",
        &taken.to_string(),
        "-c",
        "32768",
        "--",
        "run",
    ];
    let run = launched(&folder, &all);
    answer.join().expect("it was asked");
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.starts_with("sluice serve -m "), "{run:?}");
    assert!(
        run.stdout.contains("export OPENCODE_CONFIG_CONTENT='{"),
        "{run:?}"
    );
    assert!(run.stdout.contains("\"context\":32768"), "{run:?}");
    assert!(run.stdout.contains("opencode run\n"), "{run:?}");
    let goose = launched(
        &folder,
        &["goose", "--print", "-m", MODEL, "--port", &port()],
    );
    assert!(
        goose.stdout.contains("export GOOSE_PROVIDER=openai\n"),
        "{goose:?}"
    );
    assert!(goose.stdout.ends_with("goose\n"), "{goose:?}");
}

#[test]
fn what_is_missing_is_said() {
    let folder = client("claude", "exit 0");
    let port = port();
    for (args, code, expected) in [
        (
            &["codex"][..],
            1,
            "codex is not installed: npm install -g @openai/codex",
        ),
        (&["claude", "--port", &port], 2, "name a model to start one"),
        (
            &["claude", "--port", &port, "-m", "missing.gguf"],
            2,
            "neither a file",
        ),
        (
            &["claude", "--url", "http://127.0.0.1:1"],
            1,
            "no server answers there",
        ),
        (&["claude", "--url", "ftp://x"], 1, "begins with http://"),
        (
            &["vi"],
            2,
            "possible values: claude, codex, opencode, goose",
        ),
    ] {
        let run = launched(&folder, args);
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(run.stderr.contains(expected), "{run:?}");
    }
    // The last lines of a server that does not start.
    let wrong = folder.path("wrong.gguf");
    std::fs::write(&wrong, "GGUF").expect("a file");
    let run = launched(&folder, &["claude", "-m", &wrong, "--port", &port]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(
        run.stderr.contains("the server ended") && run.stderr.contains("wrong.gguf"),
        "{run:?}"
    );
}

/// A launch whose client has printed a line, which may have more to print.
fn started(folder: &Folder, port: &str) -> (Child, String) {
    let mut command = launch(folder, &["claude", "-m", MODEL, "--port", port]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the program starts");
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.as_mut().expect("a pipe"));
    std::io::BufRead::read_line(&mut out, &mut line).expect("a line");
    (child, line)
}

#[test]
fn what_ends_launch_ends_the_client_and_the_server() {
    let folder = client(
        "claude",
        "trap 'echo ended; exit 9' TERM; echo ready; while :; do sleep 0.05; done",
    );
    let port = port();
    let (mut child, line) = started(&folder, &port);
    assert_eq!(line, "ready\n");
    assert!(is_up(&port));
    let pid = child.id().to_string();
    Command::new("kill")
        .args(["-TERM", &pid])
        .status()
        .expect("kill runs");
    assert_eq!(child.wait().expect("it ends").code(), Some(9));
    assert!(!is_up(&port), "its server is still there");
}

#[test]
fn a_launch_that_is_killed_leaves_no_server() {
    // The client ends by itself when this test has killed it.
    let folder = client("claude", "echo $$; exec sleep 60");
    let port = port();
    let (mut child, line) = started(&folder, &port);
    assert!(is_up(&port));
    child.kill().expect("it runs");
    let _status = child.wait();
    let begun = Instant::now();
    while is_up(&port) && begun.elapsed() < Duration::from_secs(20) {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    let is_left = is_up(&port);
    Command::new("kill")
        .arg(line.trim())
        .status()
        .expect("kill runs");
    assert!(!is_left, "its server is still there");
}
