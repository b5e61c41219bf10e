//! Model files from Hugging Face, in the cache that its other clients use.
//!
//! [`Hub`] is a server of repositories, [`Cache`] the folder that `huggingface_hub`, llama.cpp and
//! this crate share. [`pull`] downloads the files of a [`PullRequest`] into the cache and returns
//! their paths. An interrupted download is resumed, and a file's SHA-256 is checked before it gets
//! its name.
//!
//! Source: the layout of `huggingface_hub` ("Understand caching") and the hub's HTTP interface.
#![forbid(unsafe_code)]

mod access;
mod address;
mod cache;
mod choose;
mod download;
mod error;
mod glob;
mod hub;
mod models;
mod partial;
mod remove;
mod repo;
mod revision;

pub use access::HubAccess;
pub use cache::Cache;
pub use choose::FileChoice;
pub use error::PullError;
pub use hub::Hub;
pub use models::{CachedModel, HubFile};
pub use repo::{PullRequest, RepoId};
pub use revision::{RemoteFile, Revision};

use std::path::{Path, PathBuf};

/// The progress of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of all files that are in the cache, from this run or an earlier one.
    pub done_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
}

/// A file of a pull, before it is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedFile {
    /// Its path in the repository.
    pub path: String,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// The bytes that are not in the cache yet.
    pub missing_bytes: u64,
    /// Its SHA-256 in hexadecimal digits, if the hub gives one.
    pub sha256: Option<String>,
}

/// Receives a pull's progress.
pub trait Watch {
    /// Called once with all files, before the first one is fetched.
    ///
    /// # Errors
    /// They exceed a limit: [`PullError::Limit`] ends the pull.
    fn files(&mut self, _files: &[WantedFile]) -> Result<(), PullError> {
        Ok(())
    }

    /// Called when bytes have been received.
    fn progress(&mut self, progress: Progress);

    /// Called with a message for the user: a retry, a wait for another process, or the use of a
    /// cached copy because the server failed.
    fn note(&mut self, text: &str);

    /// Called when the file at `path` has been received, and has the SHA-256 that the hub gives for it.
    fn received(&mut self, path: &Path, sha256: [u8; 32]);

    /// Whether to stop. Bytes received so far are kept for the next pull.
    fn is_stopped(&self) -> bool;

    /// Whether a copy in the cache may be used when the hub fails with `error`; by default always.
    fn may_use_cached(&self, _error: &PullError) -> bool {
        true
    }
}

/// The requested files and their paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledFiles {
    /// The folder of the revision in the cache.
    pub folder: PathBuf,
    /// The files, in the order of the repository; the parts of a split model in their order.
    pub files: Vec<PathBuf>,
}

/// Downloads the files that `request` names into `cache`. Without a `hub` (offline), or if it fails
/// in any way, a complete copy in the cache is used; the failure is then a note.
///
/// # Errors
/// [`PullError`]: no such repository or file, no access, no cached copy, a connection that broke
/// and did not recover, a wrong SHA-256, a full disk, or a stop by `watch`.
pub fn pull(
    request: &PullRequest,
    hub: Option<&Hub>,
    cache: &Cache,
    watch: &mut dyn Watch,
) -> Result<PulledFiles, PullError> {
    let Some(hub) = hub else {
        return cached(request, cache);
    };
    match fetched(request, hub, cache, watch) {
        Err(error) if error.is_of_hub() && watch.may_use_cached(&error) => {
            let Ok(found) = cached(request, cache) else {
                return Err(error);
            };
            let path = found.files.first().unwrap_or(&found.folder);
            watch.note(&format!(
                "{error}: using the cached copy, {}",
                path.display()
            ));
            Ok(found)
        }
        result => result,
    }
}

/// The requested files of the hub's present revision; only those that are not in the cache are downloaded.
fn fetched(
    request: &PullRequest,
    hub: &Hub,
    cache: &Cache,
    watch: &mut dyn Watch,
) -> Result<PulledFiles, PullError> {
    let revision = hub.revision(&request.repo, &request.revision)?;
    let mut files = Vec::new();
    for path in chosen(request, revision.files.iter().map(|file| &*file.path))? {
        files.push(hub.complete(&request.repo, &revision, path)?);
    }
    download::all(hub, cache, &request.repo, &revision.commit, &files, watch)?;
    cache.set_ref(&request.repo, &request.revision, &revision.commit)?;
    let folder = cache.snapshot(&request.repo, &revision.commit);
    let files = files.iter().map(|file| folder.join(&file.path)).collect();
    Ok(PulledFiles { folder, files })
}

/// The requested files in the cache.
fn cached(request: &PullRequest, cache: &Cache) -> Result<PulledFiles, PullError> {
    let not_cached = || PullError::NotCached {
        repo: request.repo.to_string(),
        folder: cache.root().to_path_buf(),
    };
    let commit = cache.commit(&request.repo, &request.revision);
    let folder = cache.snapshot(&request.repo, &commit.ok_or_else(not_cached)?);
    let paths = Cache::files(&folder);
    if paths.is_empty() {
        return Err(not_cached());
    }
    let files = chosen(request, paths.iter().map(|path| &**path))?;
    choose::shards_are_there(&folder, &files).map_err(|why| PullError::NotThere {
        repo: request.repo.to_string(),
        why,
    })?;
    let files = files.iter().map(|path| folder.join(path)).collect();
    Ok(PulledFiles { folder, files })
}

fn chosen<'p>(
    request: &PullRequest,
    paths: impl Iterator<Item = &'p str>,
) -> Result<Vec<&'p str>, PullError> {
    let paths: Vec<_> = paths.collect();
    choose::choose(&paths, &request.choice).map_err(|why| PullError::NotThere {
        repo: request.repo.to_string(),
        why,
    })
}

impl PulledFiles {
    /// The model's file: the first one, or the folder if there are no files.
    #[must_use]
    pub fn into_model(self) -> PathBuf {
        self.files.into_iter().next().unwrap_or(self.folder)
    }
}

impl dyn Watch + '_ {
    /// # Errors
    /// [`PullError::Stopped`].
    fn check_stop(&self) -> Result<(), PullError> {
        if self.is_stopped() {
            return Err(PullError::Stopped);
        }
        Ok(())
    }
}
