//! Model files that are cut short while a program uses them.

use crate::support::{Folder, MODEL, fixture, run_to, sluice};
use core::time::Duration;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Stdio};

/// A server whose model is loaded.
struct Served {
    process: Child,
    address: String,
    said: BufReader<ChildStderr>,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
    }
}

impl Served {
    fn start(model: &str, args: &[&str]) -> Self {
        let mut command = sluice();
        command.args(["serve", "-m", model, "--port", "0", "-t", "1", "-c", "256"]);
        command
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = command.spawn().expect("the program starts");
        let mut said = BufReader::new(process.stderr.take().expect("a pipe"));
        let (mut address, mut line) = (String::new(), String::new());
        while !line.contains("loaded in") {
            line.clear();
            assert_ne!(said.read_line(&mut line).expect("a text"), 0, "it ended");
            if let Some((_, found)) = line.split_once("listening on http://") {
                address = found.split_whitespace().next().unwrap_or_default().into();
            }
        }
        Self {
            process,
            address,
            said,
        }
    }

    /// The reply to a short completion; empty if the connection broke.
    fn ask(&self) -> String {
        let mut stream = TcpStream::connect(&*self.address).expect("it listens");
        let timeout = Some(Duration::from_secs(30));
        stream.set_read_timeout(timeout).expect("a socket");
        let body = r#"{"prompt": "Once upon a time", "n_predict": 4}"#;
        let request = format!(
            "POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut reply = String::new();
        let sent = stream.write_all(request.as_bytes());
        let _broken = sent.and_then(|()| stream.read_to_string(&mut reply).map(drop));
        reply
    }

    /// The exit code, and what it said since it was loaded.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let _n = self.said.read_to_string(&mut said).expect("a text");
        (self.process.wait().expect("it ended").code(), said)
    }
}

fn cut(path: &str) {
    let file = File::options().write(true).open(path);
    file.and_then(|file| file.set_len(0)).expect("a file");
}

#[test]
fn a_mapped_model_that_is_cut_short_ends_the_program_and_is_named() {
    let folder = Folder::new("shrunk");
    let (gguf, slc) = (folder.path("model.gguf"), folder.path("model.slc"));
    for mode in ["auto", "none"] {
        fs::copy(MODEL, &gguf).expect("a copy");
        run_to(0, &["pack", &gguf, &slc, "--overwrite"]);
        for path in [&gguf, &slc] {
            let served = Served::start(path, &["-lm", mode]);
            cut(path);
            let reply = served.ask();
            if mode == "none" {
                assert!(reply.starts_with("HTTP/1.1 200"), "{path}: {reply}");
                continue;
            }
            let (code, said) = served.end();
            assert_eq!(code, Some(1), "{path}: {said}");
            let errors: Vec<_> = said
                .lines()
                .filter(|line| line.starts_with("error: "))
                .collect();
            assert_eq!(errors.len(), 1, "{said}");
            assert!(errors[0].contains(&**path), "{said}");
        }
    }
}

#[test]
fn a_server_whose_experts_are_on_disk_outlives_its_file() {
    let folder = Folder::new("shrunk-experts");
    let (gguf, slc) = (folder.path("model.gguf"), folder.path("model.slc"));
    fs::copy(fixture("models/gpt-oss.gguf"), &gguf).expect("a copy");
    run_to(0, &["pack", &gguf, &slc]);
    for path in [&slc, &gguf] {
        let mut served = Served::start(path, &["--expert-cache", "1"]);
        cut(path);
        for _ in 0..2 {
            let reply = served.ask();
            assert!(reply.starts_with("HTTP/1.1 500"), "{path}: {reply}");
            assert!(
                reply.contains("an expert of the model could not be read"),
                "{reply}"
            );
        }
        let is_up = served.process.try_wait().expect("a process").is_none();
        assert!(is_up, "{path}");
        served.process.kill().expect("it runs");
        let (_, said) = served.end();
        assert!(said.contains("the file was truncated"), "{path}: {said}");
    }
}
