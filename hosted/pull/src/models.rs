//! The models that are in the cache.

use crate::cache::{Cache, replace};
use crate::choose::{is_model, split};
use crate::error::PullError;
use rustix::fs::OFlags;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// `user/name:TYPE`, as llama-server calls it; `user/name:FILE` where the file's name ends with no type, or another
    /// one has the same, and with its folders if that is another one's, too.
    pub name: String,
    /// Its file, or the first of its parts.
    pub path: PathBuf,
}

/// A file of a repository, as its path in a cache shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// `user/name`.
    pub repo: String,
    /// Its path in the repository.
    pub file: String,
}

impl HubFile {
    /// The file at `path`, which ends with `models--USER--NAME/snapshots/COMMIT/FILE`; `None` for other paths.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        let mut rest = path.to_str()?;
        loop {
            let (_, after) = rest.split_once("models--")?;
            rest = after;
            let mut parts = after.splitn(4, '/');
            let (repo, folder, _commit) = (parts.next()?, parts.next()?, parts.next()?);
            if folder == "snapshots" {
                return Some(Self {
                    repo: repo.replacen("--", "/", 1),
                    file: parts.next()?.to_owned(),
                });
            }
        }
    }

    fn line(&self) -> String {
        format!("{}/{}", self.repo, self.file)
    }
}

impl Cache {
    /// The model at `path`, by which requests of a server's clients have downloaded it, is one of [`Self::pulled`] from
    /// now on.
    ///
    /// # Errors
    /// [`PullError::Io`].
    pub fn note_pulled(&self, path: &Path) -> Result<(), PullError> {
        let Some(file) = HubFile::at(path).filter(|file| !file.file.contains('\n')) else {
            return Ok(());
        };
        let line = file.line();
        if self.pulled_lines().contains(&line) {
            return Ok(());
        }
        let list = self.root().join(PULLED);
        let mut options = File::options();
        let options = options.create(true).append(true);
        // A link would be written through.
        let options = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let opened = options.open(&list);
        let written = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        written.map_err(PullError::io(list))
    }

    /// Those of [`Self::models`] that clients of servers have downloaded.
    #[must_use]
    pub fn pulled(&self) -> Vec<CachedModel> {
        let lines = self.pulled_lines();
        let mut all = self.models();
        all.retain(|model| {
            HubFile::at(&model.path).is_some_and(|file| lines.contains(&file.line()))
        });
        all
    }

    /// Whether clients of servers have downloaded a file.
    pub(crate) fn is_pulled(&self, file: &HubFile) -> bool {
        self.pulled_lines().contains(&file.line())
    }

    /// Takes a file from the list of what clients have downloaded.
    pub(crate) fn forget_pulled(&self, file: &HubFile) -> Result<(), PullError> {
        let mut lines = self.pulled_lines();
        if !lines.remove(&file.line()) {
            return Ok(());
        }
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let list = self.root().join(PULLED);
        replace(&list, text.as_bytes())
    }

    fn pulled_lines(&self) -> BTreeSet<String> {
        let text = fs::read_to_string(self.root().join(PULLED)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

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
            let mut taken = BTreeSet::new();
            for path in Self::files(&snapshot) {
                if !is_model(&path) {
                    continue;
                }
                let names = names(&path).into_iter();
                let name = names.flatten().find(|name| taken.insert(name.clone()));
                found.push(CachedModel {
                    name: format!("{repo}:{}", name.unwrap_or_else(|| path.clone())),
                    path: snapshot.join(path),
                });
            }
        }
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        found
    }
}

/// Names for a file of a repository, the shortest first. The last one is the file's alone.
fn names(path: &str) -> [Option<String>; 3] {
    let whole = path.strip_suffix(".gguf").unwrap_or(path);
    let whole = split(whole).map_or(whole, |(name, ..)| name);
    let stem = whole.rsplit('/').next().unwrap_or(whole);
    [tag(stem), Some(stem.to_owned()), Some(whole.to_owned())]
}

/// The type of a model's weights, from the end of its name: `Q4_K_M` of `model-q4_k_m`.
fn tag(stem: &str) -> Option<String> {
    let (_, last) = stem.rsplit_once(['-', '.'])?;
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!last.is_empty() && last.chars().all(is_word)).then(|| last.to_ascii_uppercase())
}

/// A list in the cache of what clients of servers have downloaded: `USER/NAME/FILE`, one a line.
const PULLED: &str = ".sluice-pulled";

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
            ("models--org--folders", &["Q4/model.gguf", "Q8/model.gguf"]),
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
                fs::create_dir_all(snapshot.join(file).parent().unwrap()).unwrap();
                fs::write(snapshot.join(file), "").unwrap();
            }
        }
        fs::create_dir_all(root.join("models--org--unfetched/snapshots")).unwrap();
        let names: Vec<_> = Cache::at(&root)
            .models()
            .into_iter()
            .map(|m| m.name)
            .collect();
        let cache = Cache::at(&root);
        assert_eq!(cache.pulled(), []);
        let path = &cache.models()[1].path;
        for _ in 0..2 {
            cache.note_pulled(path).unwrap();
        }
        let pulled: Vec<_> = cache.pulled().into_iter().map(|m| m.name).collect();
        assert_eq!(pulled, ["org/folders:model"]);
        let list = fs::read_to_string(root.join(PULLED)).unwrap();
        assert_eq!(list, "org/folders/Q4/model.gguf\n");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(
            names,
            [
                "org/folders:Q8/model",
                "org/folders:model",
                "org/small-GGUF:Q4_K_M",
                "org/small-GGUF:Q8_0",
                "org/small-GGUF:small-Q8_0",
                "org/split:F16"
            ]
        );
        assert_eq!(Cache::at(root).models(), []);
    }
}
