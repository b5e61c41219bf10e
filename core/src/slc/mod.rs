#![doc = include_str!("slc.md")]
//!
//! # This module
//!
//! [`Slc::parse`] reads and checks everything before the payloads; afterwards every accessor is
//! total. [`crate::model::ModelWeights::in_place`] runs such a file without copying a weight. To make
//! one, see [`FileHeader`] and [`TensorHeader`].
#![forbid(unsafe_code)]

mod error;
mod header;
mod records;
#[cfg(test)]
mod tests;

pub use error::{GapProblem, SlcError, TensorProblem};
pub use header::{
    GAP_BYTES, Gap, Layout, MATRIX_BYTES, NEURON_REVISION, PANEL_COLUMNS_MAX, PANEL_REVISION,
    TENSOR_HEADER_BYTES, TensorHeader,
};
pub use records::{RECORD_MATRICES_MAX, place_records};

use crate::gguf::{Gguf, HEADER_BYTES_MAX, TENSOR_COUNT_MAX, TensorInfo};
use crate::hash::Hash64;
use core::fmt;
use header::u64_at;
use records::Places;
use static_assertions::{const_assert, const_assert_eq};

/// The first bytes of a `.slc` file.
pub const MAGIC: [u8; 4] = *b"SLCM";
/// The version that is read and written.
pub const VERSION: u32 = 1;
/// Bytes of the file header; the GGUF header follows.
pub const FILE_HEADER_BYTES: usize = 128;
/// Alignment of payloads, in bytes.
pub const ALIGN: u64 = 4096;
/// Alignment of large payloads, in bytes.
pub const LARGE_ALIGN: u64 = 2 << 20;
/// Minimum size of a large payload, in bytes.
pub const LARGE_BYTES_MIN: u64 = 64 << 20;
/// Maximum length of an implied gap of zeros, in bytes.
pub const GAP_ZEROS_MAX: u64 = 64 << 10;

/// Byte ranges of the file header.
mod field {
    use core::ops::Range;
    pub(super) const MAGIC: Range<usize> = 0..4;
    pub(super) const VERSION: Range<usize> = 4..8;
    pub(super) const FILE_LEN: Range<usize> = 8..16;
    pub(super) const GGUF_LEN: Range<usize> = 16..24;
    pub(super) const GGUF_HEADER_LEN: Range<usize> = 24..32;
    pub(super) const TENSORS: Range<usize> = 32..36;
    pub(super) const GAPS: Range<usize> = 36..40;
    pub(super) const SHA256: Range<usize> = 40..72;
    pub(super) const MATRICES: Range<usize> = 72..80;
    pub(super) const RESERVED: Range<usize> = 80..120;
    pub(super) const CHECKSUM: Range<usize> = 120..128;
}

const_assert_eq!(field::GGUF_HEADER_LEN.end, field::TENSORS.start);
const_assert_eq!(field::GAPS.end, field::SHA256.start);
const_assert_eq!(field::SHA256.end, field::MATRICES.start);
const_assert_eq!(field::MATRICES.end, field::RESERVED.start);
const_assert_eq!(field::RESERVED.end, field::CHECKSUM.start);
const_assert_eq!(field::CHECKSUM.end, FILE_HEADER_BYTES);
const_assert!(LARGE_ALIGN.is_multiple_of(ALIGN));

/// The file header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Bytes of the `.slc` file.
    pub file_len: u64,
    /// Bytes of the GGUF file.
    pub gguf_len: u64,
    /// Bytes of the GGUF file's header, without padding.
    pub gguf_header_len: u64,
    /// Tensors of the GGUF file.
    pub n_tensors: u32,
    /// Gaps that are stored.
    pub n_gaps: u32,
    /// SHA-256 of the GGUF file.
    pub gguf_sha256: [u8; 32],
    /// Matrices in records, which have checksums of their own.
    pub n_matrices: u64,
}

impl FileHeader {
    /// The bytes in the file, without the checksum, which [`seal`] adds.
    pub fn to_bytes(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        bytes[field::MAGIC].copy_from_slice(&MAGIC);
        bytes[field::VERSION].copy_from_slice(&VERSION.to_le_bytes());
        bytes[field::FILE_LEN].copy_from_slice(&self.file_len.to_le_bytes());
        bytes[field::GGUF_LEN].copy_from_slice(&self.gguf_len.to_le_bytes());
        bytes[field::GGUF_HEADER_LEN].copy_from_slice(&self.gguf_header_len.to_le_bytes());
        bytes[field::TENSORS].copy_from_slice(&self.n_tensors.to_le_bytes());
        bytes[field::GAPS].copy_from_slice(&self.n_gaps.to_le_bytes());
        bytes[field::SHA256].copy_from_slice(&self.gguf_sha256);
        bytes[field::MATRICES].copy_from_slice(&self.n_matrices.to_le_bytes());
        bytes
    }

    /// Where the tensor table starts.
    pub const fn table_offset(&self) -> u64 {
        (FILE_HEADER_BYTES as u64 + self.gguf_header_len).next_multiple_of(64)
    }

    /// Where the gap table starts.
    pub const fn gaps_offset(&self) -> u64 {
        self.table_offset() + self.n_tensors as u64 * TENSOR_HEADER_BYTES as u64
    }

    /// Where the table of the matrices' checksums starts.
    pub const fn matrices_offset(&self) -> u64 {
        self.gaps_offset() + self.n_gaps as u64 * GAP_BYTES as u64
    }

    /// Where payloads may start.
    pub const fn payload_offset(&self) -> u64 {
        let table_bytes = self.n_matrices * MATRIX_BYTES as u64;
        (self.matrices_offset() + table_bytes).next_multiple_of(ALIGN)
    }

    /// Reads the fixed fields and checks that they are possible.
    fn parse(head: &[u8], file_len: u64) -> Result<Self, SlcError> {
        let bytes = head_bytes(head, FILE_HEADER_BYTES as u64, file_len)?;
        let magic = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if magic != MAGIC {
            return Err(SlcError::NotSlc { magic });
        }
        let version = u32_at(bytes, field::VERSION.start);
        if version != VERSION {
            return Err(SlcError::UnsupportedVersion { version });
        }
        let mut gguf_sha256 = [0; 32];
        gguf_sha256.copy_from_slice(&bytes[field::SHA256]);
        let header = Self {
            file_len: u64_at(bytes, field::FILE_LEN.start),
            gguf_len: u64_at(bytes, field::GGUF_LEN.start),
            gguf_header_len: u64_at(bytes, field::GGUF_HEADER_LEN.start),
            n_tensors: u32_at(bytes, field::TENSORS.start),
            n_gaps: u32_at(bytes, field::GAPS.start),
            gguf_sha256,
            n_matrices: u64_at(bytes, field::MATRICES.start),
        };
        let stated = header.file_len;
        if file_len < stated {
            let needed = stated;
            return Err(SlcError::Truncated { needed, file_len });
        }
        if file_len > stated {
            return Err(SlcError::TrailingBytes { stated, file_len });
        }
        let limits = [
            (
                "GGUF header length",
                header.gguf_header_len,
                HEADER_BYTES_MAX,
            ),
            ("tensor count", header.n_tensors.into(), TENSOR_COUNT_MAX),
            // Before, between and after the tensors.
            (
                "gap count",
                header.n_gaps.into(),
                u64::from(header.n_tensors) + 1,
            ),
            // Each has a page.
            ("matrix count", header.n_matrices, file_len / ALIGN),
        ];
        for (what, value, max) in limits {
            if value > max {
                return Err(SlcError::OverLimit { what, value, max });
            }
        }
        if bytes[field::RESERVED] != [0; 40] {
            return Err(SlcError::Reserved);
        }
        Ok(header)
    }
}

/// The first `len` bytes of the file, if `head` holds them.
fn head_bytes(head: &[u8], len: u64, file_len: u64) -> Result<&[u8], SlcError> {
    if len > file_len {
        let needed = len;
        return Err(SlcError::Truncated { needed, file_len });
    }
    let bytes = usize::try_from(len).ok().and_then(|len| head.get(..len));
    bytes.ok_or(SlcError::NeedMore { at_least: len })
}

/// Writes the checksum into everything before the payloads.
///
/// # Panics
/// If `head` is shorter than a file header.
pub fn seal(head: &mut [u8]) {
    let sum = checksum(head);
    head[field::CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

fn checksum(head: &[u8]) -> u64 {
    let mut hash = Hash64::new();
    hash.write(&head[..field::CHECKSUM.start]);
    hash.write(&head[FILE_HEADER_BYTES..]);
    hash.finish()
}

/// A checked view of everything before the payloads of a `.slc` file.
#[derive(Clone, Copy)]
pub struct Slc<'a> {
    header: FileHeader,
    gguf: Gguf<'a>,
    table: &'a [[u8; TENSOR_HEADER_BYTES]],
    gaps: &'a [[u8; GAP_BYTES]],
    matrices: &'a [[u8; MATRIX_BYTES]],
}

impl<'a> Slc<'a> {
    /// Whether a file that starts with `bytes` has the `.slc` magic.
    pub fn is_slc(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Reads and checks everything before the payloads, as the format's description says.
    ///
    /// `head` holds the file's first bytes, at least up to the payloads; it may be the whole
    /// file. `file_len` is the length of the whole file.
    ///
    /// # Errors
    /// The fault and its position. Only [`SlcError::NeedMore`] is not a fault of the file: `head` is too short.
    pub fn parse(head: &'a [u8], file_len: u64) -> Result<Self, SlcError> {
        let header = FileHeader::parse(head, file_len)?;
        let head = head_bytes(head, header.payload_offset(), file_len)?;
        let stated = u64_at(head, field::CHECKSUM.start);
        let found = checksum(head);
        if stated != found {
            return Err(SlcError::Checksum { stated, found });
        }
        let (part, rest) = head[FILE_HEADER_BYTES..].split_at(to_usize(header.gguf_header_len));
        let gguf = Gguf::parse_with_lanes(part, header.gguf_len)?;
        if gguf.header_bytes().len() != part.len() {
            return Err(SlcError::GgufHeaderLength {
                stated: header.gguf_header_len,
                found: gguf.header_bytes().len() as u64,
            });
        }
        if gguf.tensor_count() != u64::from(header.n_tensors) {
            return Err(SlcError::TensorCount {
                stated: header.n_tensors,
                found: gguf.tensor_count(),
            });
        }
        let padding = FILE_HEADER_BYTES + part.len();
        let rest = &rest[to_usize(header.table_offset()) - padding..];
        let (table, rest) = rest.split_at(to_usize(header.gaps_offset() - header.table_offset()));
        let (gaps, rest) = rest.split_at(to_usize(header.matrices_offset() - header.gaps_offset()));
        let slc = Self {
            header,
            gguf,
            table: table.as_chunks().0,
            gaps: gaps.as_chunks().0,
            matrices: &rest.as_chunks().0[..to_usize(header.n_matrices)],
        };
        let end = slc.check_tensors()?;
        slc.check_gaps(end)?;
        Ok(slc)
    }

    /// Checks the table; returns the end of the tensors' payloads.
    fn check_tensors(&self) -> Result<u64, SlcError> {
        let mut places = Places::new(self.header.payload_offset(), self.header.file_len);
        for (index, (bytes, tensor)) in (0..).zip(self.table.iter().zip(self.gguf.tensors())) {
            TensorHeader::from_bytes(bytes, &tensor)
                .and_then(|header| places.take(&header))
                .map_err(|problem| SlcError::Tensor { index, problem })?;
        }
        let in_records = self.tensors().map(|(_, header)| header.n_checksums());
        let (stated, found) = (self.header.n_matrices, in_records.sum());
        if stated != found {
            return Err(SlcError::MatrixCount { stated, found });
        }
        Ok(places.end())
    }

    /// Checks the gaps, whose payloads start at `end`.
    fn check_gaps(&self, mut end: u64) -> Result<(), SlcError> {
        let FileHeader {
            gguf_len, file_len, ..
        } = self.header;
        let mut gguf_end = self.header.gguf_header_len;
        let mut covered = gguf_end;
        for tensor in self.gguf.tensors() {
            covered = covered.saturating_add(tensor.len_bytes);
        }
        for (index, gap) in (0..).zip(self.gaps()) {
            check_gap(&gap, gguf_end, gguf_len, end, file_len)
                .map_err(|problem| SlcError::Gap { index, problem })?;
            gguf_end = gap.gguf_offset + gap.len_bytes;
            end += gap.len_bytes;
            covered = covered.saturating_add(gap.len_bytes);
        }
        if end.max(self.header.payload_offset()) != file_len {
            let stated = end.max(self.header.payload_offset());
            return Err(SlcError::TrailingBytes { stated, file_len });
        }
        let bytes = gguf_len.saturating_sub(covered);
        let max = (u64::from(self.header.n_tensors) + 1) * GAP_ZEROS_MAX;
        if bytes > max {
            return Err(SlcError::Zeros { bytes, max });
        }
        Ok(())
    }

    /// The file header.
    pub const fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The GGUF header. Tensor offsets refer to the GGUF file, not to this one.
    pub const fn gguf(&self) -> &Gguf<'a> {
        &self.gguf
    }

    /// The header of the GGUF's tensor `tensor`, at `index` there.
    pub fn tensor_header(&self, index: usize, tensor: &TensorInfo<'_>) -> Option<TensorHeader> {
        TensorHeader::from_bytes(self.table.get(index)?, tensor).ok()
    }

    /// All tensors: each one's GGUF info, and its header here.
    pub fn tensors(&self) -> impl Iterator<Item = (TensorInfo<'a>, TensorHeader)> + use<'a> {
        let (table, tensors) = (self.table, self.gguf.tensors());
        // Every header was read before.
        tensors.zip(table).map_while(|(tensor, bytes)| {
            Some((tensor, TensorHeader::from_bytes(bytes, &tensor).ok()?))
        })
    }

    /// The checksums of the matrices of the GGUF's tensor at `index`, if they are in records.
    pub fn matrix_checksums(&self, index: usize) -> Option<impl Iterator<Item = u64> + use<'a>> {
        let mut before = 0;
        for (i, (_, header)) in self.tensors().enumerate() {
            let n = header.n_checksums();
            if i == index {
                let of_tensor = self.matrices.get(to_usize(before)..to_usize(before + n))?;
                let sums = of_tensor.iter().map(|sum| u64::from_le_bytes(*sum));
                return (n > 0).then_some(sums);
            }
            before += n;
        }
        None
    }

    /// All gaps, in the order of the GGUF file.
    pub fn gaps(&self) -> impl Iterator<Item = Gap> + use<'a> {
        self.gaps.iter().map(Gap::from_bytes)
    }
}

fn check_gap(
    gap: &Gap,
    previous_end: u64,
    gguf_len: u64,
    expected: u64,
    file_len: u64,
) -> Result<(), GapProblem> {
    let (offset, len) = (gap.gguf_offset, gap.len_bytes);
    if len == 0 {
        return Err(GapProblem::Empty);
    }
    if offset < previous_end {
        return Err(GapProblem::Overlap {
            offset,
            previous_end,
        });
    }
    let end = offset.saturating_add(len);
    if end > gguf_len {
        return Err(GapProblem::OutsideGguf { end, gguf_len });
    }
    if gap.offset != expected {
        let offset = gap.offset;
        return Err(GapProblem::Misplaced { offset, expected });
    }
    let end = gap.offset.saturating_add(len);
    if end > file_len {
        return Err(GapProblem::OutsideFile { end, file_len });
    }
    Ok(())
}

impl fmt::Debug for Slc<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slc")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

/// A length that was checked to be inside a slice.
fn to_usize(len: u64) -> usize {
    usize::try_from(len).expect("checked against the slice before")
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes[at..].first_chunk();
    u32::from_le_bytes(*four.expect("every caller reads inside a fixed record"))
}
