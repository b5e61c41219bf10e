//! Files, opened past the page cache where that is possible.

use super::super::error::ExpertError;
use super::DIRECT_ALIGN;
use crate::host::memory::AlignedMemory;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file of a device.
#[derive(Debug)]
pub struct DeviceFile {
    /// The path it was opened by.
    pub path: PathBuf,
    /// The open file.
    pub file: File,
    /// Length when it was opened.
    pub len_bytes: u64,
    /// Whether it is read past the page cache.
    pub is_direct: bool,
}

/// Opens `path`, past the page cache if the file system supports it.
pub(in super::super) fn open_file(path: &Path) -> Result<DeviceFile, ExpertError> {
    let refused = |error: io::Error| ExpertError::Open {
        path: path.to_owned(),
        error: Arc::new(error),
    };
    let plain = File::open(path).map_err(refused)?;
    let metadata = plain.metadata().map_err(refused)?;
    if !metadata.is_file() {
        return Err(refused(io::Error::other("not a regular file")));
    }
    let of = |file, is_direct| DeviceFile {
        path: path.to_owned(),
        file,
        len_bytes: metadata.len(),
        is_direct,
    };
    let mut options = OpenOptions::new();
    options.read(true);
    options.custom_flags(OFlags::DIRECT.bits().cast_signed());
    match options
        .open(path)
        .and_then(|file| reads(&file).map(|()| file))
    {
        Ok(file) => Ok(of(file, true)),
        Err(_) => Ok(of(plain, false)),
    }
}

/// Whether a block can be read: some file systems refuse only at the first read.
fn reads(file: &File) -> io::Result<()> {
    let mut room = AlignedMemory::zeroed(DIRECT_ALIGN).map_err(|error| error.error)?;
    file.read_at(&mut room, 0).map(drop)
}
