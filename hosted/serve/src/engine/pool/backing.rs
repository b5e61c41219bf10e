//! A model's pages on disk: which pages to write when there is time, and which are worth reading.

use super::disk::{DiskCache, FileKind, FileName, Lookup, StoredFile, WantedPage};
use super::prefix::{Key, PrefixCache};
use sluice::{Model, Session};
use sluice_core::state::Identity;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

/// Called on the disk's thread with the number of a request and the files read for it.
pub(crate) type PagesRead = Arc<dyn Fn(u64, Vec<StoredFile>) + Send + Sync>;

/// Connects a model's prefix cache to the disk.
pub(crate) struct Backing {
    disk: DiskCache,
    /// Files to be written when there is time.
    unwritten: VecDeque<FileName>,
    /// Files to be removed.
    unwanted: VecDeque<FileName>,
    /// Pages that were removed and not made again: their files may be there for a moment.
    removed: HashSet<Key>,
    pages_read: PagesRead,
    /// The identity of the model's pages on the disk.
    owner: Identity,
}

impl Backing {
    pub(crate) fn new(disk: DiskCache, pages_read: PagesRead, model: &Model) -> Self {
        Self {
            owner: disk.owner(model.identity()),
            disk,
            unwritten: VecDeque::new(),
            unwanted: VecDeque::new(),
            removed: HashSet::new(),
            pages_read,
        }
    }

    /// The identity of the model's pages.
    pub(super) const fn owner(&self) -> Identity {
        self.owner
    }

    /// Whether files are still to be written or removed.
    pub(super) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty() || !self.unwanted.is_empty()
    }

    /// Marks a page of the cache, or the state at its end, as to be written.
    pub(super) fn push(&mut self, key: Key, kind: FileKind) {
        self.removed.remove(&key);
        self.unwritten.push_back(FileName { key, kind });
        if self.unwritten.len() > UNWRITTEN_MAX {
            self.unwritten.pop_front();
        }
    }

    /// Marks a page that has left the cache, and the state at its end, as to be removed from the disk.
    pub(super) fn remove(&mut self, key: Key) {
        self.unwritten.retain(|name| name.key != key);
        self.removed.insert(key);
        let kinds = [FileKind::Page, FileKind::State];
        self.unwanted
            .extend(kinds.map(|kind| FileName { key, kind }));
    }

    /// Looks on the disk for those pages of `keys` with which a text could skip more tokens than with the cache; false
    /// if memory has them all. The callback gets `arrival` and the files that were read.
    pub(super) fn fetch(&self, cache: &PrefixCache, keys: &[Key], arrival: u64) -> bool {
        let is_there = |key: &&Key| !self.removed.contains(*key);
        let n_there = keys.iter().take_while(is_there).count();
        let keys = &keys[..n_there.min(cache.n_pages_max())];
        let n_usable = cache.n_usable(keys);
        if n_usable == keys.len() {
            return false;
        }
        let pages = keys.iter().map(|key| WantedPage {
            key: *key,
            has_state: cache.has_state(key),
        });
        let lookup = Lookup {
            pages: pages.collect(),
            n_here: cache.n_leading(keys),
            n_usable,
        };
        let pages_read = Arc::clone(&self.pages_read);
        self.disk
            .read(lookup, move |files| pages_read(arrival, files))
    }

    /// Queues files for removal, and up to `n` files of the cache for writing; false if there are fewer, or if the
    /// disk's queue is full.
    pub(super) fn write(
        &mut self,
        n: usize,
        cache: &PrefixCache,
        session: &Session,
        identity: &Identity,
    ) -> bool {
        while let Some(name) = self.unwanted.front() {
            if !self.disk.remove(*name) {
                return false;
            }
            self.unwanted.pop_front();
        }
        for _ in 0..n {
            let Some(name) = self.unwritten.front().copied() else {
                return false;
            };
            let bytes = bytes_of(name, cache, session, identity);
            if bytes.is_some_and(|bytes| !self.disk.write(name, bytes)) {
                return false;
            }
            self.unwritten.pop_front();
        }
        true
    }
}

/// The bytes of a file, if the cache still has them.
fn bytes_of(
    name: FileName,
    cache: &PrefixCache,
    session: &Session,
    identity: &Identity,
) -> Option<Vec<u8>> {
    let state = session.state();
    let cached = cache.page(&name.key)?;
    let mut bytes;
    let read = match name.kind {
        FileKind::Page => {
            bytes = vec![0; state.page_bytes()];
            state.read_page(cached.page, identity, &mut bytes)
        }
        FileKind::State => {
            bytes = vec![0; state.state_bytes()];
            state.read_state(cached.state?, identity, &mut bytes)
        }
    };
    read.is_ok().then_some(bytes)
}

/// Maximum number of files that wait to be written; the oldest ones above it are dropped.
const UNWRITTEN_MAX: usize = 1 << 14;
