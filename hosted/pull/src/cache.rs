//! The cache folder shared by clients of the hub.
//!
//! ```text
//! models--user--name/
//!   blobs/ETAG                     a file's bytes; ETAG.incomplete while they come
//!   refs/main                      the commit that a branch or tag was at
//!   snapshots/COMMIT/model.gguf    a link to ../../blobs/ETAG
//! .locks/models--user--name/ETAG.lock
//! ```
//!
//! Source: `huggingface_hub`, "Understand caching"; llama.cpp keeps its downloads the same way.

use crate::error::PullError;
use crate::repo::{RepoId, is_commit};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::env::{self, VarError};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

/// A cache of repositories.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache in folder `root`, which need not exist.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The cache folder from the environment: the first that is set of `LLAMA_CACHE`,
    /// `HF_HUB_CACHE`, `HUGGINGFACE_HUB_CACHE`, `hub` in `HF_HOME`, `huggingface/hub` in
    /// `XDG_CACHE_HOME` or in `.cache` of `HOME`.
    ///
    /// # Errors
    /// [`PullError::Setting`]: none is set.
    pub fn from_env() -> Result<Self, PullError> {
        let hub = ["LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"];
        if let Some(root) = hub.into_iter().find_map(folder_of) {
            return Ok(Self::at(root));
        }
        let home = hub_home().ok_or_else(|| PullError::Setting {
            name: "HF_HUB_CACHE",
            why: String::from(
                "not set, and neither HF_HOME, XDG_CACHE_HOME nor HOME names a folder",
            ),
        })?;
        Ok(Self::at(home.join("hub")))
    }

    /// The cache's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn repo(&self, repo: &RepoId) -> PathBuf {
        self.root.join(repo.folder_name())
    }

    /// The folder with the files of a commit.
    pub(crate) fn snapshot(&self, repo: &RepoId, commit: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit)
    }

    /// The path of a file's bytes, by its etag.
    pub(crate) fn blob(&self, repo: &RepoId, etag: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(etag)
    }

    /// The commit of `revision` when it was last fetched.
    pub(crate) fn commit(&self, repo: &RepoId, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.repo(repo).join("refs").join(revision)).ok()?;
        let commit = text.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// Records that `revision` is at `commit`.
    pub(crate) fn set_ref(
        &self,
        repo: &RepoId,
        revision: &str,
        commit: &str,
    ) -> Result<(), PullError> {
        if revision == commit || self.commit(repo, revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.repo(repo).join("refs").join(revision);
        create_folder_of(&path)?;
        replace(&path, commit.as_bytes())
    }

    /// The paths of the files in a snapshot's folder, sorted.
    pub(crate) fn files(folder: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(inner) = folders.pop() {
            let entries = fs::read_dir(folder.join(&inner)).into_iter().flatten();
            for name in entries.flatten().map(|entry| entry.file_name()) {
                let path = inner.join(name);
                // Follows links: a link to a missing blob does not count.
                match fs::metadata(folder.join(&path)) {
                    Ok(there) if there.is_dir() => folders.push(path),
                    Ok(_) => found.extend(path.to_str().map(str::to_owned)),
                    Err(_) => {}
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Links a blob into a snapshot under its name.
    pub(crate) fn link(
        blob: &Path,
        etag: &str,
        name: &Path,
        depth: usize,
    ) -> Result<(), PullError> {
        create_folder_of(name)?;
        // Any existing link is to an older blob, or dangling.
        match fs::remove_file(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(PullError::io(name)(error));
            }
            _ => {}
        }
        // From snapshots/COMMIT/… up to the repository's folder.
        let up = "../".repeat(depth + 2);
        if symlink(format!("{up}blobs/{etag}"), name).is_ok() {
            return Ok(());
        }
        // File systems without links get the file itself.
        fs::rename(blob, name).map_err(PullError::io(name))
    }

    /// Prevents other processes from fetching the same file. `waits` is called while another one
    /// does.
    ///
    /// # Errors
    /// The lock file cannot be created, or `waits` returned an error.
    pub(crate) fn lock(
        &self,
        repo: &RepoId,
        etag: &str,
        mut waits: impl FnMut() -> Result<(), PullError>,
    ) -> Result<File, PullError> {
        let folder = self.root.join(".locks").join(repo.folder_name());
        let path = folder.join(format!("{etag}.lock"));
        create_folder_of(&path)?;
        let mut options = File::options();
        let options = options.create(true).truncate(false).write(true);
        let options = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = options.open(&path).map_err(PullError::io(&path))?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK | Errno::INTR) => waits()?,
                // Some network file systems do not support locks: two processes may then fetch the
                // same bytes.
                Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => return Ok(file),
                Err(error) => return Err(PullError::io(path)(error.into())),
            }
        }
    }
}

/// `HF_HOME`, or `huggingface` in the user's cache folder.
pub(crate) fn hub_home() -> Option<PathBuf> {
    folder_of("HF_HOME").or_else(|| {
        let caches = folder_of("XDG_CACHE_HOME");
        let caches = caches.or_else(|| folder_of("HOME").map(|home| home.join(".cache")));
        caches.map(|caches| caches.join("huggingface"))
    })
}

fn folder_of(variable: &str) -> Option<PathBuf> {
    let value = env::var_os(variable).filter(|value| !value.is_empty())?;
    Some(PathBuf::from(value))
}

/// The value of an environment variable; `None` if it is unset or empty.
pub(crate) fn setting(name: &'static str) -> Result<Option<String>, PullError> {
    match env::var(name) {
        Ok(value) => Ok(Some(value.trim().to_owned()).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(PullError::Setting {
            name,
            why: String::from("not UTF-8"),
        }),
    }
}

/// Replaces a file at once: other programs may read it at the same time.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), PullError> {
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    // A new file: a link of that name would be written through.
    let _stale = fs::remove_file(&fresh);
    let written = File::create_new(&fresh).and_then(|mut file| file.write_all(bytes));
    written.map_err(PullError::io(&fresh))?;
    fs::rename(&fresh, path).map_err(PullError::io(path))
}

pub(crate) fn create_folder_of(path: &Path) -> Result<(), PullError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(PullError::io(folder))
}
