//! Running the built program.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

pub(crate) const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../models/tale-5.8m-Q4_K_M.gguf"
);

/// The results of a finished program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn sluice() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.stdin(Stdio::null()).env_remove("SLUICE_ISA");
    command
}

pub(crate) fn run<A: AsRef<OsStr>>(args: &[A]) -> Ran {
    ran(sluice().args(args).output().expect("the program starts"))
}

pub(crate) fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
    }
}

/// Runs, and expects the exit code.
pub(crate) fn run_to(code: i32, args: &[&str]) -> Ran {
    let ran = run(args);
    assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
    ran
}

/// Runs, and expects an error that names all of `expected` on one line of stderr.
pub(crate) fn fails(code: i32, args: &[&str], expected: &[&str]) {
    let ran = run_to(code, args);
    let line = ran.stderr.lines().find(|line| line.starts_with("error: "));
    let line = line.unwrap_or_else(|| panic!("{args:?}: no error line: {ran:?}"));
    for part in expected {
        assert!(
            ran.stderr.contains(part),
            "{args:?}: {line:?} lacks {part:?}"
        );
    }
    assert!(!ran.stderr.contains("panicked"), "{args:?}: {ran:?}");
}

/// A file in the folder of temporary files, removed when dropped.
pub(crate) struct TemporaryFile(pub(crate) PathBuf);

impl TemporaryFile {
    pub(crate) fn new(name: &str, bytes: &[u8]) -> Self {
        let name = format!("sluice-cli-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).expect("temporary files can be written");
        Self(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("the path is UTF-8")
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _removed = std::fs::remove_file(&self.0);
    }
}

/// A temporary folder, removed when dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluice-cli-{}-{count}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("temporary folders can be made");
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        let path = self.0.join(name);
        path.to_str().expect("the path is UTF-8").to_owned()
    }

    /// The names in it, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("it is there");
        let names = entries.map(|entry| entry.expect("it can be read").file_name());
        let mut names: Vec<_> = names
            .map(|name| name.into_string().expect("the name is UTF-8"))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

/// The path of a file of `tests/fixtures`, which is part of the project.
pub(crate) fn fixture(name: &str) -> String {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
    format!("{fixtures}/{name}")
}

/// The number before `unit` on the footer's line `name`.
pub(crate) fn footer_number(ran: &Ran, name: &str, unit: &str) -> f64 {
    let line = ran
        .stderr
        .lines()
        .find(|line| line.trim_start().starts_with(name))
        .unwrap_or_else(|| panic!("no line {name:?}: {ran:?}"));
    let before = line.split(unit).next().expect("split gives one part");
    let number = before.split_whitespace().last().expect("a number");
    number
        .parse()
        .unwrap_or_else(|_| panic!("{number:?} in {line:?}"))
}
