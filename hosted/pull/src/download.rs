//! Downloading files from the hub into the cache.

use crate::cache::{Cache, create_folder_of};
use crate::error::PullError;
use crate::hub::{Checksum, Hub, Incoming, Known};
use crate::partial::{CHUNK_BYTES, Partial, partial_path};
use crate::repo::RepoId;
use crate::{Progress, WantedFile, Watch};
use core::time::Duration;
use rustix::fs::statvfs;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Instant;

/// Fetches all `files` of a commit that are not in the cache yet.
pub(crate) fn all(
    hub: &Hub,
    cache: &Cache,
    repo: &RepoId,
    commit: &str,
    files: &[Known],
    watch: &mut dyn Watch,
) -> Result<(), PullError> {
    let mut fetch = Fetch {
        hub,
        cache,
        repo,
        commit,
        before_bytes: 0,
        total_bytes: files.iter().map(|file| file.len_bytes).sum(),
        watch,
    };
    let wanted: Vec<_> = files.iter().map(|file| fetch.wanted(file)).collect();
    fetch.watch.files(&wanted)?;
    for file in files {
        fetch.file(file)?;
        fetch.before_bytes += file.len_bytes;
    }
    Ok(())
}

struct Fetch<'f> {
    hub: &'f Hub,
    cache: &'f Cache,
    repo: &'f RepoId,
    commit: &'f str,
    /// Bytes of the files before this one.
    before_bytes: u64,
    total_bytes: u64,
    watch: &'f mut dyn Watch,
}

impl Fetch<'_> {
    fn wanted(&self, file: &Known) -> WantedFile {
        let name = self.cache.snapshot(self.repo, self.commit).join(&file.path);
        let blob = self.cache.blob(self.repo, &file.etag);
        let there_bytes = match is_whole(&name, file) || is_whole(&blob, file) {
            true => file.len_bytes,
            false => fs::metadata(partial_path(&blob)).map_or(0, |there| there.len()),
        };
        let sha256 = file.checksum().and_then(|checksum| match checksum {
            Checksum::Sha256(hex) => Some(hex.to_owned()),
            Checksum::Blob(_) => None,
        });
        WantedFile {
            path: file.path.clone(),
            len_bytes: file.len_bytes,
            missing_bytes: file.len_bytes.saturating_sub(there_bytes),
            sha256,
        }
    }

    fn file(&mut self, file: &Known) -> Result<(), PullError> {
        let name = self.cache.snapshot(self.repo, self.commit).join(&file.path);
        let blob = self.cache.blob(self.repo, &file.etag);
        if !is_whole(&name, file) {
            if !is_whole(&blob, file) {
                self.blob(file, &blob)?;
            }
            let depth = file.path.matches('/').count();
            Cache::link(&blob, &file.etag, &name, depth)?;
        }
        self.report(file.len_bytes);
        Ok(())
    }

    /// Fetches a file's bytes; if another process is fetching them, waits for it.
    fn blob(&mut self, file: &Known, blob: &Path) -> Result<(), PullError> {
        create_folder_of(blob)?;
        let mut is_said = false;
        let watch = &mut *self.watch;
        let _lock = self.cache.lock(self.repo, &file.etag, || {
            if !is_said {
                watch.note(&format!(
                    "another process is downloading {}; waiting for it",
                    file.path
                ));
                is_said = true;
            }
            pause(POLL, watch)
        })?;
        if is_whole(blob, file) {
            return Ok(());
        }
        let mut partial = Partial::open(blob, file, self.watch)?;
        check_room(blob, file, partial.len())?;
        self.fill(file, &mut partial)?;
        if let Some(sha256) = partial.finish(blob)? {
            self.watch.received(blob, sha256);
        }
        Ok(())
    }

    /// Sends requests until the file is complete. A request without new bytes is a failure; several
    /// in a row end the download.
    fn fill(&mut self, file: &Known, partial: &mut Partial<'_>) -> Result<(), PullError> {
        let mut failures = 0;
        while !partial.is_complete() {
            self.watch.check_stop()?;
            let before = partial.len();
            let Err(error) = self.receive(file, partial) else {
                continue;
            };
            failures = if partial.len() > before {
                1
            } else {
                failures + 1
            };
            if !error.is_passing() || failures == FAILURES_MAX {
                return Err(error);
            }
            let wait = FIRST_WAIT * (1 << (failures - 1));
            let seconds = wait.as_secs();
            self.watch
                .note(&format!("{error}; retrying in {seconds} s"));
            pause(wait, self.watch)?;
        }
        Ok(())
    }

    fn receive(&mut self, file: &Known, partial: &mut Partial<'_>) -> Result<(), PullError> {
        let from = partial.len();
        let opened = self.hub.open(self.repo, self.commit, &file.path, from);
        let incoming = match opened {
            // The partial file is already complete, or belongs to another file.
            Err(PullError::Refused { status: 416, .. }) => return partial.restart(),
            opened => opened?,
        };
        if incoming.from < from {
            partial.restart()?;
        }
        let chunks = read_aside(incoming);
        let mut silent_since = Instant::now();
        loop {
            match chunks.recv_timeout(POLL) {
                Ok(Ok(chunk)) => {
                    partial.append(&chunk)?;
                    self.report(partial.len());
                    silent_since = Instant::now();
                }
                Ok(Err(error)) => return Err(self.hub.broken(&error)),
                Err(RecvTimeoutError::Disconnected) if partial.is_complete() => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.hub.broken(&"the connection was closed early"));
                }
                Err(RecvTimeoutError::Timeout) if silent_since.elapsed() > SILENCE_MAX => {
                    return Err(self.hub.broken(&"no data received for 30 s"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.watch.check_stop()?;
        }
    }

    fn report(&mut self, done_bytes: u64) {
        self.watch.progress(Progress {
            done_bytes: self.before_bytes + done_bytes,
            total_bytes: self.total_bytes,
        });
    }
}

/// Maximum number of consecutive requests without new bytes.
const FAILURES_MAX: u32 = 4;

/// Delay after the first failure; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Interval between checks for a stop.
const POLL: Duration = Duration::from_millis(100);

/// A connection that is silent for longer is closed.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Reads on a separate thread, so that a silent connection does not block the caller. The thread
/// ends when the receiver is dropped.
fn read_aside(mut incoming: Incoming) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = sync_channel(CHUNKS_AHEAD);
    thread::spawn(move || {
        loop {
            let mut chunk = vec![0; CHUNK_BYTES];
            let sent = match incoming.reader.read(&mut chunk) {
                Ok(0) => return,
                Ok(n) => {
                    chunk.truncate(n);
                    sender.send(Ok(chunk))
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let _nobody_left = sender.send(Err(error));
                    return;
                }
            };
            if sent.is_err() {
                return;
            }
        }
    });
    receiver
}

const CHUNKS_AHEAD: usize = 16;

/// Waits, and checks for a stop.
fn pause(time: Duration, watch: &dyn Watch) -> Result<(), PullError> {
    let end = Instant::now() + time;
    loop {
        watch.check_stop()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::park_timeout(left.min(POLL));
    }
}

/// Whether the complete file exists.
fn is_whole(path: &Path, file: &Known) -> bool {
    fs::metadata(path).is_ok_and(|there| there.is_file() && there.len() == file.len_bytes)
}

/// Fails before the first byte if the disk does not have enough space for the file.
fn check_room(blob: &Path, file: &Known, there_bytes: u64) -> Result<(), PullError> {
    let folder = blob.parent().unwrap_or(blob);
    let Ok(disk) = statvfs(folder) else {
        return Ok(());
    };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let needed = file.len_bytes - there_bytes;
    if needed > free {
        return Err(PullError::Disk {
            file: file.path.clone(),
            needed,
            free,
            folder: folder.to_path_buf(),
        });
    }
    Ok(())
}
