//! Errors in a GGUF file, and their positions.

use core::fmt::{self, Write as _};

use super::value_type::ValueType;
use crate::kernels::GgmlType;
use static_assertions::const_assert;

/// Why a header was refused, or a metadata value could not be read.
///
/// Displays as a full message for a user, such as
/// ``tensor 12 ("blk.1.attn_q.weight") at byte 4711: row length 100 is not a multiple of 32 (Q4_0)``.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgufError {
    kind: GgufErrorKind,
    place: GgufPlace,
    at: u64,
    name: Name,
}

impl GgufError {
    pub(super) fn new(kind: GgufErrorKind, place: GgufPlace, at: u64) -> Self {
        Self {
            kind,
            place,
            at,
            name: Name::EMPTY,
        }
    }

    /// Adds the name of the key or tensor it is about, unless it has one.
    pub(super) fn named(mut self, name: &[u8]) -> Self {
        if self.name.len == 0 {
            self.name = Name::new(name);
        }
        self
    }

    /// The reason.
    pub fn kind(&self) -> GgufErrorKind {
        self.kind
    }

    /// Which part of the header it is in.
    pub fn place(&self) -> GgufPlace {
        self.place
    }

    /// Offset in the file of the field at fault, in bytes. Duplicates, overlaps and the errors
    /// of getters concern a whole entry and give its start; a missing key gives 0.
    pub fn at_byte(&self) -> u64 {
        self.at
    }

    /// The first 48 bytes of the key or tensor name it is about; empty if it has no name.
    pub fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// A key is absent, which callers with a default accept. See [`optional`].
    pub fn is_missing(&self) -> bool {
        self.kind == GgufErrorKind::Missing
    }
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_missing() {
            return write!(f, "metadata key {} is missing", self.name);
        }
        match self.place {
            GgufPlace::Header => f.write_str("header")?,
            GgufPlace::Metadata { index } => write!(f, "metadata entry {index}")?,
            GgufPlace::Tensor { index } => write!(f, "tensor {index}")?,
        }
        if self.name.len > 0 {
            write!(f, " ({})", self.name)?;
        }
        write!(f, " at byte {}: {}", self.at, self.kind)
    }
}

impl core::error::Error for GgufError {}

/// The part of the header that an error is in. Indices count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufPlace {
    /// Magic, version, counts; or the space that the counts claim.
    Header,
    /// A metadata entry.
    Metadata {
        /// Its index, in file order.
        index: u32,
    },
    /// A tensor info.
    Tensor {
        /// Its index, in file order.
        index: u32,
    },
}

/// The kinds of errors. Lengths and offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum GgufErrorKind {
    /// The slice is shorter than the file's header: at least `at_least` bytes are needed.
    NeedMore { at_least: u64 },
    /// The file ends at `file_len`, but its contents extend to `needed` or beyond.
    Truncated { needed: u64, file_len: u64 },
    /// The file starts with other bytes than `GGUF`.
    NotGguf { magic: [u8; 4] },
    /// The version field is plausible only with its bytes swapped.
    BigEndian { version: u32 },
    /// A version other than 2 and 3.
    UnsupportedVersion { version: u32 },
    /// A limit of this module is exceeded: `what` is `value`, the maximum is `max`.
    OverLimit {
        what: &'static str,
        value: u64,
        max: u64,
    },
    /// An empty key or tensor name.
    EmptyName,
    /// A key, tensor name or requested text has a byte sequence, at its byte `byte`, that is not
    /// UTF-8.
    NotUtf8 { byte: usize },
    /// An unknown value type.
    UnknownValueType { id: u32 },
    /// A bool that is neither 0 nor 1.
    InvalidBool { value: u8 },
    /// The key of metadata entry `first` occurs again.
    DuplicateKey { first: u32 },
    /// `general.alignment` is not a power of two.
    AlignmentNotPowerOfTwo { value: u64 },
    /// The name of tensor `first` occurs again.
    DuplicateTensor { first: u32 },
    /// An unknown ggml tensor type.
    UnknownTensorType { id: u32 },
    /// A precision lane, which only `.slc` files can hold.
    LaneOutsideSlc { ty: GgmlType },
    /// A row of `row_len` elements is not a whole number of blocks of type `ty`.
    RowNotWholeBlocks { row_len: u64, ty: GgmlType },
    /// The number of elements or bytes does not fit in 64 bits.
    SizeOverflow,
    /// A data offset that is not a multiple of the file's alignment.
    OffsetMisaligned { offset: u64, alignment: u64 },
    /// Data that starts at `offset` (counted from the file's start) extends beyond the end of the file.
    DataOutsideFile {
        offset: u64,
        len_bytes: u64,
        file_len: u64,
    },
    /// The data overlaps tensor `other`'s.
    DataOverlaps { other: u32 },
    /// A requested key is absent.
    Missing,
    /// A requested key has another type; `element` is the element type of an array.
    WrongType {
        expected: &'static str,
        found: ValueType,
        element: Option<ValueType>,
    },
    /// A requested integer does not fit in the type `target`.
    IntegerOutOfRange {
        negative: bool,
        magnitude: u64,
        target: &'static str,
    },
}

impl fmt::Display for GgufErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NeedMore { at_least } => {
                write!(
                    f,
                    "the header goes on; at least {at_least} bytes of the file are needed"
                )
            }
            Self::Truncated { needed, file_len } => write!(
                f,
                "the file ends at byte {file_len}, but what it announces needs {needed} bytes"
            ),
            Self::NotGguf { magic } => {
                write!(
                    f,
                    "not a GGUF file: it starts with \"{}\"",
                    magic.escape_ascii()
                )
            }
            Self::BigEndian { version } => write!(
                f,
                "big-endian GGUF (version {version}) is not supported; convert to little endian"
            ),
            Self::UnsupportedVersion { version } => {
                write!(f, "GGUF version {version} is not supported (2 and 3 are)")
            }
            Self::OverLimit { what, value, max } => {
                write!(f, "{what} {value} is above the limit of {max}")
            }
            Self::EmptyName => f.write_str("the name is empty"),
            Self::NotUtf8 { byte } => write!(f, "not UTF-8 at byte {byte} of the text"),
            Self::UnknownValueType { id } => write!(f, "unknown value type {id}"),
            Self::InvalidBool { value } => write!(f, "a bool is {value}, not 0 or 1"),
            Self::DuplicateKey { first } => {
                write!(f, "the key was used before, by metadata entry {first}")
            }
            Self::AlignmentNotPowerOfTwo { value } => {
                write!(f, "alignment {value} is not a power of two")
            }
            Self::Missing => f.write_str("the key is missing"),
            Self::WrongType {
                expected,
                found,
                element,
            } => {
                write!(f, "the value is of type {found}")?;
                if let Some(element) = element {
                    write!(f, " of {element}")?;
                }
                write!(f, ", expected {expected}")
            }
            Self::IntegerOutOfRange {
                negative,
                magnitude,
                target,
            } => {
                let sign = if negative { "-" } else { "" };
                write!(f, "{sign}{magnitude} does not fit in {target}")
            }
            _ => self.fmt_tensor(f),
        }
    }
}

impl GgufErrorKind {
    /// The kinds that only tensor infos have.
    fn fmt_tensor(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DuplicateTensor { first } => {
                write!(f, "the name was used before, by tensor {first}")
            }
            Self::UnknownTensorType { id } => write!(f, "unknown tensor type {id}"),
            Self::LaneOutsideSlc { ty } => {
                write!(
                    f,
                    "type {ty} exists in .slc files only: GGUF has no number for it"
                )
            }
            Self::RowNotWholeBlocks { row_len, ty } => {
                write!(
                    f,
                    "row length {row_len} is not a multiple of {} ({ty})",
                    ty.block_len()
                )
            }
            Self::SizeOverflow => f.write_str("the size does not fit in 64 bits"),
            Self::OffsetMisaligned { offset, alignment } => {
                write!(
                    f,
                    "data offset {offset} is not a multiple of the alignment {alignment}"
                )
            }
            Self::DataOutsideFile {
                offset,
                len_bytes,
                file_len,
            } => write!(
                f,
                "{len_bytes} bytes of data at byte {offset} do not fit in a file of {file_len}"
            ),
            Self::DataOverlaps { other } => {
                write!(f, "the data overlaps tensor {other}")
            }
            _ => Ok(()),
        }
    }
}

/// Turns an absent key into `None`, and leaves other errors as they are:
/// `optional(gguf.f32("llama.rope.freq_base"))?.unwrap_or(10_000.0)`.
///
/// # Errors
///
/// The error in `result`, except [`GgufErrorKind::Missing`].
pub fn optional<T>(result: Result<T, GgufError>) -> Result<Option<T>, GgufError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The start of a key or tensor name, copied so that an error outlives the file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Name {
    bytes: [u8; NAME_KEPT_BYTES],
    /// 0 to [`NAME_KEPT_BYTES`].
    len: u8,
    cut: bool,
}

impl Name {
    const EMPTY: Self = Self {
        bytes: [0; NAME_KEPT_BYTES],
        len: 0,
        cut: false,
    };

    fn new(name: &[u8]) -> Self {
        let mut kept = Self::EMPTY;
        for (slot, &byte) in kept.bytes.iter_mut().zip(name) {
            *slot = byte;
            kept.len += 1;
        }
        kept.cut = name.len() > NAME_KEPT_BYTES;
        kept
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

/// Quoted and escaped: a name from a hostile file must not reach a terminal as it is.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for chunk in self.as_bytes().utf8_chunks() {
            write!(f, "{}", chunk.valid().escape_debug())?;
            // The end of a cut name may fall inside a character.
            if !chunk.invalid().is_empty() && !self.cut {
                write!(f, "{}", chunk.invalid().escape_ascii())?;
            }
        }
        f.write_str(if self.cut { "…\"" } else { "\"" })
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const NAME_KEPT_BYTES: usize = 48;

// Errors travel by value through every read of the parser.
const_assert!(size_of::<GgufError>() <= 128);
