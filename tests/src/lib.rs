//! What crosses the crates of Sluice, and what their results are compared with.
//!
//! [`reference`](mod@reference) evaluates llama models in f64 without a line of `sluice-core` or `sluice-kernels`;
//! [`goldens`] names the logits that llama.cpp gave for the same files. [`fixture`] finds the project's files that
//! tests compare with; [`shared`] finds files from other projects, or prints that a test was skipped. [`build`] makes
//! small models, [`packing`] `.slc` files of models, [`run`] runs any model, [`hosted`] runs them through the shell, and [`fuzz`] gives the parsers any
//! bytes, [`routes`] a server any bodies. [`sources`] lists the workspace's own files.

pub mod build;
pub mod drive;
pub mod frames;
pub mod fuzz;
pub mod gate;
pub mod goldens;
pub mod header;
pub mod hosted;
pub mod metal;
pub mod packing;
pub mod reference;
pub mod routes;
pub mod run;
pub mod sources;

mod shared;

use std::io::Write as _;
use std::path::{Path, PathBuf};

pub use shared::{shared, shared_folder, skipped};

/// The path of a file or folder of `tests/fixtures`, which is part of the project.
#[must_use]
pub fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures")).join(name)
}

/// Prints a measured figure past the capture of the test harness.
pub fn measured(what: &str) {
    // If standard error is closed, there is nowhere to report it.
    let _ = std::io::stderr().write_all(format!("MEASURED: {what}\n").as_bytes());
}
