//! A GGUF file and its parsed header, wherever the bytes are.
#![forbid(unsafe_code)]

use super::split::JoinedFile;
use super::{FileError, MappedFile, ReadFile, SplitPart, SplitProblem, Unpacked};
use core::fmt;
use sluice_core::gguf::source::{SliceSource, SourceError, TensorSource};
use sluice_core::gguf::{Gguf, GgufError, GgufErrorKind};
use sluice_core::slc::{Slc, SlcError};
use std::io;
use std::path::Path;

/// How tensor data comes from a file into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Copied with `pread`: [`ReadFile`].
    #[default]
    Read,
    /// From a memory map: [`MappedFile`]. **Nobody may change the file or cut it short** until it is
    /// loaded, or as long as a `.slc` file is in use: a file that shrinks may end the process
    /// (SIGBUS), and what is read from one that is written to is undefined.
    Map,
}

/// A GGUF or `.slc` file that was opened and whose header was found to be sound.
pub struct ModelFile {
    name: String,
    bytes: Bytes,
    /// Of a `.slc` file: where the GGUF file's parts lie in it.
    unpacked: Option<Unpacked>,
}

/// Where a file's bytes are.
pub(super) enum Bytes {
    Mapped(MappedFile),
    Read { file: ReadFile, header: Vec<u8> },
    Static(SliceSource<'static>),
    Joined(JoinedFile),
}

impl ModelFile {
    /// Opens `path` and checks its header; of a split model all parts: `path` is the first.
    ///
    /// # Errors
    /// [`FileError`], naming the path.
    pub fn open(path: &Path, mode: LoadMode) -> Result<Self, FileError> {
        let name = || path.display().to_string();
        let (file, part) = Self::checked(name(), Bytes::open(path, mode)?)?;
        let Some(part) = part else {
            return Ok(file);
        };
        let joined = JoinedFile::open(path, part, file.bytes, mode)?;
        let (file, _) = Self::checked(name(), Bytes::Joined(joined))?;
        Ok(file)
    }

    /// A model that is part of the program, called `name` in messages.
    ///
    /// # Errors
    /// [`FileError::Header`]; [`FileError::Split`] of a part of a model.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self, FileError> {
        match Self::checked(name.into(), Bytes::Static(SliceSource(bytes)))? {
            (file, None) => Ok(file),
            (file, Some(part)) => Err(FileError::Split {
                name: file.name,
                problem: SplitProblem::InMemory { part },
            }),
        }
    }

    /// Walks the headers; says too which part of a split model the file is.
    fn checked(name: String, bytes: Bytes) -> Result<(Self, Option<SplitPart>), FileError> {
        let mut file = Self {
            name,
            bytes,
            unpacked: None,
        };
        if let Some(slc) = file.slc()? {
            let unpacked = Unpacked::new(&slc);
            file.unpacked = Some(unpacked.map_err(|error| file.slc_error(error))?);
            return Ok((file, None));
        }
        let part = SplitPart::of(&file.parse()?).map_err(|error| file.header_error(error))?;
        Ok((file, part))
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
        if let Some(slc) = self.slc()? {
            return Ok(*slc.gguf());
        }
        let len_bytes = self.contents().len_bytes();
        Gguf::parse(self.head(), len_bytes).map_err(|error| self.header_error(error))
    }

    fn header_error(&self, error: GgufError) -> FileError {
        FileError::of_header(self.name.clone(), self.head(), error)
    }

    /// The headers of a `.slc` file; `None` for a GGUF file. Walks them once: keep the result.
    ///
    /// # Errors
    /// [`FileError::Slc`].
    pub fn slc(&self) -> Result<Option<Slc<'_>>, FileError> {
        if !Slc::is_slc(self.head()) {
            return Ok(None);
        }
        let slc = Slc::parse(self.head(), self.contents().len_bytes());
        slc.map(Some).map_err(|error| self.slc_error(error))
    }

    fn slc_error(&self, error: SlcError) -> FileError {
        FileError::Slc {
            name: self.name.clone(),
            error: Box::new(error),
        }
    }

    /// The bytes at hand: the header or more.
    fn head(&self) -> &[u8] {
        self.bytes.head()
    }

    /// In how many files the model lies.
    pub fn n_parts(&self) -> usize {
        match &self.bytes {
            Bytes::Joined(file) => file.n_parts(),
            Bytes::Mapped(_) | Bytes::Read { .. } | Bytes::Static(_) => 1,
        }
    }

    /// The whole file, if it is mapped: aligned to a page.
    pub fn mapped(&self) -> Option<&[u8]> {
        match &self.bytes {
            Bytes::Mapped(file) => Some(file.bytes()),
            Bytes::Read { .. } | Bytes::Static(_) | Bytes::Joined(_) => None,
        }
    }

    /// Locks the map, if there is one that weights stay in; returns its length.
    pub(crate) fn lock_map(&self) -> Option<(io::Result<()>, usize)> {
        match &self.bytes {
            Bytes::Mapped(file) => Some((file.lock(), file.bytes().len())),
            Bytes::Read { .. } | Bytes::Static(_) | Bytes::Joined(_) => None,
        }
    }

    /// The GGUF file, by the offsets that [`Self::parse`] gives. Of a `.slc` file it is made as
    /// it is read.
    pub fn source(&self) -> &dyn TensorSource {
        if self.unpacked.is_some() {
            return self;
        }
        self.contents()
    }

    /// The file's own bytes.
    pub fn contents(&self) -> &dyn TensorSource {
        self.bytes.source()
    }
}

impl Bytes {
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

    /// The bytes at hand: the header or more.
    pub(super) fn head(&self) -> &[u8] {
        match self {
            Self::Mapped(file) => file.bytes(),
            Self::Read { header, .. } => header,
            Self::Static(source) => source.0,
            Self::Joined(file) => file.header(),
        }
    }

    pub(super) fn source(&self) -> &(dyn TensorSource + Send) {
        match self {
            Self::Mapped(file) => file,
            Self::Read { file, .. } => file,
            Self::Static(source) => source,
            Self::Joined(file) => file,
        }
    }

    /// The bytes alone, without what was kept of the header.
    pub(super) fn into_source(self) -> Box<dyn TensorSource + Send> {
        match self {
            Self::Mapped(file) => Box::new(file),
            Self::Read { file, .. } => Box::new(file),
            Self::Static(source) => Box::new(source),
            Self::Joined(file) => Box::new(file),
        }
    }
}

/// The GGUF file, also where it is packed.
impl TensorSource for ModelFile {
    fn len_bytes(&self) -> u64 {
        match &self.unpacked {
            Some(unpacked) => unpacked.len_bytes(),
            None => self.contents().len_bytes(),
        }
    }

    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        match &self.unpacked {
            Some(_) => None,
            None => self.contents().slice(offset, len),
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        match &self.unpacked {
            Some(unpacked) => unpacked.read(self.contents(), offset, into),
            None => self.contents().read(offset, into),
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

/// How long the header is that `bytes` hold, or how many bytes are needed to say so.
fn header_len(bytes: &[u8], file: &ReadFile) -> Result<Result<usize, u64>, FileError> {
    let name = || file.path().display().to_string();
    if Slc::is_slc(bytes) {
        return match Slc::parse(bytes, file.len_bytes()) {
            // The bytes are at hand.
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
