//! Pages on disk, which survive restarts: one file each, named by its key and accessed by a separate thread.
//!
//! ```text
//!  0  "SLPG"    magic
//!  4  u32 1     version of this layout
//!  8  u64       length of what follows the header
//! 16  [u8; 32]  SHA-256 of the key and what follows the header
//! 48  …         a page or a state, as core writes it
//! ```
//!
//! Files are written completely and then renamed, and are checked when they are read: a truncated or modified file is
//! deleted and counts as missing. The least recently used files are evicted. A full disk only disables the cache.

use super::prefix::Key;
use crate::Log;
use core::fmt;
use core::time::Duration;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

const MAGIC: [u8; 4] = *b"SLPG";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 48;
/// Maximum length of a page: the length in a header is checked before memory is allocated.
const PAYLOAD_BYTES_MAX: u64 = 1 << 32;
/// Maximum number of pages that wait to be written.
const QUEUE_LEN: usize = 16;
/// Pause after a failed write.
const PAUSE: Duration = Duration::from_secs(10);

/// The contents of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum FileKind {
    /// Keys and values of 64 tokens.
    Page,
    /// The recurrent state after them.
    State,
}

impl FileKind {
    const fn extension(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::State => "state",
        }
    }
}

/// The name of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FileName {
    pub(super) key: Key,
    pub(super) kind: FileKind,
}

/// A file and its bytes.
#[derive(Debug)]
pub(crate) struct StoredFile {
    pub(super) name: FileName,
    pub(super) bytes: Vec<u8>,
}

/// Called with the requested files, up to the first that is missing.
type FilesRead = Box<dyn FnOnce(Vec<StoredFile>) + Send>;

enum Order {
    Write(StoredFile),
    Read(Vec<FileName>, FilesRead),
}

/// A file in the folder.
#[derive(Clone, Copy, Debug)]
struct Known {
    n_bytes: u64,
    stamp: u64,
}

/// The files in the folder.
#[derive(Debug, Default)]
struct Index {
    files: HashMap<FileName, Known>,
    order: BTreeMap<u64, FileName>,
    n_bytes: u64,
    clock: u64,
}

impl Index {
    fn insert(&mut self, name: FileName, n_bytes: u64) {
        self.remove(&name);
        self.clock += 1;
        let stamp = self.clock;
        self.files.insert(name, Known { n_bytes, stamp });
        self.order.insert(stamp, name);
        self.n_bytes += n_bytes;
    }

    fn remove(&mut self, name: &FileName) {
        if let Some(known) = self.files.remove(name) {
            self.order.remove(&known.stamp);
            self.n_bytes -= known.n_bytes;
        }
    }

    fn touch(&mut self, name: &FileName) {
        if let Some(known) = self.files.get(name).copied() {
            self.insert(*name, known.n_bytes);
        }
    }
}

/// A folder of pages. Clones share it; dropping the last one writes the queued pages and ends the thread.
#[derive(Clone)]
pub(crate) struct DiskCache(Arc<Shared>);

struct Shared {
    index: Arc<Mutex<Index>>,
    /// `None` when it is being dropped.
    orders: Option<SyncSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.orders = None;
        // If the thread panicked, the panic has already been reported.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskCache").finish_non_exhaustive()
    }
}

impl DiskCache {
    /// Opens the folder at `path`, for up to `n_bytes_max` bytes. Creates it if it does not exist.
    ///
    /// # Errors
    /// It cannot be created or read.
    pub(crate) fn open(path: &Path, n_bytes_max: u64, log: Log) -> io::Result<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)?;
        let index = Arc::new(Mutex::new(scan(path)?));
        let (orders, received) = mpsc::sync_channel(QUEUE_LEN);
        let worker = Worker {
            folder: path.to_path_buf(),
            index: Arc::clone(&index),
            n_bytes_max,
            paused: None,
            n_written: 0,
            log,
        };
        let thread = std::thread::Builder::new()
            .name("disk-cache".into())
            .spawn(move || worker.run(&received))?;
        Ok(Self(Arc::new(Shared {
            index,
            orders: Some(orders),
            thread: Some(thread),
        })))
    }

    pub(super) fn contains(&self, name: &FileName) -> bool {
        lock(&self.0.index).files.contains_key(name)
    }

    /// Queues a page for writing; false if the queue is full.
    pub(super) fn write(&self, name: FileName, bytes: Vec<u8>) -> bool {
        self.order(Order::Write(StoredFile { name, bytes }))
    }

    /// Queues names for reading; `then` is called on the disk's thread with the files found. False if the queue is
    /// full.
    pub(super) fn read(
        &self,
        names: Vec<FileName>,
        then: impl FnOnce(Vec<StoredFile>) + Send + 'static,
    ) -> bool {
        self.order(Order::Read(names, Box::new(then)))
    }

    fn order(&self, order: Order) -> bool {
        let orders = self.0.orders.as_ref();
        orders.is_some_and(|orders| orders.try_send(order).is_ok())
    }
}

/// The state of the thread.
struct Worker {
    folder: PathBuf,
    index: Arc<Mutex<Index>>,
    n_bytes_max: u64,
    /// Nothing is written before this time.
    paused: Option<Instant>,
    n_written: u64,
    log: Log,
}

impl Worker {
    fn run(mut self, orders: &Receiver<Order>) {
        for order in orders {
            match order {
                Order::Write(file) => self.write(file.name, &file.bytes),
                Order::Read(names, then) => {
                    let mut read = Vec::with_capacity(names.len());
                    for name in names {
                        let Some(bytes) = self.read(&name) else { break };
                        read.push(StoredFile { name, bytes });
                    }
                    then(read);
                }
            }
        }
    }

    fn write(&mut self, name: FileName, bytes: &[u8]) {
        let is_paused = self.paused.is_some_and(|until| Instant::now() < until);
        if is_paused || lock(&self.index).files.contains_key(&name) {
            return;
        }
        let n_bytes = (HEADER_BYTES + bytes.len()) as u64;
        if n_bytes > self.n_bytes_max {
            return;
        }
        loop {
            let oldest = {
                let index = lock(&self.index);
                if index.n_bytes + n_bytes <= self.n_bytes_max {
                    break;
                }
                index.order.values().next().copied()
            };
            let Some(oldest) = oldest else { break };
            self.delete(&oldest);
        }
        match self.put(&name, bytes) {
            Ok(()) => {
                lock(&self.index).insert(name, n_bytes);
                self.paused = None;
            }
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

    fn put(&mut self, name: &FileName, bytes: &[u8]) -> io::Result<()> {
        let path = path_of(&self.folder, name);
        let folder = path.parent().unwrap_or(&self.folder);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
        self.n_written += 1;
        let part = folder.join(format!("{}-{}.part", std::process::id(), self.n_written));
        let written = (|| {
            let mut options = File::options();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&part)?;
            file.write_all(&header(&name.key, bytes))?;
            file.write_all(bytes)?;
            fs::rename(&part, &path)
        })();
        if written.is_err() {
            let _gone = fs::remove_file(&part);
        }
        written
    }

    /// The contents of a file if the checksum is correct.
    fn read(&self, name: &FileName) -> Option<Vec<u8>> {
        let read = read_file(&path_of(&self.folder, name), &name.key);
        match read {
            Ok(bytes) => {
                lock(&self.index).touch(name);
                Some(bytes)
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    (self.log)(&format!(
                        "cache folder {}: a page is ignored: {error}",
                        self.folder.display()
                    ));
                }
                self.delete(name);
                None
            }
        }
    }

    fn delete(&self, name: &FileName) {
        lock(&self.index).remove(name);
        let _gone = fs::remove_file(path_of(&self.folder, name));
    }
}

fn header(key: &Key, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&VERSION.to_le_bytes());
    header[8..16].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    let mut hash = Sha256::new();
    hash.update(key);
    hash.update(bytes);
    header[16..].copy_from_slice(&hash.finalize());
    header
}

fn read_file(path: &Path, key: &Key) -> io::Result<Vec<u8>> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the file is damaged");
    let mut file = File::open(path)?;
    let n_bytes = file.metadata()?.len();
    let mut found = [0; HEADER_BYTES];
    file.read_exact(&mut found).map_err(|_| damaged())?;
    let len = n_bytes.saturating_sub(HEADER_BYTES as u64);
    if len > PAYLOAD_BYTES_MAX || found[8..16] != len.to_le_bytes() {
        return Err(damaged());
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(len).map_err(|_| damaged())?)?;
    file.take(len).read_to_end(&mut bytes)?;
    match found == header(key, &bytes) {
        true => Ok(bytes),
        false => Err(damaged()),
    }
}

/// `ab/abcd….page`: subfolders keep folders small.
fn path_of(folder: &Path, file: &FileName) -> PathBuf {
    let mut name = String::with_capacity(80);
    for byte in &file.key {
        let _written = fmt::Write::write_fmt(&mut name, format_args!("{byte:02x}"));
    }
    folder
        .join(&name[..2])
        .join(format!("{name}.{}", file.kind.extension()))
}

fn name_of(path: &Path) -> Option<FileName> {
    let kind = [FileKind::Page, FileKind::State];
    let extension = path.extension()?;
    let kind = kind
        .into_iter()
        .find(|kind| extension == kind.extension())?;
    let stem = path.file_stem()?.to_str()?;
    let mut key = [0; 32];
    if stem.len() != 64 || !stem.is_ascii() {
        return None;
    }
    for (i, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&stem[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(FileName { key, kind })
}

/// The files in the folder, by age. Deletes files that an earlier process did not finish.
fn scan(folder: &Path) -> io::Result<Index> {
    let mut found = Vec::new();
    for sub in fs::read_dir(folder)? {
        let sub = sub?.path();
        if !sub.is_dir() {
            continue;
        }
        for file in fs::read_dir(sub)? {
            let file = file?;
            let path = file.path();
            let Ok(metadata) = file.metadata() else {
                continue;
            };
            let age = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match name_of(&path) {
                Some(name) => found.push((age, name, metadata.len())),
                None if path
                    .extension()
                    .is_some_and(|extension| extension == "part") =>
                {
                    let _gone = fs::remove_file(path);
                }
                None => {}
            }
        }
    }
    found.sort_unstable_by_key(|(age, ..)| *age);
    let mut index = Index::default();
    for (_, name, n_bytes) in found {
        index.insert(name, n_bytes);
    }
    Ok(index)
}

fn lock(index: &Mutex<Index>) -> MutexGuard<'_, Index> {
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
