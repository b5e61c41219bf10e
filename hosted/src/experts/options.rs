//! How experts are read.
#![forbid(unsafe_code)]

use super::device::{ExpertIo, OpenDevice};
use super::policy::{EvictionPolicy, ExpertProfile};
use std::path::PathBuf;

/// How experts that stay on disk are read, and how many of them are kept.
#[derive(Clone, Debug)]
pub struct ExpertOptions {
    /// Memory for experts, in bytes: as many as fit are kept. At least one expert's.
    pub cache_bytes: usize,
    /// How files are read; `None` is the first of [`ExpertIo::ALL`] that works.
    pub io: Option<ExpertIo>,
    /// Which expert is evicted for another.
    pub policy: EvictionPolicy,
    /// Experts to hold, for [`EvictionPolicy::Static`].
    pub profile: Option<ExpertProfile>,
    /// Whether experts are read before their layer is reached, by a guess at its router's choice.
    pub prefetch: bool,
    /// Directories with copies of the model file, on other drives: experts are read from all of them in turn.
    pub dirs: Vec<PathBuf>,
    /// Where a trace of the experts that were needed is appended.
    pub trace: Option<PathBuf>,
    /// Whether the bytes of every read are compared with the file's checksums, or with the previous read's.
    pub check: bool,
    /// A device instead of the machine's own.
    pub device: Option<OpenDevice>,
}

impl ExpertOptions {
    /// Memory for `cache_bytes` of experts, and the usual defaults for the rest.
    #[must_use]
    pub const fn new(cache_bytes: usize) -> Self {
        Self {
            cache_bytes,
            io: None,
            policy: EvictionPolicy::Aged,
            profile: None,
            prefetch: true,
            dirs: Vec::new(),
            trace: None,
            check: false,
            device: None,
        }
    }
}

impl Default for ExpertOptions {
    fn default() -> Self {
        Self::new(0)
    }
}
