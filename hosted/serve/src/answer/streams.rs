//! The streams that can be taken up again.

use super::kept::{AwaitedToken, KeptText, TextRecord};
use crate::api::StreamId;
use crate::metrics::Metrics;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use sluice::sequence::UnfinishedText;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::runtime::Handle;

/// The texts of streams that run, and for some time of streams that ended or broke. What is kept takes no part in any
/// step: a client that disconnects frees its place at once.
#[derive(Debug)]
pub(crate) struct KeptStreams {
    /// How long.
    time: Duration,
    entries: Mutex<Vec<Entry>>,
    n_continued: AtomicU64,
    n_repeated: AtomicU64,
    /// Steps up to the first new token of those that were continued.
    n_steps: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Entry {
    id: StreamId,
    /// The key that began it.
    key: Arc<str>,
    text: Arc<KeptText>,
    /// When its client left; `None` while it runs.
    since: Option<Instant>,
}

/// A stream's place among those that are kept, while it runs.
#[derive(Debug)]
pub(super) struct StreamPlace {
    streams: Arc<KeptStreams>,
    text: Arc<KeptText>,
}

/// What of a stream need not be computed again.
#[derive(Debug, Default)]
pub(super) struct KeptPart {
    pub(super) record: TextRecord,
    pub(super) unfinished: Option<UnfinishedText>,
}

/// How a stream is kept for requests that take it up again.
pub(super) struct Keep {
    pub(super) text: Arc<KeptText>,
    pub(super) place: StreamPlace,
    /// What another request computed of it.
    pub(super) part: KeptPart,
}

/// Counts and sizes for `/metrics`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamFigures {
    /// Streams that were taken up again where they had been kept.
    pub(crate) n_continued: u64,
    /// Streams that were computed again.
    pub(crate) n_repeated: u64,
    /// The steps from when the engine was given a stream to its first new token, of all that were continued.
    pub(crate) n_steps: u64,
    /// Streams that are kept without a client.
    pub(crate) n_kept: usize,
    /// The bytes of all texts.
    pub(crate) n_bytes: usize,
}

impl KeptStreams {
    /// Keeps streams for `time`.
    pub(super) fn new(time: Duration) -> Self {
        Self {
            time,
            entries: Mutex::new(Vec::new()),
            n_continued: AtomicU64::new(0),
            n_repeated: AtomicU64::new(0),
            n_steps: Arc::default(),
        }
    }

    /// Counts the steps of the model with these metrics, for a stream that is taken up.
    pub(super) fn awaited(&self, metrics: &Arc<Metrics>) -> AwaitedToken {
        AwaitedToken::new(metrics, &self.n_steps)
    }

    /// Whether streams can be taken up again.
    pub(crate) const fn is_on(&self) -> bool {
        !self.time.is_zero()
    }

    pub(crate) fn figures(&self) -> StreamFigures {
        let entries = self.lock();
        let kept = entries.iter().filter(|entry| entry.since.is_some());
        StreamFigures {
            n_continued: self.n_continued.load(Ordering::Relaxed),
            n_repeated: self.n_repeated.load(Ordering::Relaxed),
            n_steps: self.n_steps.load(Ordering::Relaxed),
            n_kept: kept.count(),
            n_bytes: entries.iter().map(|entry| entry.text.n_bytes()).sum(),
        }
    }

    /// What is kept of a stream that `key` began. If it is still being computed, that ends: its client is gone, or will see
    /// an error.
    pub(super) async fn take(&self, id: StreamId, key: &str) -> Option<KeptPart> {
        let text = {
            let mut entries = self.lock();
            self.expire(&mut entries);
            let found = entries
                .iter()
                .find(|entry| entry.id == id && *entry.key == *key);
            found.map(|entry| Arc::clone(&entry.text))
        };
        let (record, unfinished) = match text {
            Some(text) => text.take().await.unzip(),
            None => (None, None),
        };
        let part = record.map(|record| KeptPart {
            record,
            unfinished: unfinished.flatten(),
        });
        let part = part.filter(|part| part.record.is_ended() || part.unfinished.is_some());
        let count = if part.is_some() {
            &self.n_continued
        } else {
            &self.n_repeated
        };
        count.fetch_add(1, Ordering::Relaxed);
        part
    }

    /// Counts a stream of which nothing is kept, because it has several texts.
    pub(super) fn count_repeated(&self) {
        self.n_repeated.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a stream its place, which replaces its former one.
    pub(super) fn enter(
        self: &Arc<Self>,
        id: StreamId,
        key: &Arc<str>,
        text: &Arc<KeptText>,
    ) -> StreamPlace {
        let mut entries = self.lock();
        self.expire(&mut entries);
        entries.retain(|entry| entry.id != id || entry.key != *key);
        // What is over needs least to be computed again.
        let kept = entries.iter().enumerate();
        let kept = kept.filter_map(|(at, entry)| Some((!entry.text.is_ended(), entry.since?, at)));
        let kept: Vec<_> = kept.collect();
        if kept.len() >= KEPT_MAX
            && let Some((_, _, at)) = kept.into_iter().min()
        {
            entries.remove(at);
        }
        entries.push(Entry {
            id,
            key: Arc::clone(key),
            text: Arc::clone(text),
            since: None,
        });
        StreamPlace {
            streams: Arc::clone(self),
            text: Arc::clone(text),
        }
    }

    /// Drops what was kept for long enough.
    fn expire(&self, entries: &mut Vec<Entry>) {
        let is_old = |since: Instant| since.elapsed() >= self.time;
        entries.retain(|entry| !entry.since.is_some_and(is_old));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut entries = self.streams.lock();
        let own = entries
            .iter_mut()
            .find(|entry| Arc::ptr_eq(&entry.text, &self.text));
        // Another request may have taken it over.
        let Some(entry) = own else { return };
        entry.since = Some(Instant::now());
        drop(entries);
        if let Ok(runtime) = Handle::try_current() {
            let streams = Arc::downgrade(&self.streams);
            let time = self.streams.time;
            runtime.spawn(async move {
                tokio::time::sleep(time).await;
                if let Some(streams) = streams.upgrade() {
                    streams.expire(&mut streams.lock());
                }
            });
        }
    }
}

/// Maximum number of streams that are kept without a client; the oldest is dropped for another one. Each takes up to 1 MiB.
const KEPT_MAX: usize = 64;
