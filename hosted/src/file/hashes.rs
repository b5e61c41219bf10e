//! Hashes of files, remembered in the user's cache folder.
#![forbid(unsafe_code)]

use super::FileStamp;
use rustix::process::geteuid;
use sluice_core::state::Identity;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// A folder with a small file for each model that was hashed on this machine: named by its stamp, with its SHA-256.
///
/// Only a folder that belongs to the process's user, and that only this user may write to, is believed.
#[derive(Clone, Debug)]
pub struct HashRecords(PathBuf);

impl HashRecords {
    /// `sluice/hashes` in the user's cache folder: `XDG_CACHE_HOME`, or `.cache` in `HOME`. `None` if neither is set to
    /// an absolute path.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        let folder = |name: &str| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let caches =
            folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
        Some(Self(caches?.join("sluice/hashes")))
    }

    /// In the folder at `path`.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self(path.to_path_buf())
    }

    /// The SHA-256 of the GGUF file with this stamp, if it was recorded.
    #[must_use]
    pub fn find(&self, stamp: &FileStamp) -> Option<Identity> {
        self.check().ok()?;
        parse(&fs::read(self.path_of(stamp)).ok()?)
    }

    /// Records that the file with `stamp` has the SHA-256 `hash`.
    ///
    /// # Errors
    /// The folder cannot be created or written, or others may write to it.
    pub fn record(&self, stamp: &FileStamp, hash: Identity) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)?;
        self.check()?;
        self.prune();
        // Renamed, so that no reader sees a part of it.
        let part = self
            .0
            .join(format!(".{}-{}", stamp.identity(), std::process::id()));
        fs::write(&part, format!("{hash}\n"))?;
        fs::rename(&part, self.path_of(stamp))
    }

    /// Records in the user's folder that the file at `path` has the SHA-256 `hash`, if it is a GGUF file: a packed file has
    /// the identity of the GGUF file that it reads as. Where that is not possible, the file is hashed when it is used.
    pub fn note(path: &Path, hash: Identity) {
        let mut magic = [0; 4];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
        if read.is_ok() && [*b"GGUF", *b"PWRI"].contains(&magic) {
            Self::note_stamp(FileStamp::of([path]), hash);
        }
    }

    pub(super) fn note_stamp(stamp: Option<FileStamp>, hash: Identity) {
        if let Some((records, stamp)) = Self::of_user().zip(stamp) {
            let _recorded = records.record(&stamp, hash);
        }
    }

    /// Forgets the oldest records where there are too many, most of them of files that are gone.
    fn prune(&self) {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut all: Vec<_> = entries.map(|entry| entry.path()).collect();
        if all.len() > RECORDS_MAX {
            all.sort_by_cached_key(|path| fs::metadata(path).and_then(|file| file.modified()).ok());
            let oldest = &all[..all.len() - RECORDS_MAX / 2];
            oldest.iter().for_each(|path| drop(fs::remove_file(path)));
        }
    }

    fn check(&self) -> io::Result<()> {
        let found = fs::metadata(&self.0)?;
        let is_ours = found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0;
        let why = "it belongs to another user, or others may write to it";
        is_ours
            .then_some(())
            .ok_or_else(|| io::Error::other(format!("{}: {why}", self.0.display())))
    }

    fn path_of(&self, stamp: &FileStamp) -> PathBuf {
        self.0.join(format!("{}.sha256", stamp.identity()))
    }
}

/// Most records that are kept.
const RECORDS_MAX: usize = 4096;

/// 64 hexadecimal digits and a line's end.
fn parse(text: &[u8]) -> Option<Identity> {
    let text = core::str::from_utf8(text).ok()?.strip_suffix('\n')?;
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, i) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[i..i + 2], 16).ok()?;
    }
    Some(Identity(bytes))
}
