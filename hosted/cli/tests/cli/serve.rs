//! A server as a process.

use crate::support::{MODEL, sluice};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Ends the process.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Only computing threads are bound to a CPU: those that serve clients may use all CPUs of the process.
#[test]
fn threads_of_clients_are_not_bound() {
    let mut command = sluice();
    command.args(["serve", "-m", MODEL, "--port", "0", "-t", "2", "-c", "256"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut served = Served(command.spawn().expect("the program starts"));
    let said = BufReader::new(served.0.stderr.take().expect("a pipe"));
    let mut lines = said.lines().map(|line| line.expect("a text"));
    assert!(lines.any(|line| line.contains("listening on")));
    // The model is loaded by a thread of the same kind.
    assert!(lines.any(|line| line.contains("loaded in")));
    let threads = threads(served.0.id());
    let of = |name: &str| -> Vec<&str> {
        let named = threads.iter().filter(|(found, _)| found == name);
        named.map(|(_, cpus)| &**cpus).collect()
    };
    let own = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let all = cpus(&own);
    assert!(of("http").len() >= 2, "{threads:?}");
    assert!(
        of("http").iter().all(|cpus| *cpus == all),
        "{all}: {threads:?}"
    );
    let engine = of("engine");
    assert_eq!(engine.len(), 1, "{threads:?}");
    let is_one = engine[0].parse::<usize>().is_ok();
    assert!(is_one, "the engine is bound to a CPU: {threads:?}");
}

/// Name and CPUs of each thread of a process.
fn threads(process: u32) -> Vec<(String, String)> {
    let folder = format!("/proc/{process}/task");
    let tasks = fs::read_dir(Path::new(&folder)).expect("the process runs");
    let found = tasks.filter_map(|task| {
        // A thread may end meanwhile.
        let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        Some((line(&status, "Name:"), cpus(&status)))
    });
    found.collect()
}

fn cpus(status: &str) -> String {
    line(status, "Cpus_allowed_list:")
}

fn line(status: &str, name: &str) -> String {
    let found = status.lines().find_map(|line| line.strip_prefix(name));
    found.unwrap_or_default().trim().to_owned()
}

/// A file that is missing, or not a model, is reported before anything is announced.
#[test]
fn files_are_checked_before_the_server_listens() {
    let folder = std::env::temp_dir().join(format!("sluice-serve-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let wrong = folder.join("wrong.gguf");
    fs::write(&wrong, "GGUF\u{3}\0\0\0").expect("a file");
    let wrong = wrong.to_str().expect("a text");
    for models in [["missing.gguf", MODEL], [MODEL, wrong]] {
        let mut command = sluice();
        command.args(["serve", "--port", "0", "-t", "1"]);
        command.args(models.iter().flat_map(|model| ["-m", model]));
        let output = command.output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(!said.contains("listening"), "{said}");
        assert!(
            said.contains("missing.gguf") || said.contains("wrong.gguf"),
            "{said}"
        );
    }
    fs::remove_dir_all(folder).expect("it is there");
}

/// So is an adapter that cannot work, by the name that requests would use.
#[test]
fn adapters_are_checked_before_the_server_listens() {
    let missing = "style=missing.gguf";
    let model = format!("style={MODEL}");
    for module in [missing, &model] {
        let mut command = sluice();
        command.args([
            "serve",
            "-m",
            MODEL,
            "--port",
            "0",
            "-t",
            "1",
            "--lora-modules",
        ]);
        let output = command.arg(module).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_ne!(output.status.code(), Some(0), "{said}");
        assert!(!said.contains("listening"), "{said}");
        let (_, path) = module.split_once('=').expect("a name and a path");
        assert!(said.contains(path), "{said}");
    }
}

/// An empty key is not the same as none: the server would be open.
#[test]
fn an_empty_key_is_refused_by_name() {
    for (key, variable) in [
        (Some(""), None),
        (Some(","), None),
        (Some("a,"), None),
        (None, Some("")),
    ] {
        let mut command = sluice();
        command.args(["serve", "-m", MODEL, "--port", "0", "-t", "1"]);
        command.args(key.iter().flat_map(|key| ["--api-key", key]));
        command.envs(variable.map(|text| ("LLAMA_API_KEY", text)));
        let output = command.output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("--api-key, LLAMA_API_KEY: a key is empty"),
            "{said}"
        );
    }
}

/// Whether it warns that others can use it.
fn warns(args: &[&str]) -> bool {
    let mut command = sluice();
    command.args(["serve", "-m", MODEL, "--port", "0", "-t", "1", "-c", "256"]);
    command
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut served = Served(command.spawn().expect("the program starts"));
    let said = BufReader::new(served.0.stderr.take().expect("a pipe"));
    let lines = said.lines().map(|line| line.expect("a text"));
    let before: Vec<_> = lines
        .take_while(|line| !line.contains("listening on"))
        .collect();
    before.iter().any(|line| line.contains("without a key"))
}

#[test]
fn an_address_beyond_this_machine_without_a_key_is_a_warning() {
    assert!(warns(&["--host", "0.0.0.0"]));
    assert!(!warns(&["--host", "0.0.0.0", "--api-key", "k"]));
    assert!(!warns(&[]));
}

#[test]
fn a_hangup_reads_the_keys_again() {
    let path = std::env::temp_dir().join(format!("sluice-serve-keys-{}.toml", std::process::id()));
    let hash = "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a";
    let key = |name: &str| format!("[[key]]\nname = \"{name}\"\nsha256 = \"{hash}\"\n");
    fs::write(&path, key("a")).expect("a file");
    let mut command = sluice();
    command.args([
        "serve", "-m", MODEL, "--port", "0", "-t", "1", "-c", "256", "--keys",
    ]);
    command
        .arg(&path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut served = Served(command.spawn().expect("the program starts"));
    let said = BufReader::new(served.0.stderr.take().expect("a pipe"));
    let mut lines = said.lines().map(|line| line.expect("a text"));
    assert!(lines.any(|line| line.contains("listening on")));
    let pid = served.0.id().to_string();
    let hang_up = || {
        Command::new("kill")
            .args(["-HUP", &pid])
            .status()
            .expect("kill")
    };
    hang_up();
    assert!(lines.any(|line| line.contains("read the keys again: 1")));
    fs::write(&path, key("a") + "wieght = 2\n").expect("a file");
    hang_up();
    let why = lines.find(|line| line.contains("the keys stay as they were"));
    assert!(why.is_some_and(|why| why.contains("line 4: unknown field `wieght`")));
    fs::remove_file(path).expect("it is there");
}
