//! Programs that are killed while they replace several files: what is left is the old, the new, or refused.
//! strace ends the program at each of its system calls that matter.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support::{Folder, MODEL, fails, fixture, run, run_to};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// The system calls at which names change.
const CALLS: [&str; 7] = [
    "mkdir",
    "openat",
    "fsync",
    "renameat2",
    "rename",
    "unlink",
    "rmdir",
];

fn has_strace() -> bool {
    let mut command = Command::new("strace");
    let tried = command.args(["-o", "/dev/null", "true"]).output();
    let can = tried.is_ok_and(|tried| tried.status.success());
    if !can {
        eprintln!("SKIPPED: strace cannot run here");
    }
    can
}

/// Runs the program, killed at its `n`th `call`; false if there are fewer.
fn killed(args: &[&str], call: &str, n: usize) -> bool {
    let mut command = Command::new("strace");
    command
        .args(["-f", "-qq", "-o", "/dev/null", "-e"])
        .arg(format!("trace={call}"))
        .args(["-e", &format!("inject={call}:signal=KILL:when={n}")])
        .arg(env!("CARGO_BIN_EXE_sluice"))
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let status = command.output().unwrap().status;
    assert!(status.success() || status.signal() == Some(9), "{status}");
    !status.success()
}

fn contents(folder: &str) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    let files = files.filter(|file| file.file_type().unwrap().is_file());
    let read = |file: fs::DirEntry| {
        let name = file.file_name().into_string().unwrap();
        (name, fs::read(file.path()).unwrap())
    };
    files.map(read).collect()
}

fn write(folder: &str, files: &BTreeMap<String, Vec<u8>>) {
    if Path::new(folder).exists() {
        fs::remove_dir_all(folder).unwrap();
    }
    fs::create_dir(folder).unwrap();
    for (name, bytes) in files {
        fs::write(Path::new(folder).join(name), bytes).unwrap();
    }
}

#[test]
fn a_killed_conversion_leaves_the_old_adapter_or_the_new_one() {
    if !has_strace() {
        return;
    }
    let around = Folder::new("adapter");
    let out = around.path("out");
    let adapter = fixture("adapters/llama/one.gguf");
    let convert = ["lora", "convert", &adapter, "--to", "infq", "-o"];
    let [old, new] = [&[][..], &["--int4"]].map(|flags| {
        run_to(
            0,
            &[&convert[..], &[&out], flags, &["--overwrite"]].concat(),
        );
        contents(&out)
    });
    assert_ne!(old, new);
    let args = [&convert[..], &[&out, "--int4", "--overwrite"]].concat();
    for others in [&[][..], &["README"]] {
        let add = |files: &BTreeMap<String, Vec<u8>>| {
            let mut files = files.clone();
            files.extend(
                others
                    .iter()
                    .map(|name| ((*name).to_owned(), b"mine".to_vec())),
            );
            files
        };
        let (old, new) = (add(&old), add(&new));
        let mut ends = [0; 3];
        for call in CALLS {
            let tries = if call == "openat" { 60 } else { 12 };
            for n in (1..=tries).take_while(|n| {
                write(&out, &old);
                killed(&args, call, *n)
            }) {
                let left = contents(&out);
                let end = [&old, &new].iter().position(|files| left == **files);
                ends[end.unwrap_or(2)] += 1;
                if end.is_none() {
                    assert!(!others.is_empty(), "{call} {n}: {:?}", left.keys());
                    assert!(left.contains_key("README"));
                    let refused = run(&["lora", "inspect", &out]);
                    assert_ne!(refused.code, Some(0), "{call} {n}: {refused:?}");
                }
            }
        }
        assert!(ends[0] > 3 && ends[1] > 0, "{ends:?}");
        assert_eq!(ends[2] > 0, !others.is_empty(), "{ends:?}");
    }
}

#[test]
fn parts_of_two_models_are_refused_after_a_kill() {
    if !has_strace() {
        return;
    }
    let folder = Folder::new("parts");
    let (out, other) = (folder.path("m"), folder.path("other.gguf"));
    let split = |model, out| ["gguf-split", "--split-max-tensors", "25", model, out];
    run_to(0, &split(MODEL, &out));
    let names = folder.names();
    let first = folder.path(&names[0]);
    // The same header, and one other weight.
    let mut bytes = fs::read(MODEL).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    fs::write(&other, &bytes).unwrap();
    let args = [&split(&other, &out)[..], &["--overwrite"]].concat();
    for n in 2..=names.len() {
        run_to(0, &[&split(MODEL, &out)[..], &["--overwrite"]].concat());
        assert!(killed(&args, "rename", n));
        fails(
            1,
            &["inspect", &first],
            &["sluice.split.id differs from the first part's"],
        );
    }
    run_to(0, &args);
    let merged = folder.path("merged.gguf");
    run_to(0, &["gguf-split", "--merge", &first, &merged]);
    assert_eq!(fs::read(&merged).unwrap(), bytes);
}
