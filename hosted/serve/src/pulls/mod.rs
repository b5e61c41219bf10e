//! Models that clients download while the server runs.
//!
//! A download runs on a thread of its own and reports to all requests that asked for it. When the last of them is
//! gone, it stops; what has been received is kept, and the next request resumes it.

mod background;
mod options;
mod report;
mod shown;

pub use options::PullOptions;

use crate::Log;
use crate::api::{ApiError, ErrorKind};
use crate::models::{DownloadStep, FileProgress, ModelChange};
use background::shown_name;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use report::Report;
use shown::{shown, size};
use sluice_pull::{CachedModel, PullError, PullRequest, WantedFile};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Where models are offered when they have been downloaded.
pub(crate) trait Listing: Send + Sync {
    /// Offers a model.
    ///
    /// # Errors
    /// There are too many.
    fn offer(&self, name: &str, path: &Path) -> Result<(), ApiError>;

    /// Tells who listens how far a download is.
    fn tell(&self, change: ModelChange);
}

/// The downloads of a server.
pub(crate) struct Pulls {
    options: PullOptions,
    listing: Box<dyn Listing>,
    /// Those that go on without a request that waits for them, by name.
    background: Mutex<HashMap<String, AbortHandle>>,
    /// By name.
    running: Mutex<HashMap<String, Arc<Pull>>>,
    /// The number of threads, also of downloads that are about to end.
    n_threads: AtomicUsize,
    /// Bytes that clients have downloaded, and those that running downloads may still need.
    n_bytes: AtomicU64,
    stops: AtomicBool,
    log: Log,
}

/// A download.
#[derive(Debug)]
struct Pull {
    state: watch::Sender<PullState>,
    /// The number of requests that wait for it; at 0 it ends.
    n_watchers: AtomicUsize,
}

/// How far a download is.
#[derive(Clone, Debug)]
pub(crate) enum PullState {
    /// The hub is asked for the files.
    Asking,
    /// Files are fetched, one after the other.
    Fetching {
        files: Arc<[WantedFile]>,
        /// Bytes of all files that are in the cache.
        done_bytes: u64,
    },
    /// The files are in the cache, and the model is offered.
    Done,
    Failed(ApiError),
}

/// A request's view of a download, which goes on as long as there is one.
pub(crate) struct PullWatch {
    pub(crate) states: watch::Receiver<PullState>,
    held: Arc<Pull>,
}

impl Pulls {
    pub(crate) fn new(options: PullOptions, listing: Box<dyn Listing>, log: Log) -> Self {
        Self {
            options,
            listing,
            background: Mutex::default(),
            running: Mutex::default(),
            n_threads: AtomicUsize::new(0),
            n_bytes: AtomicU64::new(0),
            stops: AtomicBool::new(false),
            log,
        }
    }

    /// Whether every client may download models.
    pub(crate) const fn are_allowed(&self) -> bool {
        self.options.allowed
    }

    /// Starts a download, or joins the one that runs under this name.
    ///
    /// # Errors
    /// Too many run, or the server ends.
    pub(crate) fn begin(
        self: &Arc<Self>,
        name: &str,
        request: PullRequest,
    ) -> Result<PullWatch, ApiError> {
        let mut running = self.lock();
        if let Some(pull) = running.get(name)
            && let Some(watch) = PullWatch::join(pull)
        {
            return Ok(watch);
        }
        if self.stops.load(Ordering::Relaxed) {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        if self.n_threads.load(Ordering::Relaxed) >= RUNNING_MAX {
            let what = format!("{RUNNING_MAX} models are being downloaded");
            return Err(ApiError::busy(what, RETRY));
        }
        let pull = Arc::new(Pull {
            state: watch::Sender::new(PullState::Asking),
            n_watchers: AtomicUsize::new(1),
        });
        let watch = PullWatch {
            states: pull.state.subscribe(),
            held: Arc::clone(&pull),
        };
        let running_pull = RunningPull {
            pulls: Arc::clone(self),
            name: name.to_owned(),
            pull: Arc::clone(&pull),
            end: None,
            runtime: Handle::current(),
        };
        let run = move || running_pull.run(&request);
        self.n_threads.fetch_add(1, Ordering::Relaxed);
        running.insert(name.to_owned(), pull);
        // Unlock first: without a thread the download ends here.
        drop(running);
        let started = thread::Builder::new().name("pull".to_owned()).spawn(run);
        started.map_err(|_| ApiError::unavailable("no thread could be started"))?;
        Ok(watch)
    }

    /// Ends all downloads.
    pub(crate) fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    /// Counts bytes that are to be downloaded.
    ///
    /// # Errors
    /// Clients may not download that many more.
    fn reserve(&self, n_bytes: u64) -> Result<(), PullError> {
        let max = self.options.max_bytes;
        let before = self.n_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        if before.saturating_add(n_bytes) <= max {
            return Ok(());
        }
        self.release(n_bytes);
        let left = size(max.saturating_sub(before));
        let (needed, max) = (size(n_bytes), size(max));
        Err(PullError::Limit(format!(
            "{needed} have to be downloaded, but of the {max} that clients of this server may download (--pull-max) \
             {left} are left"
        )))
    }

    /// Tells who listens how far a download is.
    fn tell(&self, name: &str, step: DownloadStep) {
        let name = shown_name(name).into();
        self.listing.tell(ModelChange::Download(name, step));
    }

    fn release(&self, n_bytes: u64) {
        self.n_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Pull>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A download on its own thread. When it is dropped, the download has ended, also after a panic.
struct RunningPull {
    pulls: Arc<Pulls>,
    name: String,
    pull: Arc<Pull>,
    end: Option<PullState>,
    /// Where models are unloaded.
    runtime: Handle,
}

impl RunningPull {
    /// Fetches the files.
    fn run(mut self, request: &PullRequest) {
        let runtime = self.runtime.clone();
        let _entered = runtime.enter();
        let (pulls, name) = (&self.pulls, &self.name);
        (pulls.log)(&format!("pull {name:?}: begun"));
        let mut report = Report::new(pulls, &self.pull, name);
        let fetched = pulls.options.access.fetch(request, &mut report);
        drop(report);
        let state = match fetched {
            Ok(files) => {
                let CachedModel { name, path } = self.found(&files.into_model());
                match pulls.listing.offer(&name, &path) {
                    Ok(()) => PullState::Done,
                    Err(error) => PullState::Failed(error),
                }
            }
            Err(error) => PullState::Failed(shown(&error)),
        };
        self.end = Some(state);
    }

    /// The model at `path` in the cache, which notes that a client has downloaded it.
    fn found(&self, path: &Path) -> CachedModel {
        let cache = self.pulls.options.access.cache();
        let noted = cache.as_ref().map(|cache| cache.note_pulled(path));
        if let Ok(Err(error)) = noted {
            let text = "it is not offered after a restart";
            (self.pulls.log)(&format!("pull {:?}: {text}: {error}", self.name));
        }
        let models = cache.map(|cache| cache.models()).unwrap_or_default();
        let found = models.into_iter().find(|model| model.path == path);
        found.unwrap_or_else(|| CachedModel {
            name: self.name.clone(),
            path: path.to_owned(),
        })
    }
}

impl Drop for RunningPull {
    fn drop(&mut self) {
        let failed = || {
            let what = "the download failed; the server's log says why";
            PullState::Failed(ApiError::new(ErrorKind::Internal, what))
        };
        let state = self.end.take().unwrap_or_else(failed);
        let said = match &state {
            PullState::Failed(error) => error.in_full(),
            _ => "done".to_owned(),
        };
        (self.pulls.log)(&format!("pull {:?}: {said}", self.name));
        let mut running = self.pulls.lock();
        if running
            .get(&self.name)
            .is_some_and(|found| Arc::ptr_eq(found, &self.pull))
        {
            running.remove(&self.name);
        }
        self.pulls.n_threads.fetch_sub(1, Ordering::Relaxed);
        drop(running);
        let step = match &state {
            PullState::Failed(_) => DownloadStep::Failed,
            _ => DownloadStep::Finished,
        };
        self.pull.state.send_replace(state);
        self.pulls.tell(&self.name, step);
    }
}

impl PullState {
    /// How much of each file is there.
    pub(crate) fn files(&self) -> Vec<FileProgress> {
        match self {
            Self::Fetching { files, done_bytes } => parts(files, *done_bytes)
                .map(|(file, done_bytes)| FileProgress {
                    path: file.path.clone(),
                    done_bytes,
                    total_bytes: file.len_bytes,
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// The files of a download, which are fetched one after the other, and the bytes of each that are there.
pub(crate) fn parts(
    files: &[WantedFile],
    mut done_bytes: u64,
) -> impl Iterator<Item = (&WantedFile, u64)> {
    files.iter().map(move |file| {
        let own = done_bytes.min(file.len_bytes);
        done_bytes -= own;
        (file, own)
    })
}

impl PullWatch {
    /// `None` if the download is about to end because no request waits for it.
    fn join(pull: &Arc<Pull>) -> Option<Self> {
        let more = |n: usize| (n > 0).then_some(n + 1);
        let joined = pull
            .n_watchers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        joined.ok().map(|_| Self {
            states: pull.state.subscribe(),
            held: Arc::clone(pull),
        })
    }
}

impl Drop for PullWatch {
    fn drop(&mut self) {
        self.held.n_watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Pulls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulls")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Maximum number of downloads at once.
const RUNNING_MAX: usize = 4;
/// When to try again if as many run.
const RETRY: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    struct NoListing;

    impl Listing for NoListing {
        fn offer(&self, _: &str, _: &Path) -> Result<(), ApiError> {
            Ok(())
        }

        fn tell(&self, _: ModelChange) {}
    }

    fn pulls() -> Arc<Pulls> {
        let log: Log = Arc::new(|_: &str| {});
        Arc::new(Pulls::new(PullOptions::default(), Box::new(NoListing), log))
    }

    #[test]
    fn a_download_that_panics_ends_and_makes_room() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let pulls = pulls();
        let pull = Arc::new(Pull {
            state: watch::Sender::new(PullState::Asking),
            n_watchers: AtomicUsize::new(1),
        });
        pulls.lock().insert("m".into(), Arc::clone(&pull));
        pulls.n_threads.store(1, Ordering::Relaxed);
        drop(RunningPull {
            pulls: Arc::clone(&pulls),
            name: "m".into(),
            pull: Arc::clone(&pull),
            end: None,
            runtime: runtime.handle().clone(),
        });
        assert!(matches!(*pull.state.borrow(), PullState::Failed(_)));
        assert!(pulls.lock().is_empty());
        assert_eq!(pulls.n_threads.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn downloads_that_are_about_to_end_count() {
        let pulls = pulls();
        pulls.n_threads.store(RUNNING_MAX, Ordering::Relaxed);
        let request = PullRequest::parse("u/m").unwrap();
        let refused = pulls.begin("hf.co/u/m", request).err().unwrap();
        assert_eq!(refused.kind, ErrorKind::Busy);
    }
}
