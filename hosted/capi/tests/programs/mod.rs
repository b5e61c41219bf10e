//! Programs built by a C compiler with one of the libraries.

use core::sync::atomic::{AtomicU32, Ordering};
use sluice_tests::metal::text_of;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library that a program is linked with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Linked {
    Shared,
    Static,
}

impl Linked {
    pub(crate) const ALL: [Self; 2] = [Self::Shared, Self::Static];
}

/// Compiles a program with strict warnings, and links it with the library that cargo built for this
/// test.
pub(crate) fn compile(source: &Path, linked: Linked) -> PathBuf {
    // A file of its own: a program that another test is running cannot be overwritten.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = source
        .file_stem()
        .and_then(|stem| stem.to_str())
        .expect("a name");
    let (id, n) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let program = scratch(&format!("{name}-{linked:?}-{id}-{n}"));
    let mut cc = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    cc.args([
        "-std=c11",
        "-D_GNU_SOURCE",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
    ]);
    cc.arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
    cc.arg(source).arg("-o").arg(&program);
    match linked {
        Linked::Shared => {
            let shared = library("libsluice_capi.so");
            // The name that programs look for at run time.
            let named = scratch("lib").join("libsluice_capi.so.5");
            fs::create_dir_all(scratch("lib")).expect("writable");
            if fs::read_link(&named).ok().as_ref() != Some(&shared) {
                // Tests run concurrently; the second one finds it built.
                let _old = fs::remove_file(&named);
                let _made = std::os::unix::fs::symlink(&shared, &named);
            }
            cc.arg(&shared);
            cc.arg(format!("-Wl,-rpath,{}", scratch("lib").display()));
        }
        // As printed by `rustc --print native-static-libs`.
        Linked::Static => {
            cc.arg(library("libsluice_capi.a"));
            cc.args([
                "-lgcc_s",
                "-lutil",
                "-lrt",
                "-lpthread",
                "-lm",
                "-ldl",
                "-lc",
            ]);
        }
    }
    let output = cc
        .args(["-pthread", "-lm"])
        .output()
        .expect("a C compiler (Debian: gcc)");
    assert!(output.status.success(), "{linked:?}: {}", text_of(&output));
    program
}

/// The folder where cargo put the libraries when it built this test.
fn library(name: &str) -> PathBuf {
    let test = env::current_exe().expect("a test is a file");
    let path = test.with_file_name(name);
    assert!(path.exists(), "{} was not built", path.display());
    path
}

/// Runs a program, for at most two minutes.
pub(crate) fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new("timeout")
        .arg("120")
        .arg(program)
        .args(arguments)
        .output()
        .expect("timeout is part of coreutils")
}

/// A file of these tests.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
    fs::create_dir_all(&folder).expect("writable");
    folder.join(name)
}
