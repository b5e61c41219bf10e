//! The ways to read files.
#![forbid(unsafe_code)]

use core::fmt;
use core::str::FromStr;

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
    /// All ways, the best first.
    pub const ALL: [Self; 3] = [Self::Uring, Self::Pread, Self::Mmap];

    /// Its name in flags.
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
        found.ok_or("expected uring, pread or mmap")
    }
}
