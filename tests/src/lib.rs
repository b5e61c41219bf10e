//! What crosses the crates of Sluice, and what their results are compared with.
//!
//! [`reference`](mod@reference) evaluates llama models in f64 without a line of `sluice-core`
//! or `sluice-kernels`; [`goldens`] names the logits that llama.cpp gave for the same files.
//! Both need files that are not part of the project: [`shared`] finds them, or says loudly that
//! a test did not run. [`build`] makes small models, [`run`] runs any model, [`hosted`] runs them
//! through the shell, and [`fuzz`] gives the parsers any bytes.

pub mod build;
pub mod drive;
pub mod fuzz;
pub mod gate;
pub mod goldens;
pub mod hosted;
pub mod metal;
pub mod reference;
pub mod run;

use std::io::Write as _;
use std::path::{Path, PathBuf};

/// The folder `shared` beside the project's checkout, which holds models, goldens and texts.
///
/// `None`, after a line on standard error, where there is none: the calling test then has
/// nothing to compare with and returns.
#[must_use]
pub fn shared() -> Option<PathBuf> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared"));
    if path.is_dir() {
        return Some(path.to_path_buf());
    }
    skipped(&format!("{} not found", path.display()));
    None
}

/// Says loudly that this test, or a part of it, does not run, and why.
pub fn skipped(why: &str) {
    // Written past the capture of the test harness, which would hide it from a passing run.
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Without a standard error there is no way to report.
    let _ = std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes());
}

/// Prints a measured figure past the capture of the test harness.
pub fn measured(what: &str) {
    // Without a standard error there is no way to report.
    let _ = std::io::stderr().write_all(format!("MEASURED: {what}\n").as_bytes());
}
