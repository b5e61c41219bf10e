//! Pages on disk, which survive restarts: one file each, named by its key and accessed by separate threads.
//!
//! Servers of one user may share a folder: each finds what the others have written, because it looks at the folder
//! and not at a list of its own. Files are written completely and then renamed, and are authenticated with the folder's
//! key when they are read: a wrong file is deleted and counts as missing, one that cannot be read now only counts as
//! missing. The least recently used files are evicted. A full disk only disables the cache.

mod file;
mod owner;
mod room;

pub(crate) use file::StoredFile;
pub(super) use file::{FileKind, FileName};

use super::prefix::Key;
use crate::Log;
use core::fmt;
use core::time::Duration;
use file::ReadError;
use owner::Owners;
use room::Room;
use sluice::file::{FolderKey, SharedFolder};
use sluice::identity::{Identity, ModelIdentity};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread::JoinHandle;
use std::time::Instant;

/// Maximum number of pages that wait to be written, and of lookups.
const QUEUE_LEN: usize = 16;
/// Pause after a failed write.
const PAUSE: Duration = Duration::from_secs(10);

/// What to look for: the pages of a text.
#[derive(Debug)]
pub(super) struct Lookup {
    pub(super) pages: Vec<WantedPage>,
    /// The number of first pages that are in memory.
    pub(super) n_here: usize,
    /// The number of first pages that the text can start with as it is.
    pub(super) n_usable: usize,
}

/// A page of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedPage {
    pub(super) key: Key,
    /// Whether the state at its end is in memory, or not needed.
    pub(super) has_state: bool,
}

/// Called with the files found, up to the first that is missing.
type FilesRead = Box<dyn FnOnce(Vec<StoredFile>) + Send>;

/// What the writing thread does.
enum FileWork {
    Write(StoredFile),
    Remove(FileName),
}

/// A lookup, and where its files are wanted.
struct Order {
    lookup: Lookup,
    then: FilesRead,
}

/// A folder of pages. Clones share it; dropping the last one writes the queued pages and ends the threads.
#[derive(Clone)]
pub(crate) struct DiskCache(Arc<Shared>);

struct Shared {
    folder: PathBuf,
    key: FolderKey,
    /// Both are `None` when it is being dropped.
    writes: Option<SyncSender<FileWork>>,
    lookups: Option<SyncSender<Order>>,
    threads: [Option<JoinHandle<()>>; 2],
}

impl Drop for Shared {
    fn drop(&mut self) {
        (self.writes, self.lookups) = (None, None);
        for thread in &mut self.threads {
            // If the thread panicked, the panic has already been reported.
            let _ended = thread.take().map(JoinHandle::join);
        }
    }
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskCache").finish_non_exhaustive()
    }
}

impl DiskCache {
    /// Opens the folder at `path`, which all its servers together fill with up to `n_bytes_max` bytes. Creates it if it
    /// does not exist.
    ///
    /// # Errors
    /// It cannot be created or read, or its key is not this user's alone.
    pub(crate) fn open(path: &Path, n_bytes_max: u64, log: Log) -> io::Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)?;
        if let Some(shared) = SharedFolder::of(path) {
            log(&format!("warning: cache folder {shared}"));
        }
        let key = FolderKey::open(path).map_err(io::Error::other)?;
        let own_key = key.clone();
        let (writes, written) = mpsc::sync_channel(QUEUE_LEN);
        let (lookups, looked_up) = mpsc::sync_channel(QUEUE_LEN);
        let reader = Reader {
            folder: path.to_path_buf(),
            key: key.clone(),
            is_failing: false,
            log: Arc::clone(&log),
        };
        let writer = Writer {
            room: Room::open(path, n_bytes_max)?,
            folder: path.to_path_buf(),
            key,
            n_bytes_max,
            paused: None,
            log,
        };
        let named = |name: &str| std::thread::Builder::new().name(name.into());
        let reading = named("disk-reads").spawn(move || reader.run(&looked_up))?;
        let writing = named("disk-writes").spawn(move || writer.run(&written))?;
        Ok(Self(Arc::new(Shared {
            folder: path.to_path_buf(),
            key: own_key,
            writes: Some(writes),
            lookups: Some(lookups),
            threads: [Some(reading), Some(writing)],
        })))
    }

    /// The identity of a model's pages in this folder.
    pub(super) fn owner(&self, model: &ModelIdentity) -> Identity {
        let Shared { folder, key, .. } = &*self.0;
        Owners { folder, key }.of(model)
    }

    /// Queues a page for writing; false if the queue is full.
    pub(super) fn write(&self, name: FileName, bytes: Vec<u8>) -> bool {
        self.queue(FileWork::Write(StoredFile { name, bytes }))
    }

    /// Queues a file for removal, after those that are queued; false if the queue is full.
    pub(super) fn remove(&self, name: FileName) -> bool {
        self.queue(FileWork::Remove(name))
    }

    fn queue(&self, work: FileWork) -> bool {
        let writes = self.0.writes.as_ref();
        writes.is_some_and(|writes| writes.try_send(work).is_ok())
    }

    /// Queues a lookup of the pages with which a text can skip more tokens; `then` is called on a thread of the disk
    /// with the files found, if any. False if the queue is full.
    pub(super) fn read(
        &self,
        lookup: Lookup,
        then: impl FnOnce(Vec<StoredFile>) + Send + 'static,
    ) -> bool {
        let then = Box::new(then);
        let lookups = self.0.lookups.as_ref();
        lookups.is_some_and(|lookups| lookups.try_send(Order { lookup, then }).is_ok())
    }
}

/// The thread that reads.
struct Reader {
    folder: PathBuf,
    key: FolderKey,
    /// Whether the last read failed; only the first failure of several is logged.
    is_failing: bool,
    log: Log,
}

impl Reader {
    fn run(mut self, orders: &Receiver<Order>) {
        for Order { lookup, then } in orders {
            let mut read = Vec::new();
            for name in self.files_of(&lookup) {
                let Some(bytes) = self.read(&name) else { break };
                read.push(StoredFile { name, bytes });
            }
            then(read);
        }
    }

    /// The files with which the text can start later than it could without them.
    fn files_of(&self, lookup: &Lookup) -> Vec<FileName> {
        let file = |page: &WantedPage, kind| FileName {
            key: page.key,
            kind,
        };
        let has = |page: &WantedPage, kind| {
            let found = fs::symlink_metadata(file(page, kind).path_in(&self.folder));
            found.is_ok_and(|found| found.is_file())
        };
        let Lookup { pages, n_here, .. } = lookup;
        let on_disk = pages[*n_here..]
            .iter()
            .take_while(|page| has(page, FileKind::Page));
        let n = n_here + on_disk.count();
        let has_state = |page: &WantedPage| page.has_state || has(page, FileKind::State);
        let usable = (lookup.n_usable + 1..=n).rev();
        let Some(n) = usable.into_iter().find(|n| has_state(&pages[n - 1])) else {
            return Vec::new();
        };
        let needed = pages[(*n_here).min(n)..n].iter();
        let mut files: Vec<_> = needed.map(|page| file(page, FileKind::Page)).collect();
        let last = &pages[n - 1];
        if !last.has_state {
            files.push(file(last, FileKind::State));
        }
        files
    }

    fn read(&mut self, name: &FileName) -> Option<Vec<u8>> {
        let error = match name.read(&self.folder, &self.key) {
            Ok(bytes) => {
                self.is_failing = false;
                return Some(bytes);
            }
            Err(error) => error,
        };
        let folder = self.folder.display();
        match error {
            // Evicted a moment ago.
            ReadError::Failed(error) if error.kind() == io::ErrorKind::NotFound => {}
            ReadError::Failed(error) => {
                if !self.is_failing {
                    (self.log)(&format!(
                        "cache folder {folder}: a page cannot be read now: {error}"
                    ));
                }
                self.is_failing = true;
            }
            ReadError::Wrong(what) => {
                (self.log)(&format!("cache folder {folder}: a page is removed: {what}"));
                let _gone = fs::remove_file(name.path_in(&self.folder));
            }
        }
        None
    }
}

/// The thread that writes.
struct Writer {
    folder: PathBuf,
    key: FolderKey,
    room: Room,
    n_bytes_max: u64,
    /// Nothing is written before this time.
    paused: Option<Instant>,
    log: Log,
}

impl Writer {
    fn run(mut self, queue: &Receiver<FileWork>) {
        for work in queue {
            let file = match work {
                FileWork::Write(file) => file,
                FileWork::Remove(name) => {
                    let _gone = fs::remove_file(name.path_in(&self.folder));
                    continue;
                }
            };
            if self.paused.is_some_and(|until| Instant::now() < until) {
                continue;
            }
            match self.write(&file) {
                Ok(()) => self.paused = None,
                Err(error) => {
                    if self.paused.is_none() {
                        (self.log)(&format!(
                            "cache folder {}: {error}; continuing without it",
                            self.folder.display()
                        ));
                    }
                    self.paused = Some(Instant::now() + PAUSE);
                }
            }
        }
    }

    fn write(&mut self, file: &StoredFile) -> io::Result<()> {
        let path = file.name.path_in(&self.folder);
        if file.len_bytes() > self.n_bytes_max || fs::symlink_metadata(&path).is_ok() {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(&self.folder);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        let Some(part) = self.room.take(folder, file.len_bytes())? else {
            return Ok(());
        };
        let written = part.finish(&file.header(&self.key), &file.bytes, &path);
        if written.is_err() {
            self.room.give_back(&part)?;
        }
        written
    }
}

#[cfg(test)]
mod tests;
