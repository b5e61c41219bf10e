//! The workspace's own sources and crates, for tests of their structure.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace.
///
/// # Panics
/// Never: the folder of tests is in it.
#[must_use]
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("tests lies in the root").to_owned()
}

/// Every `src` folder of the workspace and every folder below one, in order.
///
/// # Panics
/// If a folder cannot be read.
#[must_use]
pub fn source_folders() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for krate in crates() {
        below(&krate.folder.join("src"), &mut found);
    }
    found
}

fn below(folder: &Path, found: &mut Vec<PathBuf>) {
    if folder.is_dir() {
        found.push(folder.to_owned());
        for entry in sorted(folder) {
            below(&entry, found);
        }
    }
}

/// The entries of a folder, in order.
///
/// # Panics
/// If the folder cannot be read.
#[must_use]
pub fn sorted(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry of a folder that can be read").path())
        .collect();
    paths.sort();
    paths
}

/// A member of the workspace.
#[derive(Debug)]
pub struct Crate {
    /// Name in Cargo.toml.
    pub name: String,
    /// The folder of its Cargo.toml.
    pub folder: PathBuf,
    /// Names of the packages that it depends on, without the dependencies of its tests and build script.
    pub dependencies: Vec<String>,
}

/// The members of the workspace.
///
/// # Panics
/// If cargo cannot be run or prints something else.
#[must_use]
pub fn crates() -> Vec<Crate> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    packages.iter().map(Crate::from_metadata).collect()
}

impl Crate {
    fn from_metadata(package: &Value) -> Self {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let dependencies = package["dependencies"].as_array().expect("a list");
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        Self {
            name: text(&package["name"]),
            folder: manifest.parent().expect("a file in a folder").to_owned(),
            dependencies: dependencies
                .iter()
                .filter(|dependency| dependency["kind"].is_null())
                .map(|dependency| text(&dependency["name"]))
                .collect(),
        }
    }
}

/// All crates of the workspace that each one depends on, itself included, directly or through others.
#[must_use]
pub fn reached(crates: &[Crate]) -> BTreeMap<String, Vec<String>> {
    let by_name: BTreeMap<_, _> = crates
        .iter()
        .map(|krate| (krate.name.as_str(), krate))
        .collect();
    let mut all = BTreeMap::new();
    for krate in crates {
        let mut found = vec![krate.name.clone()];
        let mut next = 0;
        while let Some(name) = found.get(next) {
            let ours = by_name[name.as_str()].dependencies.iter();
            let new: Vec<_> = ours
                .filter(|name| by_name.contains_key(name.as_str()) && !found.contains(name))
                .cloned()
                .collect();
            found.extend(new);
            next += 1;
        }
        all.insert(krate.name.clone(), found);
    }
    all
}
