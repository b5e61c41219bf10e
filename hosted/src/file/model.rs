//! A GGUF file and its parsed header, wherever the bytes are.
#![forbid(unsafe_code)]

use super::{FileError, MappedFile, ReadFile};
use core::fmt;
use sluice_core::gguf::source::{SliceSource, SourceError, TensorSource};
use sluice_core::gguf::{Gguf, GgufErrorKind};
use std::io;
use std::path::Path;

/// How tensor data comes from a file into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Copied with `pread`: [`ReadFile`].
    #[default]
    Read,
    /// From a memory map: [`MappedFile`].
    Map,
}

/// A GGUF file that was opened and whose header was found to be sound.
pub struct ModelFile {
    name: String,
    bytes: Bytes,
}

enum Bytes {
    Mapped(MappedFile),
    Read { file: ReadFile, header: Vec<u8> },
    Static(SliceSource<'static>),
}

impl ModelFile {
    /// Opens `path` and checks its header.
    ///
    /// # Errors
    /// [`FileError`], naming the path.
    pub fn open(path: &Path, mode: LoadMode) -> Result<Self, FileError> {
        let bytes = match mode {
            LoadMode::Map => Bytes::Mapped(MappedFile::open(path)?),
            LoadMode::Read => {
                let file = ReadFile::open(path)?;
                let header = read_header(&file)?;
                Bytes::Read { file, header }
            }
        };
        Self::checked(path.display().to_string(), bytes)
    }

    /// A model that is part of the program, called `name` in messages.
    ///
    /// # Errors
    /// [`FileError::Header`].
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self, FileError> {
        Self::checked(name.into(), Bytes::Static(SliceSource(bytes)))
    }

    fn checked(name: String, bytes: Bytes) -> Result<Self, FileError> {
        let file = Self { name, bytes };
        file.parse()?;
        Ok(file)
    }

    /// The path as it was given, or the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The header. Walks it once: keep the result.
    ///
    /// # Errors
    /// [`FileError::Header`], if the file has changed since it was opened.
    pub fn parse(&self) -> Result<Gguf<'_>, FileError> {
        let header = match &self.bytes {
            Bytes::Mapped(file) => file.bytes(),
            Bytes::Read { header, .. } => header,
            Bytes::Static(source) => source.0,
        };
        Gguf::parse(header, self.source().len_bytes()).map_err(|error| FileError::Header {
            name: self.name.clone(),
            error: Box::new(error),
        })
    }

    /// The tensor data.
    pub fn source(&self) -> &dyn TensorSource {
        match &self.bytes {
            Bytes::Mapped(file) => file,
            Bytes::Read { file, .. } => file,
            Bytes::Static(source) => source,
        }
    }
}

impl fmt::Debug for ModelFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelFile({})", self.name)
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
        match Gguf::parse(&header, file.len_bytes()).map_err(|error| (error.kind(), error)) {
            Ok(gguf) => {
                let len = gguf.header_bytes().len();
                header.truncate(len);
                header.shrink_to_fit();
                return Ok(header);
            }
            Err((GgufErrorKind::NeedMore { at_least }, _)) if wanted_bytes < file.len_bytes() => {
                wanted = at_least.max(4 * wanted_bytes);
            }
            Err((_, error)) => {
                return Err(FileError::Header {
                    name: file.path().display().to_string(),
                    error: Box::new(error),
                });
            }
        }
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
