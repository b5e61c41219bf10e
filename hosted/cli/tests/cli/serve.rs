//! A server as a process.

use crate::support::{MODEL, sluice};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

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
