//! Things have names: parameters are not tuples, and a public type's name means one type.
//!
//! Both are counted over every source file of the workspace, outside tests.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice_tests::sources::{crates, reached, root, sorted};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};

#[test]
fn parameters_are_not_tuples() {
    let mut found = Vec::new();
    for krate in crates() {
        for (name, items) in files(&krate.folder.join("src")) {
            found.extend(
                items
                    .tuples
                    .iter()
                    .map(|function| format!("{name}: {function}")),
            );
        }
    }
    assert!(
        found.is_empty(),
        "{} in all\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn a_public_name_is_one_type() {
    let crates = crates();
    let reached = reached(&crates);
    let mut types: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for krate in &crates {
        for (file, items) in files(&krate.folder.join("src")) {
            for name in items.types {
                let place = (krate.name.clone(), file.clone());
                types.entry(name).or_default().push(place);
            }
        }
    }
    // Two crates meet where one crate reaches both.
    let meet = |a: &String, b: &String| {
        reached.iter().any(|(user, all)| {
            !["sluice-tests", "sluice-benches"].contains(&user.as_str())
                && all.contains(a)
                && all.contains(b)
        })
    };
    let mut found = BTreeMap::new();
    for (name, places) in &types {
        let twice = places
            .iter()
            .enumerate()
            .any(|(i, (a, _))| places[i + 1..].iter().any(|(b, _)| meet(a, b)));
        if twice {
            let files: Vec<_> = places.iter().map(|(_, file)| file.as_str()).collect();
            found.insert(name.as_str(), files.join(", "));
        }
    }
    assert!(types.len() > 500, "{} public types were found", types.len());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn both_checks_can_fail() {
    let text = "pub struct A; pub(crate) struct B; struct C; pub enum D {} pub trait E { fn t((a, b): (u8, u8)); }
        mod inner { pub type F = u8; fn f(a: u8, (b, c): (u8, u8)) { fn g(x: &(u8, u8)) {} } }
        impl A { fn h(&self, pair: (u8, u8), list: &[(u8, u8)], unit: ()) {} }
        #[cfg(test)] mod tests { pub struct G; fn i((a, b): (u8, u8)) {} }
        #[cfg(all(test, unix))] fn j((a, b): (u8, u8)) {}";
    let mut items = Items::default();
    items.visit_file(&syn::parse_file(text).unwrap());
    assert_eq!(items.types, ["A", "D", "E", "F"]);
    assert_eq!(items.tuples, ["t", "f", "g", "h"]);
}

/// What a file holds outside of tests.
#[derive(Default)]
struct Items {
    /// Public types and traits.
    types: Vec<String>,
    /// Functions with a parameter that is a tuple, or a reference to one.
    tuples: Vec<String>,
}

/// The files of a source folder, by their paths from the root of the workspace.
fn files(folder: &Path) -> Vec<(String, Items)> {
    let mut found = Vec::new();
    if !folder.is_dir() {
        return found;
    }
    for path in sorted(folder) {
        if path.file_stem().unwrap() == "tests" {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            let text = fs::read_to_string(&path).unwrap();
            let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let mut items = Items::default();
            items.visit_file(&file);
            found.push((name, items));
        }
    }
    found
}

impl Items {
    fn take(&mut self, vis: &syn::Visibility, name: &syn::Ident) {
        if matches!(vis, syn::Visibility::Public(_)) {
            self.types.push(name.to_string());
        }
    }
}

impl<'a> Visit<'a> for Items {
    fn visit_item(&mut self, item: &'a syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_struct(&mut self, item: &'a syn::ItemStruct) {
        self.take(&item.vis, &item.ident);
    }

    fn visit_item_enum(&mut self, item: &'a syn::ItemEnum) {
        self.take(&item.vis, &item.ident);
    }

    fn visit_item_union(&mut self, item: &'a syn::ItemUnion) {
        self.take(&item.vis, &item.ident);
    }

    fn visit_item_type(&mut self, item: &'a syn::ItemType) {
        self.take(&item.vis, &item.ident);
    }

    fn visit_item_trait(&mut self, item: &'a syn::ItemTrait) {
        self.take(&item.vis, &item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_signature(&mut self, signature: &'a syn::Signature) {
        let is_tuple = |input: &syn::FnArg| match input {
            syn::FnArg::Typed(input) => {
                let mut ty = &*input.ty;
                while let syn::Type::Reference(to) = ty {
                    ty = &to.elem;
                }
                matches!(ty, syn::Type::Tuple(parts) if !parts.elems.is_empty())
            }
            syn::FnArg::Receiver(_) => false,
        };
        if signature.inputs.iter().any(is_tuple) {
            self.tuples.push(signature.ident.to_string());
        }
        visit::visit_signature(self, signature);
    }
}

/// Whether an item exists only for tests.
fn is_for_tests(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else {
        return false;
    };
    let words: BTreeSet<_> = list
        .tokens
        .to_string()
        .split(|c: char| !c.is_alphanumeric())
        .map(str::to_owned)
        .collect();
    list.path.is_ident("cfg") && words.contains("test") && !words.contains("not")
}
