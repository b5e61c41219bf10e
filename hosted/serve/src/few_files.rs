//! Tests of a process without file descriptors to spare.

use std::fs::File;
use std::process::Command;

/// Runs `act` in a process of this one test, named by its path, that may open 64 files.
pub(crate) fn in_child(test: &str, act: impl FnOnce()) {
    if std::env::var_os("SLUICE_FEW_FILES").is_some() {
        return act();
    }
    let child = Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env("SLUICE_FEW_FILES", "1")
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && shown.contains("1 passed"),
        "{child:?}"
    );
}

/// Opens as many files as it can.
pub(crate) fn take_all() -> Vec<File> {
    core::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}
