//! How experts are read.
#![forbid(unsafe_code)]

use super::device::OpenDevice;
use super::policy::{Policy, Profile};
use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

/// How experts that stay on disk are read, and how many of them are kept.
#[derive(Clone, Debug)]
pub struct ExpertOptions {
    /// Memory for experts, in bytes: as many as fit are kept. At least one expert's.
    pub cache_bytes: usize,
    /// How files are read; `None` is the first of [`ExpertIo::ALL`] that works.
    pub io: Option<ExpertIo>,
    /// Which expert leaves for another.
    pub policy: Policy,
    /// Experts to hold, for [`Policy::Static`].
    pub profile: Option<Profile>,
    /// Whether experts are read before their layer is reached, by a guess at its router's choice.
    pub prefetch: bool,
    /// Directories with copies of the model file, on other drives: experts are read from all of them in turn.
    pub dirs: Vec<PathBuf>,
    /// Where a trace of the experts that were needed is appended.
    pub trace: Option<PathBuf>,
    /// Whether the bytes of every read are compared with the file's checksums, or with those of the read before.
    pub check: bool,
    /// A device instead of the machine's own.
    pub device: Option<OpenDevice>,
}

impl ExpertOptions {
    /// Memory for `cache_bytes` of experts; the rest as it is best for most.
    #[must_use]
    pub const fn new(cache_bytes: usize) -> Self {
        Self {
            cache_bytes,
            io: None,
            policy: Policy::Aged,
            profile: None,
            prefetch: true,
            dirs: Vec::new(),
            trace: None,
            check: false,
            device: None,
        }
    }
}

/// A way to read files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertIo {
    /// `io_uring` with registered buffers and files, past the page cache where the file system allows it.
    Uring,
    /// Threads that call `pread`, past the page cache where the file system allows it.
    Pread,
    /// Threads that copy from a memory map.
    Mmap,
}

impl ExpertIo {
    /// All of them, the best first.
    pub const ALL: [Self; 3] = [Self::Uring, Self::Pread, Self::Mmap];

    /// As the flag calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Pread => "pread",
            Self::Mmap => "mmap",
        }
    }
}

impl fmt::Display for ExpertIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ExpertIo {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|io| io.name() == text);
        found.ok_or("not one of uring, pread, mmap")
    }
}
