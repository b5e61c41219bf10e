//! Removes models from the cache.

use crate::cache::Cache;
use crate::choose::split;
use crate::error::PullError;
use crate::models::HubFile;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

impl Cache {
    /// Removes the model at `path`, with all its parts and in all revisions, if clients of servers have downloaded it
    /// ([`Self::pulled`]). Bytes that other files share stay. Returns whether it is one of those.
    ///
    /// # Errors
    /// [`PullError::Io`]: a file cannot be removed; what could be removed is gone.
    pub fn remove_pulled(&self, path: &Path) -> Result<bool, PullError> {
        let found = HubFile::at(path).filter(|file| self.is_pulled(file) && is_plain(&file.file));
        let Some(file) = found.filter(|_| path.starts_with(self.root())) else {
            return Ok(false);
        };
        let folder = path.ancestors().find(|folder| {
            let name = folder.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("models--"))
        });
        let Some(folder) = folder else {
            return Ok(false);
        };
        let snapshots = folder.join("snapshots");
        let mut blobs = BTreeSet::new();
        for snapshot in folders_in(&snapshots) {
            for part in parts(&file.file) {
                blobs.extend(unlink(&snapshot, &part)?);
            }
        }
        for snapshot in folders_in(&snapshots) {
            for path in Self::files(&snapshot) {
                if let Some(blob) = blob_of(&snapshot.join(path)) {
                    blobs.remove(&blob);
                }
            }
        }
        for blob in blobs {
            remove(&folder.join("blobs").join(blob))?;
        }
        self.forget_pulled(&file)?;
        Ok(true)
    }
}

/// Whether a path in a repository stays inside of its folder.
fn is_plain(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// The paths of a model's parts: its own, if there is one.
fn parts(path: &str) -> Vec<String> {
    match path.strip_suffix(".gguf").and_then(split) {
        Some((name, _, count)) => (1..=count)
            .map(|index| format!("{name}-{index:05}-of-{count:05}.gguf"))
            .collect(),
        None => vec![path.to_owned()],
    }
}

/// Removes a file of a snapshot, and folders that are empty then. Returns the blob that it linked to.
fn unlink(snapshot: &Path, file: &str) -> Result<Option<OsString>, PullError> {
    let path = snapshot.join(file);
    let blob = blob_of(&path);
    remove(&path)?;
    let above = path.ancestors().skip(1);
    for folder in above.take(1 + file.matches('/').count()) {
        // One that has other files stays.
        let _removed = fs::remove_dir(folder);
    }
    Ok(blob)
}

/// The name of the blob that a file of a snapshot links to.
fn blob_of(path: &Path) -> Option<OsString> {
    fs::read_link(path).ok()?.file_name().map(ToOwned::to_owned)
}

fn remove(path: &Path) -> Result<(), PullError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(PullError::io(path)(error)),
        _ => Ok(()),
    }
}

fn folders_in(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const COMMITS: [&str; 2] = [
        "0123456789012345678901234567890123456789",
        "9876543210987654321098765432109876543210",
    ];

    /// A cache with a repository of two revisions: files by name, and the blobs that they link to.
    fn cache(name: &str, revisions: [&[(&str, &str)]; 2]) -> Cache {
        let root =
            std::env::temp_dir().join(format!("sluice-remove-{name}-{}", std::process::id()));
        let _stale = fs::remove_dir_all(&root);
        let repo = root.join("models--u--m");
        fs::create_dir_all(repo.join("refs")).unwrap();
        fs::create_dir_all(repo.join("blobs")).unwrap();
        fs::write(repo.join("refs/main"), COMMITS[1]).unwrap();
        for (commit, files) in COMMITS.iter().zip(revisions) {
            for (file, blob) in files {
                let link = repo.join("snapshots").join(commit).join(file);
                fs::create_dir_all(link.parent().unwrap()).unwrap();
                fs::write(repo.join("blobs").join(blob), "").unwrap();
                let up = "../".repeat(2 + file.matches('/').count());
                symlink(format!("{up}blobs/{blob}"), link).unwrap();
            }
        }
        Cache::at(root)
    }

    fn names(cache: &Cache, folder: &str) -> Vec<String> {
        Cache::files(&cache.root().join("models--u--m").join(folder))
    }

    #[test]
    fn what_clients_have_pulled_is_removed_with_the_bytes_that_nothing_else_has() {
        let cache = cache(
            "whole",
            [
                &[("m-Q8_0.gguf", "old"), ("same-Q8_0.gguf", "shared")],
                &[
                    ("m-Q8_0.gguf", "new"),
                    ("m-F16.gguf", "f16"),
                    ("copy-Q8_0.gguf", "shared"),
                ],
            ],
        );
        let path = |file: &str| {
            let snapshot = cache.root().join("models--u--m/snapshots").join(COMMITS[1]);
            snapshot.join(file)
        };
        // The operator's own stay, whatever else there is.
        assert!(!cache.remove_pulled(&path("m-F16.gguf")).unwrap());
        cache.note_pulled(&path("m-Q8_0.gguf")).unwrap();
        cache.note_pulled(&path("copy-Q8_0.gguf")).unwrap();
        assert!(!cache.remove_pulled(&path("../m-Q8_0.gguf")).unwrap());
        assert!(
            !cache
                .remove_pulled(Path::new("/elsewhere/m-Q8_0.gguf"))
                .unwrap()
        );
        assert!(cache.remove_pulled(&path("m-Q8_0.gguf")).unwrap());
        assert_eq!(names(&cache, "blobs"), ["f16", "shared"]);
        assert!(cache.remove_pulled(&path("copy-Q8_0.gguf")).unwrap());
        // A file of an older revision has its bytes.
        assert_eq!(names(&cache, "blobs"), ["f16", "shared"]);
        assert_eq!(cache.pulled(), []);
        assert_eq!(cache.models().len(), 1);
        assert!(!cache.remove_pulled(&path("m-Q8_0.gguf")).unwrap());
        fs::remove_dir_all(cache.root()).unwrap();
    }

    #[test]
    fn a_model_in_parts_is_removed_with_its_folder() {
        let (first, second) = ("F16/m-00001-of-00002.gguf", "F16/m-00002-of-00002.gguf");
        let cache = cache("parts", [&[], &[(first, "a"), (second, "b")]]);
        let path = &cache.models()[0].path;
        cache.note_pulled(path).unwrap();
        assert!(cache.remove_pulled(path).unwrap());
        assert_eq!(names(&cache, ""), ["refs/main"]);
        assert!(
            !cache
                .root()
                .join("models--u--m/snapshots")
                .join(COMMITS[1])
                .exists()
        );
        fs::remove_dir_all(cache.root()).unwrap();
    }
}
