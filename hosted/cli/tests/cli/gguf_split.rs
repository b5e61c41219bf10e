//! `sluice gguf-split`, and models in parts wherever a model is read.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support::{Folder, MODEL, Ran, fails, run_to};
use sluice::core::gguf::Gguf;
use std::fs;

fn part(folder: &Folder, index: usize, count: usize) -> String {
    folder.path(&format!("m-{index:05}-of-{count:05}.gguf"))
}

fn split(folder: &Folder, flags: &[&str]) -> Ran {
    let out = folder.path("m");
    run_to(0, &[&["gguf-split"], flags, &[MODEL, &out]].concat())
}

/// Keys and values, and tensors with their bytes.
type Contents = (Vec<(String, String)>, Vec<(String, String, Vec<u8>)>);

fn contents(path: &str) -> Contents {
    let bytes = fs::read(path).unwrap();
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let value = |value: sluice::core::gguf::Value<'_>| match value.as_array() {
        Some(array) => format!("{:?}", array.data_bytes()),
        None => format!("{value:?}"),
    };
    let metadata = gguf.metadata();
    let metadata = metadata.map(|(key, found)| (key.to_owned(), value(found)));
    let tensors = gguf.tensors().map(|tensor| {
        let start = usize::try_from(tensor.offset).unwrap();
        let len = usize::try_from(tensor.len_bytes).unwrap();
        let shape = format!("{:?} {:?} {}", tensor.ty, tensor.dims, tensor.n_dims);
        let data = bytes[start..start + len].to_vec();
        (tensor.name.to_owned(), shape, data)
    });
    (metadata.collect(), tensors.collect())
}

/// `split.no`, `split.count`, `split.tensors.count` and the number of tensors.
fn numbers(path: &str) -> (u32, u32, i32, u64) {
    let bytes = fs::read(path).unwrap();
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let number = |key| gguf.u32(key).unwrap();
    let all = gguf.i32("split.tensors.count").unwrap();
    (
        number("split.no"),
        number("split.count"),
        all,
        gguf.tensor_count(),
    )
}

fn n_tensors() -> usize {
    contents(MODEL).1.len()
}

#[test]
fn what_was_split_is_merged_to_the_same_file() {
    for (name, flags) in [
        ("tensors", &["--split", "--split-max-tensors", "7"][..]),
        ("size", &["--split-max-size", "1M"]),
        (
            "bare",
            &["--no-tensor-first-split", "--split_max_tensors", "20"],
        ),
        ("default", &[]),
    ] {
        let folder = Folder::new(name);
        split(&folder, flags);
        let parts = folder.names();
        let first = folder.path(&parts[0]);
        let n = n_tensors();
        let mut found = 0;
        for (path, index) in parts.iter().zip(0..) {
            assert_eq!(
                *path,
                format!("m-{:05}-of-{:05}.gguf", index + 1, parts.len())
            );
            let numbers = numbers(&folder.path(path));
            assert_eq!(
                (numbers.0, numbers.1),
                (index, u32::try_from(parts.len()).unwrap())
            );
            assert_eq!(usize::try_from(numbers.2).unwrap(), n);
            assert_eq!(numbers.3 == 0, index == 0 && name == "bare", "{path}");
            found += numbers.3;
        }
        assert_eq!(found, n as u64);
        let merged = folder.path("merged.gguf");
        run_to(0, &["gguf-split", "--merge", &first, &merged]);
        assert_eq!(contents(&merged), contents(MODEL), "{name}");
        assert_eq!(
            fs::read(&merged).unwrap(),
            fs::read(MODEL).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn no_part_is_larger_than_asked_but_for_a_single_tensor() {
    let folder = Folder::new("limits");
    let ran = split(&folder, &["--split-max-size", "1M"]);
    let parts = folder.names();
    assert!(parts.len() > 3, "{parts:?}");
    let (mut large, mut previous) = (0, u64::MAX);
    for name in &parts {
        let bytes = contents(&folder.path(name)).1;
        let size: u64 = bytes
            .iter()
            .map(|(.., data)| (data.len() as u64).next_multiple_of(32))
            .sum();
        let first = bytes[0].2.len() as u64;
        assert!(size <= 1_000_000 || bytes.len() == 1, "{name}: {size}");
        // It was begun because the previous part was full.
        assert!(
            previous == u64::MAX || previous + first > 1_000_000,
            "{name}"
        );
        large += usize::from(size > 1_000_000);
        previous = size;
    }
    assert_eq!(
        ran.stderr.matches("exceeds the requested size").count(),
        large,
        "{ran:?}"
    );
    assert!(
        ran.stdout
            .starts_with(&format!("n_split: {}\n", parts.len()))
    );
    assert!(ran.stdout.contains("split 00001: n_tensors = "), "{ran:?}");
}

#[test]
fn every_command_reads_the_parts_as_one_file() {
    let folder = Folder::new("reads");
    split(
        &folder,
        &["--split-max-tensors", "9", "--no-tensor-first-split"],
    );
    let first = folder.path(&folder.names()[0]);
    let said = |model: &str, mode: &str| {
        let args = [
            "run",
            "-m",
            model,
            "-lm",
            mode,
            "-p",
            "The little dog",
            "-n",
            "16",
        ];
        run_to(0, &[&args[..], &["--temp", "0"]].concat()).stdout
    };
    let expected = said(MODEL, "none");
    assert_eq!(said(&first, "none"), expected);
    assert_eq!(said(&first, "mmap"), expected);
    let tokens = |model: &str| run_to(0, &["tokenize", "-m", model, "-p", "Once upon"]).stdout;
    assert_eq!(tokens(&first), tokens(MODEL));
    let report = run_to(0, &["inspect", &first]).stdout;
    assert!(report.contains("joined from"), "{report}");
    assert!(!report.contains("split.count"), "{report}");
    let made = |command: &[&str], model: &str, name: &str| {
        let out = folder.path(name);
        let args: Vec<_> = command
            .iter()
            .map(|&word| match word {
                "IN" => model,
                "OUT" => &out,
                word => word,
            })
            .collect();
        run_to(0, &args);
        fs::read(&out).unwrap()
    };
    for command in [
        &["quantize", "--allow-requantize", "IN", "OUT", "Q8_0"][..],
        &["pack", "IN", "OUT"],
    ] {
        let (whole, parts) = (
            made(command, MODEL, "whole"),
            made(command, &first, "parts"),
        );
        assert!(whole == parts, "{command:?}");
        fs::remove_file(folder.path("whole")).unwrap();
        fs::remove_file(folder.path("parts")).unwrap();
    }
    // Parts are split again, and merged.
    let again = folder.path("again");
    run_to(
        0,
        &["gguf-split", "--split-max-tensors", "30", &first, &again],
    );
    let firsts = folder.names();
    let first = firsts
        .iter()
        .find(|name| name.starts_with("again-00001"))
        .unwrap();
    let merged = made(
        &["gguf-split", "--merge", "IN", "OUT"],
        &folder.path(first),
        "merged",
    );
    assert_eq!(merged, fs::read(MODEL).unwrap());
}

#[test]
fn parts_that_do_not_belong_together_are_named() {
    let folder = Folder::new("wrong");
    split(&folder, &["--split-max-tensors", "25"]);
    let count = folder.names().len();
    assert!(count >= 2, "{count}");
    let (first, second) = (part(&folder, 1, count), part(&folder, 2, count));
    let (good_first, good_second) = (fs::read(&first).unwrap(), fs::read(&second).unwrap());
    for command in [
        &["inspect"][..],
        &["tokenize", "-p", "x", "-m"],
        &["run", "-m"],
    ] {
        let args = [command, &[&second]].concat();
        fails(
            1,
            &args,
            &[&second, "part 2 of", "name the first part", &first],
        );
    }
    fs::remove_file(&second).unwrap();
    let missing = ["cannot open", &second, "in one folder"];
    fails(1, &["inspect", &first], &missing);
    // A model in one file under its name.
    fs::copy(MODEL, &second).unwrap();
    fails(
        1,
        &["inspect", &first],
        &[&second, "in one file", "download it again"],
    );
    // The first part twice.
    fs::write(&second, &good_first).unwrap();
    fails(
        1,
        &["inspect", &first],
        &[&second, "it is part 1", "part 2 of"],
    );
    // The second under the first's name.
    fs::write(&first, &good_second).unwrap();
    fails(
        1,
        &["inspect", &first],
        &[&first, "it is part 2", "part 1 of"],
    );
    fs::write(&first, &good_first).unwrap();
    fs::write(&second, &good_second[..good_second.len() - 64]).unwrap();
    fails(1, &["inspect", &first], &[&second, "tensor"]);
    fs::write(&second, &good_second).unwrap();
    let renamed = folder.path("renamed.gguf");
    fs::copy(&first, &renamed).unwrap();
    let ending = format!("-00001-of-{count:05}.gguf");
    fails(
        1,
        &["inspect", &renamed],
        &[&renamed, "does not end in", &ending],
    );
    run_to(0, &["inspect", &first]);
}

#[test]
fn a_part_of_another_model_is_named() {
    let (folder, other) = (Folder::new("ours"), Folder::new("theirs"));
    split(&folder, &["--split-max-tensors", "25"]);
    let count = folder.names().len();
    // As many parts, split elsewhere: some tensors occur twice.
    split(&other, &["--split-max-tensors", "24"]);
    assert_eq!(other.names().len(), count);
    fs::copy(part(&other, 2, count), part(&folder, 2, count)).unwrap();
    let (first, second) = (part(&folder, 1, count), part(&folder, 2, count));
    fails(
        1,
        &["inspect", &first],
        &[
            &second,
            "an earlier part also has tensor",
            "download them again",
        ],
    );
}

#[test]
fn wrong_usage_writes_nothing() {
    let folder = Folder::new("usage");
    let out = folder.path("m");
    for (flags, expected) in [
        (&["--split", "--merge"][..], "--merge"),
        (&["--split-max-size", "2"], "M or G"),
        (&["--split-max-size", "0M"], "above 0"),
        (&["--split-max-size", "1.5G"], "whole number"),
        (&["--split-max-tensors", "0"], "--split-max-tensors"),
        (
            &["--split-max-tensors", "3", "--split-max-size", "2M"],
            "--split-max-size",
        ),
        (&["--merge", "--split-max-size", "2M"], "--merge"),
        (&["--delete-splits"], "delete the parts"),
    ] {
        fails(
            2,
            &[&["gguf-split"], flags, &[MODEL, &out]].concat(),
            &[expected],
        );
    }
    fails(
        1,
        &["gguf-split", "--merge", MODEL, &out],
        &[MODEL, "nothing to merge"],
    );
    let planned = split(&folder, &["--dry-run", "--split-max-tensors", "10"]);
    assert!(planned.stdout.contains("split 00002"), "{planned:?}");
    assert!(folder.names().is_empty());
    // Existing files are kept.
    split(&folder, &["--split-max-tensors", "25"]);
    let names = folder.names();
    let last = folder.path(names.last().unwrap());
    let first = folder.path(&names[0]);
    fs::remove_file(&first).unwrap();
    let args = ["gguf-split", "--split-max-tensors", "25", MODEL, &out];
    fails(1, &args, &["exists already", "--overwrite"]);
    assert!(!fs::exists(&first).unwrap());
    assert!(fs::exists(&last).unwrap());
    run_to(0, &[&args[..3], &["--overwrite"], &args[3..]].concat());
    assert_eq!(folder.names(), names);
    let merged = folder.path("merged.gguf");
    let planned = run_to(0, &["gguf-split", "--merge", "--dry-run", &first, &merged]);
    assert!(planned.stderr.contains("not written"), "{planned:?}");
    assert!(!fs::exists(&merged).unwrap());
}
