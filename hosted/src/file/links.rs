//! A GGUF file whose experts are in other files, where another program put them.
//!
//! It has the metadata and the tensors outside of experts. Arrays in its metadata list the tensors of experts, and for
//! each expert's matrix the file and the offset; the bytes there are the ones GGUF would have. Once opened, it reads
//! like the complete file.
//!
//! | key | elements | what |
//! |---|---|---|
//! | `sluice.experts.files` | a file | its name, from the GGUF file's folder on where it is not absolute |
//! | `sluice.experts.file_bytes` | a file | its length: one of another length has changed |
//! | `sluice.experts.tensors` | a tensor | its name |
//! | `sluice.experts.dims` | three a tensor | row length, rows, experts |
//! | `sluice.experts.types` | a tensor | ggml's number of its type |
//! | `sluice.experts.file_index` | a matrix, tensor by tensor | which file it is in, from 0 |
//! | `sluice.experts.offsets` | a matrix | where it begins there |
//!
//! There may be thousands of files, so each is opened for a read and closed after it.
#![forbid(unsafe_code)]

use super::bytes::FileBytes;
use super::joined::{JoinedFile, Joining};
use super::read::read_exactly;
use super::{FileError, GgufHeader, MetaValue, open_regular};
use core::fmt;
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::gguf::{Array, Gguf, GgufError, Value};
use sluice_core::kernels::GgmlType;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Locations of experts, for the metadata of a GGUF file without them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpertLinks {
    files: Vec<String>,
    file_bytes: Vec<u64>,
    tensors: Vec<String>,
    dims: Vec<u64>,
    types: Vec<u32>,
    file_index: Vec<u32>,
    offsets: Vec<u64>,
}

/// Why experts in other files cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum LinkProblem {
    /// The number of elements of an array does not match the others.
    Count {
        key: &'static str,
        found: u64,
        expected: u64,
    },
    /// An element of an array is invalid.
    Element { key: &'static str, index: u64 },
    /// Row length, rows and experts of a tensor are not a shape of its type.
    Shape { name: String },
    /// A matrix is not inside its file.
    Outside {
        name: String,
        expert: u64,
        offset: u64,
        file: PathBuf,
    },
    /// The matrices in a file are together longer than the file.
    Overlap { name: String, file: PathBuf },
    /// The file's length has changed since the model was made.
    Changed { found: u64, expected: u64 },
    /// The model is also split, is packed, or is in memory.
    Kind { what: &'static str },
}

impl ExpertLinks {
    /// Adds a file, and returns its index for places.
    ///
    /// # Panics
    /// If there are 2^32.
    pub fn add_file(&mut self, name: String, len_bytes: u64) -> u32 {
        let index = u32::try_from(self.files.len()).expect("files are counted");
        self.files.push(name);
        self.file_bytes.push(len_bytes);
        index
    }

    /// Adds a tensor of row length, rows and experts `dims`: file and offset of each expert's matrix.
    pub fn add_tensor(&mut self, name: &str, dims: [u64; 3], ty: GgmlType, places: &[(u32, u64)]) {
        self.tensors.push(name.to_owned());
        self.dims.extend(dims);
        self.types.push(ty as u32);
        self.file_index.extend(places.iter().map(|place| place.0));
        self.offsets.extend(places.iter().map(|place| place.1));
    }

    /// Writes them to a header.
    pub fn write_to(&self, header: &mut GgufHeader) {
        header.set(FILES, MetaValue::strings(&self.files));
        header.set(FILE_BYTES, MetaValue::u64s(&self.file_bytes));
        header.set(TENSORS, MetaValue::strings(&self.tensors));
        header.set(DIMS, MetaValue::u64s(&self.dims));
        header.set(TYPES, MetaValue::u32s(&self.types));
        header.set(FILE_INDEX, MetaValue::u32s(&self.file_index));
        header.set(OFFSETS, MetaValue::u64s(&self.offsets));
    }
}

/// Whether a header links to experts in other files.
pub(super) fn are_in(gguf: &Gguf<'_>) -> bool {
    gguf.metadata().any(|(key, _)| KEYS.contains(&key))
}

/// The file at `path`, which is `first`, with the experts that its header names.
pub(super) fn open(path: &Path, first: FileBytes) -> Result<JoinedFile, FileError> {
    let name = path.display().to_string();
    let gguf = Gguf::parse(first.head(), first.source().len_bytes());
    let gguf = gguf.map_err(|error| FileError::of_header(name.clone(), first.head(), error))?;
    let header = Header { name, gguf };
    let mut joining = Joining::default();
    joining.header = GgufHeader::with_layout_of(&gguf);
    KEYS.iter().for_each(|key| joining.header.remove(key));
    for tensor in gguf.tensors() {
        joining.add_tensor(&tensor, 0);
    }
    // A link to the file may be in another folder than its experts.
    let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let files = header.files(place.parent().unwrap_or(Path::new("")))?;
    header.add_experts(&files, &mut joining)?;
    joining.add_part(path, first.into_source());
    for file in files {
        joining.add_part(&file.path.clone(), Box::new(file));
    }
    Ok(joining.finish())
}

/// The header of a file without experts.
struct Header<'g> {
    name: String,
    gguf: Gguf<'g>,
}

impl<'g> Header<'g> {
    fn error(&self, problem: LinkProblem) -> FileError {
        let name = self.name.clone();
        FileError::Links { name, problem }
    }

    fn key_error(&self, error: GgufError) -> FileError {
        FileError::of_header(self.name.clone(), self.gguf.header_bytes(), error)
    }

    /// The files, after a check of their lengths.
    fn files(&self, folder: &Path) -> Result<Vec<LinkedFile>, FileError> {
        let names = self.gguf.strings(FILES);
        let names = names.map_err(|error| self.key_error(error))?;
        let lengths = self.numbers(FILE_BYTES, names.len() as u64)?;
        let mut files = Vec::new();
        for (index, name) in (0..).zip(names) {
            if name.is_empty() || name.contains(&0) {
                return Err(self.error(LinkProblem::Element { key: FILES, index }));
            }
            let path = folder.join(OsStr::from_bytes(name));
            files.push(LinkedFile::open(path, self, lengths.at(self, index)?)?);
        }
        Ok(files)
    }

    fn add_experts(&self, files: &[LinkedFile], joining: &mut Joining) -> Result<(), FileError> {
        let names = self.gguf.strings(TENSORS);
        let names = names.map_err(|error| self.key_error(error))?;
        let n_tensors = names.len() as u64;
        let dims = self.numbers(DIMS, n_tensors.saturating_mul(3))?;
        let types = self.numbers(TYPES, n_tensors)?;
        let mut n_matrices = 0u64;
        for index in 0..n_tensors {
            n_matrices = n_matrices.saturating_add(dims.at(self, 3 * index + 2)?);
        }
        let indices = self.numbers(FILE_INDEX, n_matrices)?;
        let offsets = self.numbers(OFFSETS, n_matrices)?;
        let (mut next, mut total_bytes, mut pieces) = (0, 0u64, Vec::new());
        // Else a small file could be a model of any size.
        let mut left: Vec<u64> = files.iter().map(|file| file.len_bytes).collect();
        for (index, name) in (0..).zip(names) {
            let tensor = self.tensor(index, name, &dims, &types)?;
            total_bytes = total_bytes.saturating_add(tensor.matrix_bytes * tensor.dims[2]);
            if total_bytes > TOTAL_BYTES_MAX {
                return Err(tensor.misshapen(self));
            }
            pieces.clear();
            for (expert, at) in (0..tensor.dims[2]).zip(next..) {
                let number = usize::try_from(indices.at(self, at)?).unwrap_or(usize::MAX);
                let Some(file) = files.get(number) else {
                    let (key, index) = (FILE_INDEX, at);
                    return Err(self.error(LinkProblem::Element { key, index }));
                };
                let offset = offsets.at(self, at)?;
                let end = offset.checked_add(tensor.matrix_bytes);
                if end.is_none_or(|end| end > file.len_bytes) {
                    return Err(self.error(LinkProblem::Outside {
                        name: tensor.name.to_owned(),
                        expert,
                        offset,
                        file: file.path.clone(),
                    }));
                }
                let Some(fewer) = left[number].checked_sub(tensor.matrix_bytes) else {
                    return Err(self.error(LinkProblem::Overlap {
                        name: tensor.name.to_owned(),
                        file: file.path.clone(),
                    }));
                };
                left[number] = fewer;
                // The GGUF file is part 0.
                pieces.push((number + 1, offset));
            }
            next += tensor.dims[2];
            let pieces = pieces.iter().copied();
            joining.add_pieces(tensor.name, &tensor.dims, tensor.ty, pieces);
        }
        Ok(())
    }

    /// Tensor `index`: its name, its shape, its type.
    fn tensor(
        &self,
        index: u64,
        name: &'g [u8],
        dims: &Numbers<'_>,
        types: &Numbers<'_>,
    ) -> Result<Tensor<'g>, FileError> {
        let wrong = |key| self.error(LinkProblem::Element { key, index });
        let name = core::str::from_utf8(name).map_err(|_| wrong(TENSORS))?;
        let ty = u32::try_from(types.at(self, index)?).ok();
        let ty = ty.and_then(GgmlType::from_id).ok_or_else(|| wrong(TYPES))?;
        let mut tensor = Tensor {
            name,
            dims: [0; 3],
            ty,
            matrix_bytes: 0,
        };
        for (i, n) in (0..).zip(&mut tensor.dims) {
            *n = dims.at(self, 3 * index + i)?;
        }
        let [n_cols, n_rows, n_experts] = tensor.dims;
        let matrix = ty
            .row_bytes(n_cols)
            .and_then(|row| row.checked_mul(n_rows))
            .filter(|&len| len > 0 && len.checked_mul(n_experts).is_some());
        tensor.matrix_bytes = matrix.ok_or_else(|| tensor.misshapen(self))?;
        Ok(tensor)
    }

    /// The numbers at `key`, of which there are `expected`.
    fn numbers(&self, key: &'static str, expected: u64) -> Result<Numbers<'g>, FileError> {
        let array = self
            .gguf
            .array(key)
            .map_err(|error| self.key_error(error))?;
        match array.len() {
            found if found == expected => Ok(Numbers { key, array }),
            found => Err(self.error(LinkProblem::Count {
                key,
                found,
                expected,
            })),
        }
    }
}

/// A tensor of experts.
struct Tensor<'g> {
    name: &'g str,
    dims: [u64; 3],
    ty: GgmlType,
    /// Of one expert.
    matrix_bytes: u64,
}

impl Tensor<'_> {
    fn misshapen(&self, header: &Header<'_>) -> FileError {
        let name = self.name.to_owned();
        header.error(LinkProblem::Shape { name })
    }
}

/// An array of the metadata.
struct Numbers<'g> {
    key: &'static str,
    array: Array<'g>,
}

impl Numbers<'_> {
    fn at(&self, header: &Header<'_>, index: u64) -> Result<u64, FileError> {
        let number = self.array.get(index).and_then(Value::as_u64);
        let key = self.key;
        number.ok_or_else(|| header.error(LinkProblem::Element { key, index }))
    }
}

/// A file with experts, which is open while it is read.
struct LinkedFile {
    path: PathBuf,
    len_bytes: u64,
}

impl LinkedFile {
    fn open(path: PathBuf, header: &Header<'_>, expected: u64) -> Result<Self, FileError> {
        let opened = open_regular(&path).map_err(|error| match error {
            FileError::Open { path, error } => FileError::Blob {
                path,
                name: header.name.clone(),
                error,
            },
            other => other,
        });
        match opened?.1 {
            len_bytes if len_bytes == expected => Ok(Self { path, len_bytes }),
            found => Err(FileError::Links {
                name: path.display().to_string(),
                problem: LinkProblem::Changed { found, expected },
            }),
        }
    }
}

impl TensorSource for LinkedFile {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn slice(&self, _: u64, _: usize) -> Option<&[u8]> {
        None
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let (file, _) = open_regular(&self.path).map_err(|error| {
            let code = match error {
                FileError::Open { error, .. } => error.raw_os_error(),
                _ => None,
            };
            let code = code.unwrap_or(0);
            SourceError::Io { offset, code }
        })?;
        read_exactly(&file, self.len_bytes, offset, into)
    }
}

impl fmt::Display for LinkProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count {
                key,
                found,
                expected,
            } => write!(f, "{key} has {found} elements, expected {expected}"),
            Self::Element { key, index } => {
                write!(f, "element {index} of {key} is invalid")
            }
            Self::Shape { name } => {
                let name = name.escape_debug();
                write!(
                    f,
                    "{name} has a shape in {DIMS} that is not valid for its type"
                )
            }
            Self::Outside {
                name,
                expert,
                offset,
                file,
            } => write!(
                f,
                "expert {expert} of {} is at byte {offset} of {}, which is too short",
                name.escape_debug(),
                file.display()
            ),
            Self::Overlap { name, file } => write!(
                f,
                "the matrices in {} up to {} are together longer than the file",
                file.display(),
                name.escape_debug()
            ),
            Self::Changed { found, expected } => write!(
                f,
                "it has {found} bytes, but had {expected} when the model was imported: import it again"
            ),
            Self::Kind { what } => write!(
                f,
                "it is {what} whose experts are in other files ({FILES}), which cannot be combined"
            ),
        }
    }
}

const FILES: &str = "sluice.experts.files";
const FILE_BYTES: &str = "sluice.experts.file_bytes";
const TENSORS: &str = "sluice.experts.tensors";
const DIMS: &str = "sluice.experts.dims";
const TYPES: &str = "sluice.experts.types";
const FILE_INDEX: &str = "sluice.experts.file_index";
const OFFSETS: &str = "sluice.experts.offsets";

const KEYS: [&str; 7] = [FILES, FILE_BYTES, TENSORS, DIMS, TYPES, FILE_INDEX, OFFSETS];

/// Of all experts: with it, offsets in the joined file do not overflow.
const TOTAL_BYTES_MAX: u64 = 1 << 62;

#[cfg(test)]
mod tests;
