//! A model's pages on disk: which pages to write when there is time, and which are worth reading.

use super::disk::{DiskCache, FileKind, FileName, StoredFile};
use super::prefix::{Key, PrefixCache};
use sluice::Session;
use std::collections::VecDeque;
use std::sync::Arc;

/// Called on the disk's thread with the number of a request and the files read for it.
pub(crate) type PagesRead = Arc<dyn Fn(u64, Vec<StoredFile>) + Send + Sync>;

/// Connects a model's prefix cache to the disk.
pub(crate) struct Backing {
    disk: DiskCache,
    /// Pages to be written when there is time.
    unwritten: VecDeque<Key>,
    pages_read: PagesRead,
}

impl Backing {
    pub(crate) const fn new(disk: DiskCache, pages_read: PagesRead) -> Self {
        Self {
            disk,
            unwritten: VecDeque::new(),
            pages_read,
        }
    }

    /// Whether pages are still to be written.
    pub(super) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Marks a page of the cache, or the state at its end, as to be written.
    pub(super) fn push(&mut self, key: Key) {
        self.unwritten.push_back(key);
        if self.unwritten.len() > UNWRITTEN_MAX {
            self.unwritten.pop_front();
        }
    }

    /// Requests from the disk those pages of `keys` with which a text could skip more tokens than with the cache; false
    /// if the disk has nothing to add. The callback gets `arrival` and the files that were read.
    pub(super) fn fetch(&self, cache: &PrefixCache, keys: &[Key], arrival: u64) -> bool {
        let has = |key: &Key, kind| self.disk.contains(&FileName { key: *key, kind });
        let n_here = cache.n_leading(keys);
        let on_disk = keys[n_here..]
            .iter()
            .take_while(|key| has(key, FileKind::Page));
        let n = (n_here + on_disk.count()).min(cache.n_pages_max());
        let has_state = |key: &Key| cache.has_state(key) || has(key, FileKind::State);
        let usable = (1..=n).rev().find(|&n| has_state(&keys[n - 1]));
        let usable = usable.unwrap_or(0);
        if usable <= cache.n_usable(keys) {
            return false;
        }
        let file = |key: &Key, kind| FileName { key: *key, kind };
        let mut files: Vec<FileName> = keys[n_here.min(usable)..usable]
            .iter()
            .map(|key| file(key, FileKind::Page))
            .collect();
        let last = &keys[usable - 1];
        if !cache.has_state(last) {
            files.push(file(last, FileKind::State));
        }
        let pages_read = Arc::clone(&self.pages_read);
        self.disk
            .read(files, move |files| pages_read(arrival, files))
    }

    /// Queues up to `n` pages of the cache for writing; false if there are fewer, or if the disk's queue is full.
    pub(super) fn write(&mut self, n: usize, cache: &PrefixCache, session: &Session) -> bool {
        let fingerprint = session.model().fingerprint();
        let state = session.state();
        for _ in 0..n {
            let Some(key) = self.unwritten.front().copied() else {
                return false;
            };
            if let Some(cached) = cache.page(&key) {
                let page = |bytes: &mut [u8]| {
                    let read = state.read_page(cached.page, fingerprint, bytes);
                    read.is_ok()
                };
                if !self.write_file(key, FileKind::Page, state.page_bytes(), page) {
                    return false;
                }
                if let Some(name) = cached.state {
                    let recurrent = |bytes: &mut [u8]| {
                        let read = state.read_state(name, fingerprint, bytes);
                        read.is_ok()
                    };
                    if !self.write_file(key, FileKind::State, state.state_bytes(), recurrent) {
                        return false;
                    }
                }
            }
            self.unwritten.pop_front();
        }
        true
    }

    /// Writes a file unless it exists; `fill` provides its bytes. False if the disk's queue is full.
    fn write_file(
        &self,
        key: Key,
        kind: FileKind,
        n_bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let name = FileName { key, kind };
        if self.disk.contains(&name) {
            return true;
        }
        let mut bytes = vec![0; n_bytes];
        !fill(&mut bytes) || self.disk.write(name, bytes)
    }
}

/// Maximum number of pages that wait to be written; the oldest ones above it are dropped.
const UNWRITTEN_MAX: usize = 1 << 14;
