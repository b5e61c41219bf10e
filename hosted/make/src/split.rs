//! Splitting a GGUF file into parts and joining them, like llama.cpp's `gguf-split`.
//!
//! The first part has all metadata; the others only have their part number. Tensors keep their
//! order, types and bytes. All parts have one id, a hash of the whole model, so that parts of two models are not
//! taken for one. [`sluice::file::ModelFile`] reads parts.

use core::fmt::Write as _;
use core::num::NonZero;
use core::ops::Range;
use sha2::{Digest as _, Sha256};
use sluice::file::{
    COUNT_KEY, GgufHeader, ID_KEY, INDEX_KEY, OutputError, OutputFile, SPLIT_KEYS, TENSORS_KEY,
};
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::gguf::{Gguf, TensorInfo};
use sluice_core::model::LoadProgress;
use sluice_core::team::StopFlag;

/// The maximum size of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartMax {
    /// Maximum number of tensors.
    Tensors(NonZero<u64>),
    /// Maximum bytes of tensors, each padded to 32. A larger tensor gets a part of its own.
    Bytes(NonZero<u64>),
}

/// The files for a model's tensors.
#[derive(Clone, Debug)]
pub struct SplitPlan<'a> {
    tensors: Vec<TensorInfo<'a>>,
    parts: Vec<PlannedPart>,
    /// Of the header, where parts get an id.
    hash: Option<Sha256>,
}

/// One file of a plan.
#[derive(Clone, Debug)]
pub struct PlannedPart {
    header: GgufHeader,
    /// Indices of its tensors in the model.
    tensors: Range<usize>,
}

/// Why a model was not split or joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum SplitError {
    /// `split.count` is a u16, and each part has at least one tensor.
    #[error("{count} parts are too many: at most {PARTS_MAX} can be numbered; use larger parts")]
    Parts { count: usize },
    /// The model cannot be read.
    #[error("cannot read {tensor}: {error}")]
    Read { tensor: String, error: SourceError },
    /// A part cannot be written.
    #[error(transparent)]
    Write(#[from] OutputError),
    /// The stop flag was set.
    #[error("interrupted")]
    Stopped,
}

impl<'a> SplitPlan<'a> {
    /// All tensors in one file, without the keys of a part.
    #[must_use]
    pub fn one(gguf: &Gguf<'a>) -> Self {
        let tensors: Vec<_> = gguf.tensors().collect();
        let mut header = GgufHeader::with_layout_of(gguf);
        SPLIT_KEYS.iter().for_each(|key| header.remove(key));
        let all = 0..tensors.len();
        let parts = vec![PlannedPart::new(header, &tensors, all)];
        Self {
            tensors,
            parts,
            hash: None,
        }
    }

    /// Parts of up to `max`. With `first_is_bare`, the first has only metadata.
    ///
    /// # Errors
    /// [`SplitError::Parts`].
    pub fn split(gguf: &Gguf<'a>, max: PartMax, first_is_bare: bool) -> Result<Self, SplitError> {
        let tensors: Vec<_> = gguf.tensors().collect();
        let mut ranges = ranges(&tensors, max);
        if first_is_bare {
            ranges.insert(0, 0..0);
        }
        let too_many = |_| SplitError::Parts {
            count: ranges.len(),
        };
        let count = u16::try_from(ranges.len()).map_err(too_many)?;
        // A file has far fewer tensors than 2^31.
        let n_tensors = i32::try_from(tensors.len()).unwrap_or(i32::MAX);
        let part = |(index, range): (u16, &Range<usize>)| {
            let mut header = match index {
                0 => GgufHeader::with_layout_of(gguf),
                _ => GgufHeader::new(),
            };
            header.set(INDEX_KEY, index);
            header.set(COUNT_KEY, count);
            header.set(TENSORS_KEY, n_tensors);
            // Known when all tensors have been read.
            header.set(ID_KEY, id(Sha256::new()).as_str());
            PlannedPart::new(header, &tensors, range.clone())
        };
        let parts = (0..count).zip(&ranges).map(part).collect();
        let hash = Sha256::new_with_prefix(gguf.header_bytes());
        Ok(Self {
            tensors,
            parts,
            hash: Some(hash),
        })
    }

    /// The files in order.
    #[must_use]
    pub fn parts(&self) -> &[PlannedPart] {
        &self.parts
    }

    /// Total bytes of all files.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.parts.iter().map(PlannedPart::file_bytes).sum()
    }

    /// Total tensors of all files.
    #[must_use]
    pub fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Copies the tensors from `source` into the files. They get their final names once all are
    /// complete, the first one last, so that a reader of it finds the others. `progress` is called
    /// after every MiB.
    ///
    /// # Errors
    /// [`SplitError`]; no output remains, unless naming a file failed.
    ///
    /// # Panics
    /// If the number of outputs differs from the number of parts.
    pub fn write(
        self,
        source: &dyn TensorSource,
        outputs: Vec<OutputFile>,
        stop: &StopFlag,
        mut progress: impl FnMut(LoadProgress),
    ) -> Result<(), SplitError> {
        assert_eq!(outputs.len(), self.parts.len());
        let total_bytes = self.tensors.iter().map(|tensor| tensor.len_bytes).sum();
        let mut done_bytes = 0;
        let mut advance = |bytes: usize| {
            done_bytes += bytes as u64;
            progress(LoadProgress {
                done_bytes,
                total_bytes,
            });
            if stop.is_set() {
                return Err(SplitError::Stopped);
            }
            Ok(())
        };
        let mut hash = self.hash;
        let mut writers = Vec::new();
        for (part, output) in self.parts.into_iter().zip(outputs) {
            let header = part.header.clone();
            let writer = match &hash {
                Some(_) => header.start_provisional(output)?,
                None => header.start(output)?,
            };
            for (index, tensor) in self.tensors[part.tensors].iter().enumerate() {
                copy(source, tensor, |offset, piece| {
                    if let Some(hash) = &mut hash {
                        hash.update(piece);
                    }
                    writer.write(index, offset, piece)?;
                    advance(piece.len())
                })?;
            }
            writers.push((writer, part.header));
        }
        if let Some(hash) = hash {
            let id = id(hash);
            for (writer, header) in &mut writers {
                header.set(ID_KEY, id.as_str());
                writer.replace_header(header)?;
            }
        }
        let finished = writers.into_iter().rev();
        let finished = finished.map(|(writer, _)| writer.finish());
        Ok(finished.collect::<Result<_, _>>()?)
    }
}

impl PlannedPart {
    fn new(mut header: GgufHeader, tensors: &[TensorInfo<'_>], range: Range<usize>) -> Self {
        for tensor in &tensors[range.clone()] {
            header.add_tensor(tensor.name, &tensor.dims[..tensor.n_dims], tensor.ty);
        }
        let tensors = range;
        Self { header, tensors }
    }

    /// Number of tensors in the part.
    #[must_use]
    pub fn n_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// The names of the part's tensors.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors().iter().map(|tensor| &*tensor.name)
    }

    /// Bytes of the file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.header.file_bytes()
    }

    /// Bytes of its tensors, each padded.
    #[must_use]
    pub const fn data_bytes(&self) -> u64 {
        self.header.data_bytes()
    }
}

/// The tensors of each part, in order; never empty.
fn ranges(tensors: &[TensorInfo<'_>], max: PartMax) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    ranges.push(0..0);
    let mut bytes = 0;
    for (i, tensor) in tensors.iter().enumerate() {
        let own = tensor.len_bytes.next_multiple_of(PADDING_BYTES);
        let n_before = ranges.last().map_or(0, Range::len);
        let is_full = match max {
            PartMax::Tensors(max) => n_before as u64 >= max.get(),
            PartMax::Bytes(max) => n_before > 0 && bytes + own > max.get(),
        };
        if is_full {
            ranges.push(i..i);
            bytes = 0;
        }
        bytes += own;
        if let Some(last) = ranges.last_mut() {
            last.end = i + 1;
        }
    }
    ranges
}

/// Reads one tensor, a piece at a time, each with its offset.
fn copy(
    source: &dyn TensorSource,
    tensor: &TensorInfo<'_>,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), SplitError>,
) -> Result<(), SplitError> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut done = 0;
    while done < tensor.len_bytes {
        let left = usize::try_from(tensor.len_bytes - done).unwrap_or(PIECE_BYTES);
        let piece = &mut piece[..left.min(PIECE_BYTES)];
        let read = source.read(tensor.offset + done, piece);
        read.map_err(|error| SplitError::Read {
            tensor: tensor.name.to_owned(),
            error,
        })?;
        write(done, piece)?;
        done += piece.len() as u64;
    }
    Ok(())
}

/// In hexadecimal.
fn id(hash: Sha256) -> String {
    let mut id = String::with_capacity(64);
    for byte in hash.finalize() {
        let _written = write!(id, "{byte:02x}");
    }
    id
}

const PARTS_MAX: u16 = u16::MAX;

/// Bytes per read and write.
const PIECE_BYTES: usize = 1 << 20;

/// The alignment with which `gguf-split` counts a tensor's bytes.
const PADDING_BYTES: u64 = 32;
