//! A GGUF file and its parsed header, wherever the bytes are.
#![forbid(unsafe_code)]

use super::bytes::{FileBytes, LoadMode};
use super::joined::JoinedFile;
use super::{
    FileError, FileStamp, GgufInSlc, LinkProblem, MappedFile, SplitPart, SplitProblem, links, split,
};
use core::fmt;
use core::ops::Range;
use sluice_core::gguf::source::{SliceSource, SourceError, TensorSource};
use sluice_core::gguf::{Gguf, GgufError};
use sluice_core::slc::{Slc, SlcError};
use std::io;
use std::path::Path;

/// A GGUF or `.slc` file that was opened and whose header was found to be sound.
pub struct ModelFile {
    name: String,
    contents: Contents,
    /// For a `.slc` file: where the GGUF file's parts are in it.
    unpacked: Option<GgufInSlc>,
    /// The files as they were when they were opened.
    stamp: Option<FileStamp>,
}

/// Where the bytes are.
enum Contents {
    File(FileBytes),
    Joined(JoinedFile),
}

/// The other files that a header refers to.
enum Kind {
    Whole,
    Part(SplitPart),
    /// Experts are in other files.
    Linked,
}

impl ModelFile {
    /// Opens `path` and checks its header; for a split model, the headers of all parts: `path` is the first. Checks
    /// the files that hold its experts, too.
    ///
    /// # Errors
    /// [`FileError`], naming the path.
    pub fn open(path: &Path, mode: LoadMode) -> Result<Self, FileError> {
        let name = || path.display().to_string();
        let (file, kind) = Self::checked(name(), Contents::File(FileBytes::open(path, mode)?))?;
        let joined = match (kind, file.contents) {
            (Kind::Part(part), Contents::File(first)) => split::open(path, part, first, mode)?,
            (Kind::Linked, Contents::File(first)) => links::open(path, first)?,
            (_, contents) => return Ok(Self { contents, ..file }.stamped()),
        };
        match Self::checked(name(), Contents::Joined(joined))? {
            (file, Kind::Whole) => Ok(file.stamped()),
            (file, _) => Err(file.links_error("a model in parts")),
        }
    }

    /// A model that is part of the program, called `name` in messages.
    ///
    /// # Errors
    /// [`FileError::Header`]; [`FileError::Split`] of a part of a model; [`FileError::Links`].
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self, FileError> {
        let contents = Contents::File(FileBytes::Static(SliceSource(bytes)));
        match Self::checked(name.into(), contents)? {
            (file, Kind::Whole) => Ok(file),
            (file, Kind::Part(part)) => Err(FileError::Split {
                name: file.name,
                problem: SplitProblem::InMemory { part },
            }),
            (file, Kind::Linked) => Err(file.links_error("a model in memory")),
        }
    }

    /// Walks the headers; also returns which part of a model the file is.
    fn checked(name: String, contents: Contents) -> Result<(Self, Kind), FileError> {
        let mut file = Self {
            name,
            contents,
            unpacked: None,
            stamp: None,
        };
        if let Some(slc) = file.slc()? {
            if links::are_in(slc.gguf()) {
                return Err(file.links_error("a .slc file"));
            }
            let unpacked = GgufInSlc::new(&slc);
            file.unpacked = Some(unpacked.map_err(|error| file.slc_error(error))?);
            return Ok((file, Kind::Whole));
        }
        let gguf = file.parse()?;
        let part = SplitPart::of(&gguf).map_err(|error| file.header_error(error))?;
        let kind = match (part, links::are_in(&gguf)) {
            (None, false) => Kind::Whole,
            (Some(part), false) => Kind::Part(part),
            (None, true) => Kind::Linked,
            (Some(_), true) => return Err(file.links_error("a model in parts")),
        };
        Ok((file, kind))
    }

    fn links_error(&self, what: &'static str) -> FileError {
        FileError::Links {
            name: self.name.clone(),
            problem: LinkProblem::Kind { what },
        }
    }

    /// The path as given, or the name.
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

    /// The bytes in memory: the header or more.
    fn head(&self) -> &[u8] {
        self.contents.head()
    }

    /// Number of files the model is in.
    pub fn n_parts(&self) -> usize {
        match &self.contents {
            Contents::Joined(file) => file.n_parts(),
            Contents::File(_) => 1,
        }
    }

    /// Paths of the model's files: one, unless the model is split or its experts are in other files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        (0..self.n_parts()).filter_map(|part| self.part_path(part))
    }

    fn stamped(mut self) -> Self {
        self.stamp = FileStamp::of(self.paths());
        self
    }

    /// Its files as the kernel knew them when they were opened; `None` for a model in memory.
    #[must_use]
    pub const fn stamp(&self) -> Option<&FileStamp> {
        self.stamp.as_ref()
    }

    /// Whether its files are as they were when they were opened: neither written to nor replaced.
    pub(crate) fn is_as_opened(&self) -> bool {
        self.stamp == FileStamp::of(self.paths())
    }

    /// The whole file, if it is mapped: aligned to a page.
    pub fn mapped(&self) -> Option<&[u8]> {
        self.contents.map().map(MappedFile::bytes)
    }

    /// All bytes of a model that is part of the program.
    pub(crate) const fn static_bytes(&self) -> Option<&'static [u8]> {
        match &self.contents {
            Contents::File(FileBytes::Static(source)) => Some(source.0),
            Contents::File(_) | Contents::Joined(_) => None,
        }
    }

    /// Which of the model's files holds all of a range of its own bytes, and where; `None` if none does.
    pub(crate) fn locate(&self, offset: u64, len: u64) -> Option<(usize, u64)> {
        match &self.contents {
            Contents::File(_) => Some((0, offset)),
            Contents::Joined(file) => file.locate(offset, len),
        }
    }

    /// The path of one of the model's files, if it is a file.
    pub(crate) fn part_path(&self, part: usize) -> Option<&Path> {
        match &self.contents {
            Contents::File(file) => file.path(),
            Contents::Joined(file) => file.path(part),
        }
    }

    /// Which of the model's files an error of [`Self::source`] comes from, where there are several.
    pub(crate) fn at_fault(&self, error: SourceError) -> Option<&Path> {
        match &self.contents {
            Contents::File(_) => None,
            Contents::Joined(file) => file.at_fault(error),
        }
    }

    /// Locks a range of the map from the first payload of a `.slc` file on, if there is a map.
    pub(crate) fn lock_map(&self, range: Range<usize>) -> Option<io::Result<()>> {
        let (file, first) = self.mapped_payloads()?;
        Some(file.lock(first + range.start..first + range.end))
    }

    /// Asks for huge pages for such a range.
    pub(crate) fn advise_huge_pages(&self, range: Range<usize>) {
        if let Some((file, first)) = self.mapped_payloads() {
            file.advise_huge_pages(first + range.start..first + range.end);
        }
    }

    /// The map of a `.slc` file, and where its first payload begins.
    fn mapped_payloads(&self) -> Option<(&MappedFile, usize)> {
        let file = self.contents.map()?;
        Some((file, file.bytes().len().saturating_sub(self.payload_len()?)))
    }

    /// Bytes of the file that are read a few at a time, anywhere, if it is mapped.
    pub(crate) fn advise_random(&self, offset: u64, len: u64) {
        if let Some(file) = self.contents.map() {
            file.advise_random(offset, len);
        }
    }

    fn payload_len(&self) -> Option<usize> {
        let slc = self.slc().ok()??;
        usize::try_from(slc.header().file_len - slc.header().payload_offset()).ok()
    }

    /// The GGUF file, by the offsets that [`Self::parse`] gives. For a `.slc` file it is generated
    /// during reading.
    pub fn source(&self) -> &dyn TensorSource {
        if self.unpacked.is_some() {
            return self;
        }
        self.contents()
    }

    /// The file's own bytes.
    pub fn contents(&self) -> &dyn TensorSource {
        self.contents.source()
    }
}

impl Contents {
    /// The bytes in memory: the header or more.
    fn head(&self) -> &[u8] {
        match self {
            Self::File(file) => file.head(),
            Self::Joined(file) => file.header(),
        }
    }

    fn source(&self) -> &dyn TensorSource {
        match self {
            Self::File(file) => file.source(),
            Self::Joined(file) => file,
        }
    }

    /// The map, if there is one.
    fn map(&self) -> Option<&MappedFile> {
        match self {
            Self::File(FileBytes::Mapped(file)) => Some(file),
            Self::File(FileBytes::Read { .. } | FileBytes::Static(_)) | Self::Joined(_) => None,
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
