//! The models that are in the cache.

use crate::cache::Cache;
use crate::choose::{is_model, split};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// `user/name:TYPE`, as llama-server calls it; `user/name:FILE` where the file's name ends with no type, or another
    /// one has the same.
    pub name: String,
    /// Its file, or the first of its parts.
    pub path: PathBuf,
}

impl Cache {
    /// The models of all repositories, at the commit that was last fetched of their main branch, sorted by name.
    /// Folders that cannot be read have none.
    #[must_use]
    pub fn models(&self) -> Vec<CachedModel> {
        let mut found = Vec::new();
        for folder in fs::read_dir(self.root()).into_iter().flatten().flatten() {
            let name = folder.file_name();
            let repo = name.to_str().and_then(|name| name.strip_prefix("models--"));
            let Some(repo) = repo.map(|repo| repo.replacen("--", "/", 1)) else {
                continue;
            };
            let main = folder.path().join("refs/main");
            let Ok(commit) = fs::read_to_string(main) else {
                continue;
            };
            let snapshot = folder.path().join("snapshots").join(commit.trim());
            let mut tags = BTreeSet::new();
            for path in Self::files(&snapshot) {
                if !is_model(&path) {
                    continue;
                }
                let file = path.rsplit('/').next().unwrap_or(&path);
                let stem = file.strip_suffix(".gguf").unwrap_or(file);
                let stem = split(stem).map_or(stem, |(name, ..)| name);
                let tag = tag(stem).filter(|tag| tags.insert(tag.clone()));
                let name = tag.unwrap_or_else(|| stem.to_owned());
                found.push(CachedModel {
                    name: format!("{repo}:{name}"),
                    path: snapshot.join(path),
                });
            }
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        found
    }
}

/// The type of a model's weights, from the end of its name: `Q4_K_M` of `model-q4_k_m`.
fn tag(stem: &str) -> Option<String> {
    let (_, last) = stem.rsplit_once(['-', '.'])?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!last.is_empty() && last.chars().all(is_word)).then(|| last.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_named_by_repository_and_type() {
        let root = std::env::temp_dir().join(format!("sluice-cached-{}", std::process::id()));
        let commit = "0123456789012345678901234567890123456789";
        for (repo, files) in [
            (
                "models--org--small-GGUF",
                &[
                    "small-Q8_0.gguf",
                    "small-q4_k_m.gguf",
                    "other-Q8_0.gguf",
                    "mmproj-F16.gguf",
                    "README.md",
                ][..],
            ),
            (
                "models--org--split",
                &["s-F16-00001-of-00002.gguf", "s-F16-00002-of-00002.gguf"],
            ),
            ("datasets--org--text", &["t-Q8_0.gguf"]),
        ] {
            let snapshot = root.join(repo).join("snapshots").join(commit);
            fs::create_dir_all(&snapshot).unwrap();
            fs::create_dir_all(root.join(repo).join("refs")).unwrap();
            fs::write(root.join(repo).join("refs/main"), commit).unwrap();
            for file in files {
                fs::write(snapshot.join(file), "").unwrap();
            }
        }
        fs::create_dir_all(root.join("models--org--unfetched/snapshots")).unwrap();
        let names: Vec<_> = Cache::at(&root)
            .models()
            .into_iter()
            .map(|m| m.name)
            .collect();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            names,
            [
                "org/small-GGUF:Q4_K_M",
                "org/small-GGUF:Q8_0",
                "org/small-GGUF:small-Q8_0",
                "org/split:F16"
            ]
        );
        assert_eq!(Cache::at(root).models(), []);
    }
}
