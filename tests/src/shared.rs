//! The folder `shared` beside the project's checkout: files of others that tests compare with, and
//! that are not part of the project. Crates without this one include the file by its path.

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The folder; `None`, without a word, where there is none: for cases that have one of the project's
/// own beside them.
///
/// # Panics
/// There must be one where the environment says `CI=true`.
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

/// The path of a file or folder in it; `None`, said loudly, where the calling test has nothing to
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
    // Without a standard error there is no way to report.
    let _ = std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes());
}
