//! A model in several GGUF files, read as the one file that they were split from.
//!
//! The parts are called `NAME-00001-of-00003.gguf` and so on. `split.no` (from 0) and `split.count` give each part's
//! index and the number of parts, `split.tensors.count` the number of tensors in all parts together.
//! The first part has the metadata, which others may repeat. Source: llama.cpp, `gguf-split`.
//!
//! Parts that Sluice wrote have a `sluice.split.id`, a hash of the whole model: parts of two models, of which an
//! interrupted program has replaced one by the other, do not pass for one. llama.cpp copies the id into the first part
//! alone, so a later part without one is accepted.
#![forbid(unsafe_code)]

use super::bytes::{FileBytes, LoadMode};
use super::joined::{JoinedFile, Joining};
use super::{FileError, GgufHeader};
use core::fmt;
use sluice_core::gguf::{Gguf, GgufError, optional};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// Which part of a model a file is, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitPart {
    /// From 0.
    pub index: u64,
    /// Number of parts, at least 2.
    pub count: u64,
    /// Number of tensors in all parts together, if given.
    pub n_tensors: Option<u64>,
}

/// Why a file cannot be read as a part of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum SplitProblem {
    /// It was named in place of the first part.
    NotFirst { part: SplitPart, first: PathBuf },
    /// The first part is not named as a part, so the others' names are unknown.
    Name { count: u64 },
    /// It is not the part that its name gives.
    Other {
        found: Option<SplitPart>,
        expected: SplitPart,
    },
    /// An earlier part has a tensor of this name.
    Tensor { name: String },
    /// A key's value differs from the first part's.
    Metadata { key: String },
    /// Its id differs from the first part's.
    Id,
    /// The number of tensors in all parts together differs from the one given.
    TensorCount { found: u64, expected: u64 },
    /// It is in memory, without the others.
    InMemory { part: SplitPart },
}

impl SplitPart {
    /// Reads the part from a header; `None` for a model in one file.
    ///
    /// # Errors
    /// One of the three keys is not a number, or the part's index is missing.
    pub fn of(gguf: &Gguf<'_>) -> Result<Option<Self>, GgufError> {
        let count = optional(gguf.u64(COUNT_KEY))?;
        // Where parts were joined, llama.cpp leaves 0.
        let Some(count) = count.filter(|&count| count > 1) else {
            return Ok(None);
        };
        Ok(Some(Self {
            index: gguf.u64(INDEX_KEY)?,
            count,
            n_tensors: optional(gguf.u64(TENSORS_KEY))?,
        }))
    }
}

/// Reads the headers of all parts. `first` is the first, by `path`, whose header gives `part`.
pub(super) fn open(
    path: &Path,
    part: SplitPart,
    first: FileBytes,
    mode: LoadMode,
) -> Result<JoinedFile, FileError> {
    let stem = stem(path, part)?;
    let mut parts = Parts::default();
    parts.add(path, SplitPart { index: 0, ..part }, first)?;
    for index in 1..part.count {
        let path = split_path(&stem, index, part.count);
        let file = FileBytes::open(&path, mode).map_err(|error| match error {
            FileError::Open { path, error } if is_absent(&error) => FileError::Part {
                path,
                count: part.count,
                error,
            },
            other => other,
        });
        parts.add(&path, SplitPart { index, ..part }, file?)?;
    }
    if let Some(expected) = part.n_tensors
        && let found = parts.names.len() as u64
        && found != expected
    {
        return Err(error(path, SplitProblem::TensorCount { found, expected }));
    }
    Ok(parts.joining.finish())
}

/// The parts of a file.
#[derive(Default)]
struct Parts {
    joining: Joining,
    /// The first part's.
    id: Option<String>,
    names: HashSet<String>,
}

impl Parts {
    /// Adds the next part, which must be `expected`.
    fn add(&mut self, path: &Path, expected: SplitPart, file: FileBytes) -> Result<(), FileError> {
        let gguf = Gguf::parse(file.head(), file.source().len_bytes());
        let gguf = gguf.map_err(|error| header_error(path, file.head(), error))?;
        let found = SplitPart::of(&gguf);
        let found = found.map_err(|error| header_error(path, gguf.header_bytes(), error))?;
        if found != Some(expected) {
            return Err(error(path, SplitProblem::Other { found, expected }));
        }
        let id = optional(gguf.str(ID_KEY)).map(|id| id.map(str::to_owned));
        let id = id.map_err(|error| header_error(path, gguf.header_bytes(), error))?;
        let part = usize::try_from(expected.index).expect("files are counted");
        if part == 0 {
            self.id = id;
            let mut header = GgufHeader::with_layout_of(&gguf);
            SPLIT_KEYS.iter().for_each(|key| header.remove(key));
            self.joining.header = header;
        } else if id.is_some() && id != self.id {
            return Err(error(path, SplitProblem::Id));
        } else {
            self.add_metadata(path, &gguf)?;
        }
        for tensor in gguf.tensors() {
            if !self.names.insert(tensor.name.to_owned()) {
                let name = tensor.name.to_owned();
                return Err(error(path, SplitProblem::Tensor { name }));
            }
            self.joining.add_tensor(&tensor, part);
        }
        self.joining.add_part(path, file.into_source());
        Ok(())
    }

    /// Checks the keys of a part that is not the first, except those about the file itself.
    fn add_metadata(&mut self, path: &Path, gguf: &Gguf<'_>) -> Result<(), FileError> {
        let header = &mut self.joining.header;
        let of_model = |key: &str| key != ALIGNMENT_KEY && !SPLIT_KEYS.contains(&key);
        for (key, value) in gguf.metadata().filter(|(key, _)| of_model(key)) {
            let value = value.into();
            match header.get(key) {
                None => header.set(key, value),
                Some(there) if *there == value => {}
                Some(_) => {
                    let key = key.to_owned();
                    return Err(error(path, SplitProblem::Metadata { key }));
                }
            }
        }
        Ok(())
    }
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// The name of a part: `stem` and `-00001-of-00003.gguf` for `index` 0 of 3.
#[must_use]
pub fn split_path(stem: &Path, index: u64, count: u64) -> PathBuf {
    let mut path = OsString::from(stem);
    path.push(ending(index, count));
    path.into()
}

fn ending(index: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", index + 1)
}

/// The first part's name up to its ending.
fn stem(path: &Path, part: SplitPart) -> Result<PathBuf, FileError> {
    let without = |index| {
        let ending = ending(index, part.count);
        let stem = path.as_os_str().as_bytes().strip_suffix(ending.as_bytes());
        stem.map(|stem| PathBuf::from(OsString::from_vec(stem.to_vec())))
    };
    let first = SplitPart { index: 0, ..part };
    let problem = match (part.index, without(0), without(part.index)) {
        (0, Some(stem), _) => return Ok(stem),
        (0, None, _) => SplitProblem::Name { count: part.count },
        (_, Some(_), _) => SplitProblem::Other {
            found: Some(part),
            expected: first,
        },
        (_, None, Some(stem)) => SplitProblem::NotFirst {
            part,
            first: split_path(&stem, 0, part.count),
        },
        (_, None, None) => SplitProblem::NotFirst {
            part,
            first: split_path(Path::new("NAME"), 0, part.count),
        },
    };
    Err(error(path, problem))
}

fn header_error(path: &Path, head: &[u8], error: GgufError) -> FileError {
    FileError::of_header(path.display().to_string(), head, error)
}

fn error(path: &Path, problem: SplitProblem) -> FileError {
    FileError::Split {
        name: path.display().to_string(),
        problem,
    }
}

impl fmt::Display for SplitPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "part {} of {}", self.index.saturating_add(1), self.count)?;
        match self.n_tensors {
            Some(n) => write!(f, " of a model of {n} tensors"),
            None => f.write_str(" of a model"),
        }
    }
}

impl fmt::Display for SplitProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFirst { part, first } => {
                let first = first.display();
                write!(
                    f,
                    "it is {part}: name the first part, {first}; the others are found from there"
                )
            }
            Self::Name { count } => write!(
                f,
                "it is the first of {count} parts of a model, but its name does not end in {}: restore the names of \
                 all parts, in one folder",
                ending(0, *count)
            ),
            Self::Other {
                found: Some(found),
                expected,
            } => write!(f, "it is {found}, expected {expected}: download it again"),
            Self::Other {
                found: None,
                expected,
            } => write!(
                f,
                "it is a model in one file, expected {expected}: download it again"
            ),
            Self::Tensor { name } => write!(
                f,
                "an earlier part also has tensor {}: the parts belong to different models; download them again",
                name.escape_debug()
            ),
            Self::Metadata { key } => write!(
                f,
                "{} does not match the first part: the parts belong to different models; download them again",
                key.escape_debug()
            ),
            Self::Id => write!(
                f,
                "its {ID_KEY} differs from the first part's: the parts belong to different models, perhaps because \
                 replacing them was interrupted; split the model or download it again"
            ),
            Self::TensorCount { found, expected } => write!(
                f,
                "all parts together have {found} tensors, but {TENSORS_KEY} is {expected}: download them again"
            ),
            Self::InMemory { part } => write!(
                f,
                "it is {part}, but a model in memory cannot have other parts: merge them first (sluice gguf-split \
                 --merge)"
            ),
        }
    }
}

/// Which part a file is, from 0.
pub const INDEX_KEY: &str = "split.no";
/// Number of parts.
pub const COUNT_KEY: &str = "split.count";
/// Number of tensors in all parts together.
pub const TENSORS_KEY: &str = "split.tensors.count";

/// The parts' common id, where Sluice wrote them.
pub const ID_KEY: &str = "sluice.split.id";

/// The keys of parts, which a model in one file does not have.
pub const SPLIT_KEYS: [&str; 4] = [INDEX_KEY, COUNT_KEY, TENSORS_KEY, ID_KEY];

const ALIGNMENT_KEY: &str = "general.alignment";

#[cfg(test)]
mod tests;
