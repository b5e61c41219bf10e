//! A file's bytes, with its header in memory.
#![forbid(unsafe_code)]

use super::{FileError, MappedFile, ReadFile};
use sluice_core::gguf::source::{SliceSource, SourceError, TensorSource};
use sluice_core::gguf::{Gguf, GgufErrorKind};
use sluice_core::slc::{Slc, SlcError};
use std::io;
use std::path::Path;

/// How tensor data comes from a file into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Copied with `pread`: [`ReadFile`].
    #[default]
    Read,
    /// From a memory map: [`MappedFile`]. **The file must not be changed or truncated** until it is
    /// closed: a file that shrinks may end the process (SIGBUS, see [`super::report_shrunk_maps`]), and
    /// reads from a file that is written to are undefined.
    Map,
}

impl LoadMode {
    /// How a model is loaded unless a mode is asked for: mapped, but read if its experts stay on disk. Such a model is
    /// used for long while its file is open, and a file that shrinks then ends only the steps that need its experts.
    #[must_use]
    pub const fn usual(leaves_experts: bool) -> Self {
        match leaves_experts {
            true => Self::Read,
            false => Self::Map,
        }
    }
}

/// The source of a file's bytes.
pub(super) enum FileBytes {
    Mapped(MappedFile),
    Read { file: ReadFile, header: Vec<u8> },
    Static(SliceSource<'static>),
}

impl FileBytes {
    /// Opens a file, and reads its header where it is not mapped.
    pub(super) fn open(path: &Path, mode: LoadMode) -> Result<Self, FileError> {
        match mode {
            LoadMode::Map => Ok(Self::Mapped(MappedFile::open_undisturbed(path)?)),
            LoadMode::Read => {
                let file = ReadFile::open(path)?;
                let header = read_header(&file)?;
                Ok(Self::Read { file, header })
            }
        }
    }

    /// The bytes in memory: the header or more.
    pub(super) fn head(&self) -> &[u8] {
        match self {
            Self::Mapped(file) => file.bytes(),
            Self::Read { header, .. } => header,
            Self::Static(source) => source.0,
        }
    }

    /// The path it was opened by, if it is a file.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::Mapped(file) => Some(file.path()),
            Self::Read { file, .. } => Some(file.path()),
            Self::Static(_) => None,
        }
    }

    pub(super) fn source(&self) -> &(dyn TensorSource + Send) {
        match self {
            Self::Mapped(file) => file,
            Self::Read { file, .. } => file,
            Self::Static(source) => source,
        }
    }

    /// The bytes alone, without the kept header.
    pub(super) fn into_source(self) -> Box<dyn TensorSource + Send> {
        match self {
            Self::Mapped(file) => Box::new(file),
            Self::Read { file, .. } => Box::new(file),
            Self::Static(source) => Box::new(source),
        }
    }
}

/// The file's first bytes, as many as the header has.
fn read_header(file: &ReadFile) -> Result<Vec<u8>, FileError> {
    let mut header = Vec::new();
    let mut wanted = HEADER_BYTES_FIRST;
    loop {
        let wanted_bytes = wanted.min(file.len_bytes());
        let len = usize::try_from(wanted_bytes).map_err(|_| read_error(file, None))?;
        let start = header.len();
        header.resize(len, 0);
        file.read(start as u64, &mut header[start..])
            .map_err(|error| read_error(file, Some(error)))?;
        match header_len(&header, file) {
            Ok(Ok(len)) => {
                header.truncate(len);
                header.shrink_to_fit();
                return Ok(header);
            }
            Ok(Err(at_least)) if wanted_bytes < file.len_bytes() => {
                wanted = at_least.max(4 * wanted_bytes);
            }
            Ok(Err(_)) => return Err(read_error(file, None)),
            Err(error) => return Err(error),
        }
    }
}

/// The length of the header in `bytes`, or how many bytes are needed to determine it.
fn header_len(bytes: &[u8], file: &ReadFile) -> Result<Result<usize, u64>, FileError> {
    let name = || file.path().display().to_string();
    if Slc::is_slc(bytes) {
        return match Slc::parse(bytes, file.len_bytes()) {
            // The bytes are in memory.
            Ok(slc) => Ok(usize::try_from(slc.header().payload_offset()).map_err(|_| u64::MAX)),
            Err(SlcError::NeedMore { at_least }) => Ok(Err(at_least)),
            Err(error) => Err(FileError::Slc {
                name: name(),
                error: Box::new(error),
            }),
        };
    }
    match Gguf::parse(bytes, file.len_bytes()).map_err(|error| (error.kind(), error)) {
        Ok(gguf) => Ok(Ok(gguf.header_bytes().len())),
        Err((GgufErrorKind::NeedMore { at_least }, _)) => Ok(Err(at_least)),
        Err((_, error)) => Err(FileError::of_header(name(), bytes, error)),
    }
}

fn read_error(file: &ReadFile, error: Option<SourceError>) -> FileError {
    let error = match error {
        Some(SourceError::Io { code, .. }) => io::Error::from_raw_os_error(code),
        Some(error) => io::Error::other(error),
        None => io::ErrorKind::OutOfMemory.into(),
    };
    FileError::Read {
        path: file.path().to_path_buf(),
        error,
    }
}

/// Read at first: small vocabularies fit, and of a large one little is read twice.
const HEADER_BYTES_FIRST: u64 = 1 << 20;
