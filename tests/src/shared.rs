//! The folder `shared`, next to the project's checkout: files from other projects that tests compare with. They are not
//! part of this one. Crates that do not depend on this one include the file by its path.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The folder; silently `None` if it does not exist: for cases that also run on one of the project's own files.
///
/// # Panics
/// If it does not exist and the environment has `CI=true`.
#[must_use]
pub fn shared_folder() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = here.ancestors();
    let checkout = above.find(|folder| folder.join("Cargo.lock").is_file());
    let path = checkout.expect("a workspace").with_file_name("shared");
    let in_ci = std::env::var("CI").as_deref() == Ok("true");
    assert!(path.is_dir() || !in_ci, "{} not found", path.display());
    path.is_dir().then_some(path)
}

/// The path of a file or folder in it; `None`, with a printed line, if it is absent: the calling test has nothing to
/// compare with and returns.
///
/// # Panics
/// As [`shared_folder`].
#[must_use]
pub fn shared(name: &str) -> Option<PathBuf> {
    let path = shared_folder().map(|folder| folder.join(name));
    let found = path.filter(|path| path.exists());
    if found.is_none() {
        skipped(&format!("../shared/{name} not found"));
    }
    found
}

/// Says loudly that this test, or a part of it, does not run, and why.
pub fn skipped(why: &str) {
    // Written past the capture of the test harness, which would hide it from a passing run.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // If standard error is closed, there is nowhere to report it.
    let _ = std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes());
}
