//! Files as the kernel knows them.
#![forbid(unsafe_code)]

use core::time::Duration;
use sha2::{Digest as _, Sha256};
use sluice_core::state::Identity;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

/// Device, inode, size and times of a model's files, and which machine they are on. Equal stamps mean that nothing has
/// changed a file in between: every change moves the kernel's time of the last change, which no program can set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStamp {
    identity: Identity,
    changed: Option<SystemTime>,
}

impl FileStamp {
    /// Of the files at `paths`, in this order; `None` without any, or where one is gone.
    pub fn of<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Option<Self> {
        Self::of_found(paths.into_iter().map(fs::metadata))
    }

    /// Of an open file, whatever is at its path by now.
    pub(super) fn of_open(file: &File) -> Option<Self> {
        Self::of_found([file.metadata()])
    }

    fn of_found(files: impl IntoIterator<Item = io::Result<fs::Metadata>>) -> Option<Self> {
        let mut hash = Sha256::new();
        hash.update(b"sluice: files");
        hash.update(fs::read("/etc/machine-id").unwrap_or_default());
        let mut changed = None;
        for found in files {
            let found = found.ok()?;
            for n in [found.dev(), found.ino(), found.size()] {
                hash.update(n.to_le_bytes());
            }
            let times = [
                found.mtime(),
                found.mtime_nsec(),
                found.ctime(),
                found.ctime_nsec(),
            ];
            times.iter().for_each(|n| hash.update(n.to_le_bytes()));
            changed = changed.max(Some(changed_at(&found)));
        }
        let identity = Identity(hash.finalize().into());
        changed.map(|changed| Self {
            identity,
            changed: Some(changed),
        })
    }

    /// What stands for the files until they are hashed.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether a further change could still have the same time: the kernel's clock for files moves every few
    /// milliseconds only.
    pub(crate) fn is_fresh(&self) -> bool {
        let age = self.changed.map(|at| at.elapsed().unwrap_or_default());
        age.is_none_or(|age| age < TICK)
    }
}

fn changed_at(found: &fs::Metadata) -> SystemTime {
    let secs = u64::try_from(found.ctime()).unwrap_or_default();
    let nanos = u32::try_from(found.ctime_nsec()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::new(secs, nanos)
}

/// Longer than a tick of the kernel's clock for files: 10 ms at 100 Hz.
pub(crate) const TICK: Duration = Duration::from_millis(20);
