//! The progress of a running download, for those who wait for it.

use super::{Pull, PullState, Pulls};
use crate::models::DownloadStep;
use core::sync::atomic::Ordering;
use core::time::Duration;
use sluice::file::HashRecords;
use sluice::identity::Identity;
use sluice_pull::{Progress, PullError, WantedFile, Watch};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Report<'p> {
    pulls: &'p Pulls,
    pull: &'p Pull,
    name: &'p str,
    files: Arc<[WantedFile]>,
    /// Bytes that were counted before they are downloaded.
    reserved: u64,
    /// Bytes of all files in the cache, at the beginning and now.
    begun_bytes: u64,
    done_bytes: u64,
    reported: Option<Instant>,
}

impl<'p> Report<'p> {
    pub(super) fn new(pulls: &'p Pulls, pull: &'p Pull, name: &'p str) -> Self {
        Self {
            pulls,
            pull,
            name,
            files: Arc::new([]),
            reserved: 0,
            begun_bytes: 0,
            done_bytes: 0,
            reported: None,
        }
    }
}

impl Watch for Report<'_> {
    fn files(&mut self, files: &[WantedFile]) -> Result<(), PullError> {
        let missing = files.iter().map(|file| file.missing_bytes).sum();
        self.pulls.reserve(missing)?;
        let total: u64 = files.iter().map(|file| file.len_bytes).sum();
        self.reserved = missing;
        self.begun_bytes = total - missing;
        self.done_bytes = self.begun_bytes;
        self.files = files.into();
        Ok(())
    }

    fn progress(&mut self, progress: Progress) {
        self.done_bytes = self.done_bytes.max(progress.done_bytes);
        let is_due = self.reported.is_none_or(|at| at.elapsed() >= EVERY);
        if is_due || progress.done_bytes == progress.total_bytes {
            self.reported = Some(Instant::now());
            let state = PullState::Fetching {
                files: Arc::clone(&self.files),
                done_bytes: progress.done_bytes,
            };
            let files = state.files();
            self.pull.state.send_replace(state);
            self.pulls.tell(self.name, DownloadStep::Progress(files));
        }
    }

    fn note(&mut self, text: &str) {
        (self.pulls.log)(&format!("pull {:?}: {text}", self.name));
    }

    fn received(&mut self, path: &Path, sha256: [u8; 32]) {
        HashRecords::note(path, Identity(sha256));
    }

    fn is_stopped(&self) -> bool {
        let is_unwatched = self.pull.n_watchers.load(Ordering::Relaxed) == 0;
        is_unwatched || self.pulls.stops.load(Ordering::Relaxed)
    }

    /// What the hub refuses, clients do not get from the operator's cache.
    fn may_use_cached(&self, error: &PullError) -> bool {
        let refused = match error {
            PullError::Refused { status, .. } => *status,
            _ => return true,
        };
        matches!(refused, 408 | 425 | 429 | 500..)
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        // What was not downloaded after all.
        let received = self.done_bytes.saturating_sub(self.begun_bytes);
        self.pulls.release(self.reserved.saturating_sub(received));
    }
}

/// Interval between reports of progress.
const EVERY: Duration = Duration::from_millis(100);
