//! Modules use each other one way: no circles of `use` among the files of any source folder of the workspace.
//!
//! A file of a folder, or a folder in it, is a node. It uses another when it names a path into it:
//! `crate::folder::other::…`, `super::other::…`, or an item that the folder's own `mod.rs` takes from it. What
//! `mod.rs` (or `lib.rs`) itself says is not looked at: it introduces its files to others, and tests neither.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice_tests::sources::{root, sorted, source_folders};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which file uses which.
type Edges = BTreeMap<String, BTreeSet<String>>;

#[test]
fn files_of_a_folder_use_each_other_one_way() {
    let mut circles = Vec::new();
    let mut n_edges = 0;
    for folder in source_folders() {
        let edges = edges(&folder);
        n_edges += edges.values().map(BTreeSet::len).sum::<usize>();
        let name = folder.strip_prefix(root()).unwrap().display().to_string();
        circles.extend(circle(&edges).map(|path| format!("{name}: {}", path.join(" -> "))));
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
    assert!(n_edges > 1000, "{n_edges} uses were found in all");
    let hosted = edges(&root().join("hosted/src"));
    for (user, used) in [
        ("session", "model"),
        ("evaluate", "session"),
        ("team", "host"),
    ] {
        assert!(hosted[user].contains(used), "{user} uses {used}");
    }
}

#[test]
fn a_circle_is_found() {
    let edge = |from: &str, to: &[&str]| {
        (
            from.to_owned(),
            to.iter().map(ToString::to_string).collect(),
        )
    };
    let mut edges: Edges = [edge("a", &["b"]), edge("b", &["c", "d"]), edge("d", &[])].into();
    assert_eq!(circle(&edges), None);
    edges.extend([edge("c", &["a"])]);
    assert_eq!(circle(&edges).unwrap(), ["a", "b", "c", "a"]);
}

#[test]
fn uses_are_read_as_rust_reads_them() {
    let text = "use crate::x::{\n    a::A,\n    b::{self, C},\n};\nuse super::d::D;\n// use super::no;\n\
                fn f() { super::e::g(); crate::x::h() }\n#[cfg(test)]\nmod tests { use super::super::y; }";
    let folder = ["x".to_owned()];
    let found: Vec<_> = paths(text)
        .filter_map(|path| inside(&path, &folder, 1))
        .collect();
    assert_eq!(found, ["a", "b", "b", "d", "e", "h"]);
}

/// The edges among the files and folders of `folder`.
fn edges(folder: &Path) -> Edges {
    let module = module_of(folder);
    let inside = ["lib.rs", "mod.rs", "main.rs"].map(|name| folder.join(name));
    let beside = folder.with_extension("rs");
    let own = inside
        .into_iter()
        .chain([beside])
        .find(|path| path.exists());
    // A folder of test data or of binaries has no file of its own.
    let Some(own) = own else {
        return Edges::new();
    };
    // Items that the folder's own file takes from its parts, under their names.
    let mut taken = BTreeMap::new();
    for path in paths(&fs::read_to_string(&own).unwrap()) {
        let path = path.strip_prefix("self::").unwrap_or(&path);
        if let Some((part, item)) = path.split_once("::") {
            taken.insert(
                item.rsplit("::").next().unwrap().to_owned(),
                part.to_owned(),
            );
        }
    }
    let mut edges = Edges::new();
    for path in sorted(folder) {
        if path != own && path.file_stem().unwrap() != "tests" {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            collect(&path, 1, &module, &taken, edges.entry(name).or_default());
        }
    }
    let nodes: BTreeSet<_> = edges.keys().cloned().collect();
    for (node, used) in &mut edges {
        used.retain(|other| other != node && nodes.contains(other));
    }
    edges
}

/// Adds what the files at `path`, which are `depth` levels inside the folder, use.
fn collect(
    path: &Path,
    depth: usize,
    module: &[String],
    taken: &BTreeMap<String, String>,
    used: &mut BTreeSet<String>,
) {
    if path.is_dir() {
        for entry in sorted(path) {
            let own = entry.file_name().unwrap() == "mod.rs";
            collect(
                &entry,
                if own { depth } else { depth + 1 },
                module,
                taken,
                used,
            );
        }
    } else if path.extension().is_some_and(|end| end == "rs")
        && path.file_stem().unwrap() != "tests"
    {
        let text = fs::read_to_string(path).unwrap();
        for name in paths(&text).filter_map(|path| inside(&path, module, depth)) {
            used.insert(taken.get(&name).cloned().unwrap_or(name));
        }
    }
}

/// The first name of `path` inside the folder of `module`, as written in a file `depth` levels inside.
fn inside(path: &str, module: &[String], depth: usize) -> Option<String> {
    let mut parts: Vec<&str> = path.split("::").collect();
    if parts[0] == "crate" {
        let is_inside = parts[1..]
            .iter()
            .zip(module)
            .all(|(part, name)| part == name);
        parts.drain(..=module.len().min(parts.len() - 1));
        return parts.first().filter(|_| is_inside).map(ToString::to_string);
    }
    let ups = parts.iter().take_while(|part| **part == "super").count();
    parts
        .get(ups)
        .filter(|_| ups == depth)
        .map(ToString::to_string)
}

/// All paths in a file, braces expanded, without comments and its tests.
fn paths(text: &str) -> impl Iterator<Item = String> {
    let text = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
    let code: String = text
        .lines()
        .map(|line| line.split("//").next().unwrap().to_owned() + " ")
        .collect();
    let mut found = Vec::new();
    for statement in code.split_inclusive([';']) {
        match statement.rsplit_once("use ") {
            Some((before, tree)) if tree.ends_with(';') => {
                let tree: String = tree[..tree.len() - 1].split_whitespace().collect();
                expand(&tree, "", &mut found);
                found.extend(written(before));
            }
            _ => found.extend(written(statement)),
        }
    }
    found.into_iter()
}

/// The paths of a tree of names: `a::{b, c::{d, e}}`.
fn expand(tree: &str, before: &str, found: &mut Vec<String>) {
    let Some((head, rest)) = tree.split_once('{') else {
        let name = tree.strip_suffix("::self").unwrap_or(tree);
        let path = if name == "self" {
            before.trim_end_matches("::").to_owned()
        } else {
            format!("{before}{name}")
        };
        found.push(path);
        return;
    };
    let (mut depth, mut start) = (0, 0);
    let before = format!("{before}{head}");
    let inner = rest.strip_suffix('}').unwrap_or(rest);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if start < at {
                    expand(&inner[start..at], &before, found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// Paths in the middle of code.
fn written(code: &str) -> Vec<String> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c: char| !is_path(c));
    let ours = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
    ours.map(|word| word.trim_end_matches(':').to_owned())
        .collect()
}

/// The module that a folder contains: its path after `src`.
fn module_of(folder: &Path) -> Vec<String> {
    let parts: PathBuf = folder
        .components()
        .rev()
        .take_while(|part| part.as_os_str() != "src")
        .collect();
    parts
        .iter()
        .rev()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect()
}

/// A path that ends where it begins, if there is one.
fn circle(edges: &Edges) -> Option<Vec<String>> {
    let mut done = BTreeSet::new();
    edges
        .keys()
        .find_map(|node| visit(node, edges, &mut Vec::new(), &mut done))
}

fn visit(
    node: &str,
    edges: &Edges,
    path: &mut Vec<String>,
    done: &mut BTreeSet<String>,
) -> Option<Vec<String>> {
    if let Some(start) = path.iter().position(|name| name == node) {
        let circle = path[start..].iter().cloned().chain([node.to_owned()]);
        return Some(circle.collect());
    }
    if !done.insert(node.to_owned()) {
        return None;
    }
    path.push(node.to_owned());
    let used = edges.get(node).into_iter().flatten();
    let found = used
        .into_iter()
        .find_map(|next| visit(next, edges, path, done));
    path.pop();
    found
}
