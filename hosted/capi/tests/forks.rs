//! C programs that fork: a child has none of the threads, and its parent continues.
#![cfg(target_os = "linux")]

mod programs;

use programs::{Linked, compile, run};
use sluice_tests::hosted::TALE;
use sluice_tests::metal::text_of;
use std::path::Path;

const MIXTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/models/gpt-oss.gguf"
);

#[test]
fn long_texts_and_forks_end_no_process() {
    let text = told("borders.c", Linked::Shared, &[TALE]);
    let forked = "SLUICE_INVALID_ARGUMENT: the handle was created before a fork";
    let no_memory = "SLUICE_OUT_OF_MEMORY: cannot encode the text: not enough memory";
    let expected = [
        format!("generate: {forked}"),
        format!("embed: {forked}"),
        "tokenize: SLUICE_OK".to_owned(),
        "new context: SLUICE_OK".to_owned(),
        "generate: SLUICE_OK".to_owned(),
        "child: 0".to_owned(),
        "parent: SLUICE_OK".to_owned(),
        "endless: SLUICE_INVALID_ARGUMENT: text has 1073741824 bytes, more than".to_owned(),
        format!("long word: {no_memory}"),
        format!("prompt: {no_memory}"),
        "parent: SLUICE_OK".to_owned(),
    ];
    assert_eq!(text.lines().count(), expected.len(), "{text}");
    for (line, start) in text.lines().zip(expected) {
        assert!(line.starts_with(&start), "'{start}' in '{line}'");
    }
}

/// Children of a parent whose model has its experts on disk: one that frees, one that only exits, one that is created
/// while the parent is computing.
#[test]
fn a_parent_goes_on_with_experts_on_disk() {
    let forked = "SLUICE_INVALID_ARGUMENT: the handle was created before a fork";
    for (linked, io) in Linked::ALL
        .into_iter()
        .zip(["", "pread"])
        .chain([(Linked::Shared, "mmap")])
    {
        let text = told("forks.c", linked, &[MIXTURE, io]);
        let lines: Vec<_> = text.lines().collect();
        let [in_memory, first, rest @ ..] = &*lines else {
            panic!("{text}");
        };
        let hash = in_memory.strip_prefix("in memory: ").expect(&text);
        assert_eq!(*first, format!("on disk: {hash}"), "{io}");
        let again = format!("again: {hash}");
        let expected = [
            &*format!("child: generate: {forked}"),
            &*format!("child: new context: {forked}"),
            "child that frees: 0",
            &*again,
            "child that ends: 0",
            &*again,
            &*again,
            "children of a text: 0 0 0 0",
            "read: 1",
        ];
        assert_eq!(rest.len(), expected.len(), "{io}: {text}");
        for (line, start) in rest.iter().zip(expected) {
            assert!(line.starts_with(start), "{io}: '{start}' in '{line}'");
        }
    }
}

/// The output of a program of these tests.
fn told(source: &str, linked: Linked, arguments: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(source);
    let output = run(&compile(&source, linked), arguments);
    assert!(output.status.success(), "{linked:?}: {}", text_of(&output));
    String::from_utf8(output.stdout).expect("a text")
}
