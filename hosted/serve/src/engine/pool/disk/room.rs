//! The room of a folder, which the servers of one user share.
//!
//! `.sluice-room` holds the number of bytes that all files take (u64); a server locks it to change it. A process that
//! is killed leaves the number too large until a server counts again: when it starts, or when it has evicted all files
//! that it knows of. The files that no server used for the longest time are evicted first.

use super::file::FileName;
use sluice::file::open_private;
use std::collections::VecDeque;
use std::fs::{self, DirEntry, File, FileTimes};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The folder's room, and the files to evict next.
pub(super) struct Room {
    count: Count,
    shelf: Shelf,
    n_parts: u64,
}

/// The file with the number of bytes.
struct Count(File);

/// Holds the lock of a [`Count`].
struct LockedCount<'c>(&'c File);

/// What may be evicted.
struct Shelf {
    folder: PathBuf,
    n_bytes_max: u64,
    /// Files by last use, as they were when they were counted. All others were written or used since.
    oldest: VecDeque<CountedFile>,
}

/// A file when the folder was counted.
struct CountedFile {
    name: FileName,
    used: SystemTime,
    n_bytes: u64,
}

/// A file being written, for which room was taken. It is locked, so that no server takes it for a leftover.
pub(super) struct PartFile {
    path: PathBuf,
    file: File,
    n_bytes: u64,
}

impl Room {
    /// Counts the files in the folder, and removes those that killed processes did not finish.
    pub(super) fn open(folder: &Path, n_bytes_max: u64) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true);
        let count = open_private(&folder.join(".sluice-room"), &mut options);
        let count = Count(count.map_err(io::Error::other)?);
        let mut shelf = Shelf {
            folder: folder.into(),
            n_bytes_max,
            oldest: VecDeque::new(),
        };
        let locked = count.lock();
        locked.set(shelf.count()?)?;
        drop(locked);
        Ok(Self {
            count,
            shelf,
            n_parts: 0,
        })
    }

    /// Takes room for a file of `n_bytes` that is written in `folder`. Evicts others where necessary; `None` if that
    /// does not suffice.
    pub(super) fn take(&mut self, folder: &Path, n_bytes: u64) -> io::Result<Option<PartFile>> {
        let locked = self.count.lock();
        let n_taken = self.shelf.evict(locked.get()?, n_bytes)?;
        if n_taken + n_bytes > self.shelf.n_bytes_max {
            locked.set(n_taken)?;
            return Ok(None);
        }
        let part = PartFile::create(folder, n_bytes, &mut self.n_parts)?;
        locked.set(n_taken + n_bytes)?;
        Ok(Some(part))
    }

    /// Gives back the room of a file that could not be written.
    pub(super) fn give_back(&self, part: &PartFile) -> io::Result<()> {
        let locked = self.count.lock();
        fs::remove_file(&part.path)?;
        locked.set(locked.get()?.saturating_sub(part.n_bytes))
    }
}

impl Count {
    /// Waits for the lock. On a file system without locks, the number may be wrong if there are several servers.
    fn lock(&self) -> LockedCount<'_> {
        let _locked = self.0.lock();
        LockedCount(&self.0)
    }
}

impl LockedCount<'_> {
    fn get(&self) -> io::Result<u64> {
        let mut n_bytes = [0; 8];
        self.0.read_exact_at(&mut n_bytes, 0)?;
        Ok(u64::from_le_bytes(n_bytes))
    }

    fn set(&self, n_bytes: u64) -> io::Result<()> {
        self.0.write_all_at(&n_bytes.to_le_bytes(), 0)
    }
}

impl Drop for LockedCount<'_> {
    fn drop(&mut self) {
        let _unlocked = self.0.unlock();
    }
}

impl Shelf {
    /// Removes files until `n_bytes` fit in addition to `n_taken`, if possible. Returns the bytes that are then taken.
    fn evict(&mut self, mut n_taken: u64, n_bytes: u64) -> io::Result<u64> {
        let mut is_counted = false;
        while n_taken.saturating_add(n_bytes) > self.n_bytes_max {
            let Some(oldest) = self.oldest.pop_front() else {
                if is_counted {
                    break;
                }
                is_counted = true;
                n_taken = self.count()?;
                continue;
            };
            let path = oldest.name.path_in(&self.folder);
            let used = fs::symlink_metadata(&path).and_then(|found| found.modified());
            let is_unused = used.is_ok_and(|used| used == oldest.used);
            if is_unused && fs::remove_file(&path).is_ok() {
                n_taken = n_taken.saturating_sub(oldest.n_bytes);
            }
        }
        Ok(n_taken)
    }

    /// Counts the bytes of all files. Subfolders of others, such as `lost+found`, are left alone.
    fn count(&mut self) -> io::Result<u64> {
        let (mut found, mut n_bytes) = (Vec::new(), 0);
        for sub in fs::read_dir(&self.folder)?.flatten() {
            let name = sub.file_name();
            let is_ours = name.len() == 2 && name.to_str().is_some_and(is_hexadecimal);
            let entries = is_ours.then(|| fs::read_dir(sub.path()));
            for entry in entries.into_iter().flatten().flatten().flatten() {
                let Ok(metadata) = entry.metadata() else {
                    continue;
                };
                let len = metadata.len();
                if let Some(name) = FileName::of(&entry.path()) {
                    n_bytes += len;
                    found.push(CountedFile {
                        name,
                        used: metadata.modified()?,
                        n_bytes: len,
                    });
                } else if is_part(&entry) && !remove_leftover(&entry) {
                    n_bytes += len;
                }
            }
        }
        found.sort_unstable_by_key(|file| file.used);
        self.oldest = found.into();
        Ok(n_bytes)
    }
}

impl PartFile {
    /// Creates a file of `n_bytes`, as counts expect it, in `folder`, which is created if it does not exist.
    fn create(folder: &Path, n_bytes: u64, n_parts: &mut u64) -> io::Result<Self> {
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        loop {
            *n_parts += 1;
            // Processes in different containers may have the same number.
            let path = folder.join(format!("{}-{n_parts}.part", std::process::id()));
            let file = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            let _locked = file.try_lock();
            file.set_len(n_bytes)?;
            return Ok(Self {
                path,
                file,
                n_bytes,
            });
        }
    }

    /// Writes the file and gives it its name.
    pub(super) fn finish(&self, header: &[u8], bytes: &[u8], path: &Path) -> io::Result<()> {
        let mut file = &self.file;
        file.write_all(header)?;
        file.write_all(bytes)?;
        // The kernel's own times are too coarse for the order of files.
        let _set = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        fs::rename(&self.path, path)
    }
}

fn is_hexadecimal(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_part(entry: &DirEntry) -> bool {
    Path::new(&entry.file_name())
        .extension()
        .is_some_and(|extension| extension == "part")
}

/// Removes a file unless a server is still writing it; whether it was removed.
fn remove_leftover(entry: &DirEntry) -> bool {
    let mut options = File::options();
    let file = open_private(&entry.path(), options.read(true).write(true));
    let is_left = file.is_ok_and(|file| file.try_lock().is_ok());
    is_left && fs::remove_file(entry.path()).is_ok()
}
