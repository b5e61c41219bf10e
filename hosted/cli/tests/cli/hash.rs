//! `sluice hash`, and what models are known by.

use crate::support::{Folder, MODEL, Ran, fails, ran, sluice};
use sha2::{Digest as _, Sha256};
use sluice::core::gguf::Gguf;
use std::fs;

const MIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/adapters/qwen3moe/base.gguf"
);

fn sha256(path: &str) -> String {
    let bytes = fs::read(path).expect("the file is there");
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Runs with a cache folder of the test's own.
fn run(folder: &Folder, args: &[&str]) -> Ran {
    let output = sluice()
        .env("XDG_CACHE_HOME", folder.path("cache"))
        .args(args)
        .output();
    let ran = ran(output.expect("the program runs"));
    assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
    ran
}

/// What is recorded.
fn records(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.path("cache/sluice/hashes"));
    let entries = entries
        .into_iter()
        .flatten()
        .map(|entry| entry.expect("a folder"));
    let texts = entries.map(|entry| fs::read_to_string(entry.path()).expect("a record"));
    texts.map(|text| text.trim().to_owned()).collect()
}

#[test]
fn a_hash_is_what_sha256sum_prints_and_is_remembered() {
    let folder = Folder::new("hash");
    let expected = sha256(MODEL);
    let printed = run(&folder, &["hash", MODEL]);
    assert_eq!(printed.stdout, format!("{expected}  {MODEL}\n"));
    assert_eq!(records(&folder), [expected]);
    fails(
        1,
        &["hash", "/does/not/exist.gguf"],
        &["/does/not/exist.gguf"],
    );
    fails(2, &["hash"], &["FILE"]);
}

#[test]
fn files_that_are_made_are_known_at_once() {
    let folder = Folder::new("made");
    let [quantised, packed, unpacked, part] =
        ["q.gguf", "q.slc", "u.gguf", "p"].map(|name| folder.path(name));
    run(&folder, &["quantize", MIXTURE, &quantised, "F16"]);
    let expected = sha256(&quantised);
    assert_eq!(records(&folder), core::slice::from_ref(&expected));
    run(&folder, &["pack", &quantised, &packed]);
    run(&folder, &["unpack", &packed, &unpacked]);
    assert_eq!(records(&folder), vec![expected.clone(); 3]);
    run(
        &folder,
        &["gguf-split", "--split-max-tensors", "20", &quantised, &part],
    );
    let first = folder
        .names()
        .into_iter()
        .find(|name| name.contains("00001-of-"))
        .unwrap();
    let printed = run(&folder, &["hash", &folder.path(&first), &packed]);
    assert_eq!(printed.stdout.matches(&expected).count(), 2);
}

#[test]
fn a_cache_is_not_used_with_other_experts() {
    let folder = Folder::new("experts");
    let (own, other) = (folder.path("own.gguf"), folder.path("other.gguf"));
    let mut bytes = fs::read(MIXTURE).unwrap();
    fs::write(&own, &bytes).unwrap();
    let place = {
        let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
        let name = "blk.0.ffn_down_exps.weight";
        let tensor = gguf.tensor(name).unwrap();
        usize::try_from(tensor.offset + tensor.len_bytes / 2).unwrap()
    };
    bytes[place] ^= 1;
    fs::write(&other, &bytes).unwrap();
    let cache = folder.path("cache.bin");
    let args = |model: &str| {
        let args = ["run", "-m", model, "-p", "abcdefghij", "-n", "4"];
        let cached = ["--prompt-cache", &cache, "--temp", "0"];
        [&args[..], &cached].concat().join("\n")
    };
    let text = |model: &str| run(&folder, &args(model).split('\n').collect::<Vec<_>>());
    for hashed in [false, true] {
        let first = text(&own);
        let again = text(&own);
        assert_eq!(first.stdout, again.stdout);
        let refused = sluice()
            .env("XDG_CACHE_HOME", folder.path("cache"))
            .args(args(&other).split('\n'))
            .output();
        let refused = ran(refused.unwrap());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("another model"), "{refused:?}");
        if !hashed {
            run(&folder, &["hash", &own, &other]);
        }
    }
}
