//! One GGUF file whose tensors are in several files: the header is generated, tensors are read where they are.
#![forbid(unsafe_code)]

use super::GgufHeader;
use core::ops::Range;
use sluice_core::gguf::TensorInfo;
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::kernels::GgmlType;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The file that the parts make up together.
pub(super) struct JoinedFile {
    parts: Vec<Part>,
    header: Vec<u8>,
    /// In the order of the joined file, disjoint. Gaps between them are zero.
    segments: Vec<Segment>,
    len_bytes: u64,
    /// The last error of a read, with the part that its offsets refer to.
    failed: Mutex<Option<(SourceError, usize)>>,
}

/// A file, and where it was opened.
struct Part {
    path: PathBuf,
    source: Box<dyn TensorSource + Send>,
}

/// Bytes of a tensor, or of one of its matrices.
struct Segment {
    joined: Range<u64>,
    part: usize,
    offset: u64,
}

/// A joined file being set up.
#[derive(Default)]
pub(super) struct Joining {
    pub(super) header: GgufHeader,
    parts: Vec<Part>,
    /// Offsets in the data section.
    segments: Vec<Segment>,
}

impl Joining {
    /// Adds the next part, counted from 0.
    pub(super) fn add_part(&mut self, path: &Path, source: Box<dyn TensorSource + Send>) {
        let path = path.to_owned();
        self.parts.push(Part { path, source });
    }

    /// Adds a tensor that is in a part as a whole.
    pub(super) fn add_tensor(&mut self, tensor: &TensorInfo<'_>, part: usize) {
        let dims = &tensor.dims[..tensor.n_dims];
        self.add_pieces(tensor.name, dims, tensor.ty, [(part, tensor.offset)]);
    }

    /// Adds a tensor in pieces of one length, each with its part and its offset there.
    ///
    /// # Panics
    /// As [`GgufHeader::add_tensor`].
    pub(super) fn add_pieces(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: GgmlType,
        pieces: impl IntoIterator<Item = (usize, u64), IntoIter: ExactSizeIterator>,
    ) {
        let index = self.header.add_tensor(name, dims, ty);
        let entry = &self.header.tensors()[index];
        let pieces = pieces.into_iter();
        let len = entry.len_bytes / pieces.len().max(1) as u64;
        let starts = (0..).map(|i| entry.offset + i * len);
        let segments = starts.zip(pieces).map(|(start, (part, offset))| Segment {
            joined: start..start + len,
            part,
            offset,
        });
        self.segments.extend(segments);
    }

    pub(super) fn finish(mut self) -> JoinedFile {
        let (header, data_offset) = self.header.unpadded();
        for Segment { joined, .. } in &mut self.segments {
            *joined = joined.start + data_offset..joined.end + data_offset;
        }
        JoinedFile {
            parts: self.parts,
            segments: self.segments,
            len_bytes: data_offset + self.header.data_bytes(),
            header,
            failed: Mutex::default(),
        }
    }
}

impl JoinedFile {
    /// Magic, metadata and tensor directory.
    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }

    /// Number of files it is in.
    pub(super) fn n_parts(&self) -> usize {
        self.parts.len()
    }

    /// Where a part was opened.
    pub(super) fn path(&self, part: usize) -> Option<&Path> {
        self.parts.get(part).map(|part| part.path.as_path())
    }

    /// The part that holds all of a range, and its offset there.
    pub(super) fn locate(&self, offset: u64, len: u64) -> Option<(usize, u64)> {
        let end = offset.checked_add(len)?;
        let segment = &self.segments[self.behind(offset)..].first()?;
        let within = segment.joined.start <= offset && end <= segment.joined.end;
        let at = segment.offset + offset.checked_sub(segment.joined.start)?;
        within.then_some((segment.part, at))
    }

    /// The part that an error of [`Self::read`] comes from, if it is the last one.
    pub(super) fn at_fault(&self, error: SourceError) -> Option<&Path> {
        let failed = *self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, part) = failed.filter(|&(last, _)| last == error)?;
        self.path(part)
    }

    fn inside(&self, offset: u64, len: usize) -> Option<(&dyn TensorSource, u64)> {
        let (part, at) = self.locate(offset, len as u64)?;
        Some((&*self.parts[part].source, at))
    }

    /// Index of the first segment that ends after `offset`.
    fn behind(&self, offset: u64) -> usize {
        self.segments
            .partition_point(|segment| segment.joined.end <= offset)
    }
}

impl TensorSource for JoinedFile {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let (part, at) = self.inside(offset, len)?;
        part.slice(at, len)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let end = offset.checked_add(into.len() as u64);
        let Some(end) = end.filter(|&end| end <= self.len_bytes) else {
            return Err(SourceError::OutOfRange {
                offset,
                len_bytes: into.len() as u64,
                source_len_bytes: self.len_bytes,
            });
        };
        into.fill(0);
        let target = |at: Range<u64>| {
            let at = at.start.max(offset)..at.end.min(end);
            let place = |n: u64| usize::try_from(n - offset).expect("it is inside a slice");
            (!at.is_empty()).then(|| (at.start, place(at.start)..place(at.end)))
        };
        if let Some((at, place)) = target(0..self.header.len() as u64) {
            let at = usize::try_from(at).expect("it is inside the header");
            let bytes = &self.header[at..at + place.len()];
            into[place].copy_from_slice(bytes);
        }
        for segment in &self.segments[self.behind(offset)..] {
            if segment.joined.start >= end {
                break;
            }
            let Some((at, place)) = target(segment.joined.clone()) else {
                continue;
            };
            let at = segment.offset + (at - segment.joined.start);
            let read = self.parts[segment.part].source.read(at, &mut into[place]);
            read.inspect_err(|&error| {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                *failed = Some((error, segment.part));
            })?;
        }
        Ok(())
    }

    fn release(&self, offset: u64, len: usize) {
        if let Some((part, at)) = self.inside(offset, len) {
            part.release(at, len);
        }
    }
}
