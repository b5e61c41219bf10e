//! The crates of the workspace depend on each other as ARCHITECTURE.md draws it, and in no other way.

use sluice_tests::sources::{Crate, crates, reached};
use std::collections::{BTreeMap, BTreeSet};

/// What each crate that people use may depend on. Tests and benches use anything.
const ARROWS: [(&str, &[&str]); 18] = [
    ("sluice-kernels", &[]),
    ("sluice-core", &["sluice-kernels"]),
    ("sluice-core-capi", &["sluice-core"]),
    ("sluice-metal", &["sluice-core"]),
    ("sluice", &["sluice-core"]),
    ("sluice-jinja", &[]),
    ("sluice-text", &["sluice", "sluice-core", "sluice-jinja"]),
    ("sluice-hf", &["sluice", "sluice-core"]),
    ("sluice-make", &["sluice", "sluice-core", "sluice-hf"]),
    ("sluice-gate", &["sluice", "sluice-core"]),
    ("sluice-experts", &["sluice", "sluice-core"]),
    ("sluice-pull", &[]),
    (
        "sluice-train",
        &[
            "sluice",
            "sluice-core",
            "sluice-hf",
            "sluice-make",
            "sluice-text",
        ],
    ),
    (
        "sluice-serve",
        &[
            "sluice",
            "sluice-core",
            "sluice-hf",
            "sluice-pull",
            "sluice-text",
        ],
    ),
    (
        "sluice-capi",
        &["sluice", "sluice-core", "sluice-hf", "sluice-text"],
    ),
    (
        "sluice-cli",
        &[
            "sluice",
            "sluice-core",
            "sluice-experts",
            "sluice-gate",
            "sluice-hf",
            "sluice-make",
            "sluice-pull",
            "sluice-serve",
            "sluice-text",
            "sluice-train",
        ],
    ),
    (
        "sluice-python",
        &[
            "sluice",
            "sluice-cli",
            "sluice-core",
            "sluice-gate",
            "sluice-hf",
            "sluice-make",
            "sluice-pull",
            "sluice-serve",
            "sluice-text",
        ],
    ),
    (
        "sluice-examples",
        &["sluice", "sluice-core", "sluice-gate", "sluice-text"],
    ),
];
/// Crates that are not for users.
const FREE: [&str; 2] = ["sluice-tests", "sluice-benches"];

#[test]
fn crates_depend_on_each_other_as_drawn() {
    let crates = crates();
    let members: BTreeSet<_> = crates.iter().map(|krate| krate.name.as_str()).collect();
    let drawn: BTreeSet<_> = ARROWS.iter().map(|(name, _)| *name).chain(FREE).collect();
    assert_eq!(
        members, drawn,
        "the members of the workspace are those drawn"
    );
    let wrong = wrong_arrows(&crates, &ARROWS.into());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn flags_are_the_programs_alone() {
    for krate in crates() {
        let has_flags = krate
            .dependencies
            .iter()
            .any(|name| name.starts_with("clap"));
        let may = ["sluice-cli", "sluice-benches"].contains(&krate.name.as_str());
        assert!(may || !has_flags, "{} depends on clap", krate.name);
    }
}

#[test]
fn the_library_and_the_server_reach_no_program_converter_or_laboratory() {
    let reached = reached(&crates());
    for name in ["sluice", "sluice-serve", "sluice-capi"] {
        for far in [
            "sluice-experts",
            "sluice-make",
            "sluice-train",
            "sluice-cli",
        ] {
            assert!(
                !reached[name].contains(&far.to_owned()),
                "{name} reaches {far}"
            );
        }
    }
}

#[test]
fn a_wrong_arrow_is_found() {
    let krate = |name: &str, dependency: &str| Crate {
        name: name.to_owned(),
        folder: "nowhere".into(),
        dependencies: vec![dependency.to_owned(), "libm".to_owned()],
    };
    let crates = [krate("a", "b"), krate("b", "a"), krate("c", "libm")];
    let drawn = [("a", &["b"][..]), ("b", &[]), ("c", &[])].into();
    assert_eq!(wrong_arrows(&crates, &drawn), ["b depends on a"]);
    let reached = reached(&crates);
    assert_eq!(reached["a"], ["a", "b"]);
    assert_eq!(reached["c"], ["c"]);
}

fn wrong_arrows(crates: &[Crate], drawn: &BTreeMap<&str, &[&str]>) -> Vec<String> {
    let mut wrong = Vec::new();
    for krate in crates {
        let Some(may) = drawn.get(krate.name.as_str()) else {
            continue;
        };
        let ours = krate
            .dependencies
            .iter()
            .filter(|name| drawn.contains_key(name.as_str()));
        let forbidden = ours.filter(|name| !may.contains(&name.as_str()));
        wrong.extend(forbidden.map(|name| format!("{} depends on {name}", krate.name)));
    }
    wrong
}
