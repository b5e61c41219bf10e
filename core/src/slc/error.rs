//! Errors in a `.slc` file.

use crate::gguf::GgufError;
use core::fmt;

/// Why a `.slc` file was refused. Lengths and offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum SlcError {
    /// The slice is shorter than the part to be read: at least `at_least` bytes are needed. This is not a fault
    /// of the file.
    NeedMore { at_least: u64 },
    /// The file ends at `file_len`, but its contents extend to `needed`.
    Truncated { needed: u64, file_len: u64 },
    /// The file does not start with `SLCM`.
    NotSlc { magic: [u8; 4] },
    /// A version that is not supported.
    UnsupportedVersion { version: u32 },
    /// The file is longer than its header says.
    TrailingBytes { stated: u64, file_len: u64 },
    /// A limit of this module is exceeded: `what` is `value`, the maximum is `max`.
    OverLimit {
        what: &'static str,
        value: u64,
        max: u64,
    },
    /// Bytes that must be zero are not.
    Reserved,
    /// The checksum of everything before the payloads differs.
    Checksum { stated: u64, found: u64 },
    /// The GGUF header inside is broken. Byte offsets count from the GGUF header's start.
    Gguf(GgufError),
    /// The GGUF header does not end where the file header says.
    GgufHeaderLength { stated: u64, found: u64 },
    /// The number of tensors in the GGUF header is not the one in the file header.
    TensorCount { stated: u32, found: u64 },
    /// The number of matrices in records is not the one in the file header.
    MatrixCount { stated: u64, found: u64 },
    /// The header of the tensor with this index is wrong.
    Tensor { index: u32, problem: TensorProblem },
    /// The record of the gap with this index is wrong.
    Gap { index: u32, problem: GapProblem },
    /// The bytes of the GGUF file outside of header, tensors and gaps exceed the possible padding.
    Zeros { bytes: u64, max: u64 },
}

/// The errors in a tensor's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum TensorProblem {
    /// A version of the header that is not supported.
    Version(u8),
    /// A layout that is not supported.
    Layout(u8),
    /// A revision of the panel format that is not supported.
    PanelRevision(u8),
    /// A revision of the forms by row and by neuron that is not supported.
    NeuronRevision(u8),
    /// Type or shape differ from the GGUF header's.
    NotTheGgufs,
    /// The name, type or shape cannot have this layout.
    LayoutImpossible,
    /// A dimension does not fit in 32 bits.
    TooLarge,
    /// The length of the payload does not follow from type, shape and layout.
    Length { stated: u64, expected: u64 },
    /// The payload is not aligned.
    Misaligned { offset: u64, alignment: u64 },
    /// The payload starts before the previous one ends.
    Overlap { offset: u64, previous_end: u64 },
    /// The payload extends past the end of the file.
    OutsideFile { end: u64, file_len: u64 },
    /// Records of experts that are shorter than this tensor's part of them.
    RecordTooSmall {
        record_bytes: u64,
        matrix_bytes: u64,
    },
    /// The matrix at `offset` overlaps another tensor's at `other`, or a later matrix does.
    RecordOverlap { offset: u64, other: u64 },
    /// Separate scales, which no type of this version has.
    Scales,
    /// Bytes that must be zero are not.
    Reserved,
}

/// The errors in a gap's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum GapProblem {
    /// It is empty.
    Empty,
    /// It starts in the GGUF file before the previous one ends.
    Overlap { offset: u64, previous_end: u64 },
    /// It extends past the end of the GGUF file.
    OutsideGguf { end: u64, gguf_len: u64 },
    /// Its payload does not start where the previous payload ends.
    Misplaced { offset: u64, expected: u64 },
    /// Its payload extends past the end of this file.
    OutsideFile { end: u64, file_len: u64 },
}

impl fmt::Display for SlcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NeedMore { at_least } => write!(f, "{at_least} bytes of the file are needed"),
            Self::Truncated { needed, file_len } => {
                write!(f, "the file is cut: it has {file_len} bytes of {needed}")
            }
            Self::NotSlc { magic } => {
                write!(
                    f,
                    "not a .slc file: it starts with {:?}",
                    magic.escape_ascii()
                )
            }
            Self::UnsupportedVersion { version } => {
                write!(
                    f,
                    "version {version} of the .slc format is not supported (1 is)"
                )
            }
            Self::TrailingBytes { stated, file_len } => {
                write!(
                    f,
                    "the file has {file_len} bytes, more than the {stated} it states"
                )
            }
            Self::OverLimit { what, value, max } => {
                write!(f, "{what} is {value}, more than {max}")
            }
            Self::Reserved => f.write_str("reserved bytes of the file header are not zero"),
            Self::Checksum { stated, found } => write!(
                f,
                "the headers are damaged: their checksum is {found:#018x}, not {stated:#018x}"
            ),
            Self::Gguf(error) => write!(f, "GGUF header inside: {error}"),
            Self::GgufHeaderLength { stated, found } => {
                write!(f, "the GGUF header inside has {found} bytes, not {stated}")
            }
            Self::TensorCount { stated, found } => {
                write!(
                    f,
                    "the GGUF header inside has {found} tensors, not {stated}"
                )
            }
            Self::MatrixCount { stated, found } => {
                write!(f, "records have {found} matrices, not {stated}")
            }
            Self::Tensor { index, problem } => write!(f, "header of tensor {index}: {problem}"),
            Self::Gap { index, problem } => write!(f, "gap {index}: {problem}"),
            Self::Zeros { bytes, max } => write!(
                f,
                "{bytes} bytes of the GGUF file are in no part of this one, at most {max} may be"
            ),
        }
    }
}

impl fmt::Display for TensorProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Version(version) => write!(f, "version {version} is not supported (1 is)"),
            Self::Layout(layout) => write!(f, "layout {layout} is unknown"),
            Self::PanelRevision(revision) => write!(
                f,
                "panels of revision {revision} are not those of this build: pack the file again"
            ),
            Self::NeuronRevision(revision) => write!(
                f,
                "matrices by neuron of revision {revision} do not fit this build: pack the file again"
            ),
            Self::NotTheGgufs => f.write_str("type or shape differ from the GGUF header's"),
            Self::LayoutImpossible => {
                f.write_str("its name, type or shape cannot have this layout")
            }
            Self::TooLarge => f.write_str("a dimension is larger than 2^32 - 1"),
            Self::Length { stated, expected } => {
                write!(f, "the payload has {stated} bytes, expected {expected}")
            }
            Self::Misaligned { offset, alignment } => {
                write!(
                    f,
                    "the payload's offset {offset} is not a multiple of {alignment}"
                )
            }
            Self::Overlap {
                offset,
                previous_end,
            } => write!(
                f,
                "the payload starts at byte {offset}, before byte {previous_end}"
            ),
            Self::OutsideFile { end, file_len } => {
                write!(f, "the payload ends at byte {end} of a file of {file_len}")
            }
            Self::RecordTooSmall {
                record_bytes,
                matrix_bytes,
            } => write!(
                f,
                "records of {record_bytes} bytes are too short for matrices of {matrix_bytes}"
            ),
            Self::RecordOverlap { offset, other } => write!(
                f,
                "the matrices from byte {offset} on lie on the payload at byte {other}"
            ),
            Self::Scales => f.write_str("scales kept apart are not supported"),
            Self::Reserved => f.write_str("reserved bytes are not zero"),
        }
    }
}

impl fmt::Display for GapProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Empty => f.write_str("it has no bytes"),
            Self::Overlap {
                offset,
                previous_end,
            } => write!(
                f,
                "it starts at byte {offset} of the GGUF file, before byte {previous_end}"
            ),
            Self::OutsideGguf { end, gguf_len } => {
                write!(f, "it ends at byte {end} of a GGUF file of {gguf_len}")
            }
            Self::Misplaced { offset, expected } => {
                write!(
                    f,
                    "the payload starts at byte {offset}, expected {expected}"
                )
            }
            Self::OutsideFile { end, file_len } => {
                write!(f, "the payload ends at byte {end} of a file of {file_len}")
            }
        }
    }
}

impl core::error::Error for SlcError {}

impl From<GgufError> for SlcError {
    fn from(error: GgufError) -> Self {
        Self::Gguf(error)
    }
}
