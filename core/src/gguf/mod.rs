//! A zero-copy view of a GGUF file's header: metadata and tensor directory.
//!
//! GGUF is the file format of ggml and llama.cpp. [`Gguf::parse`] walks the header once and
//! checks every offset, length, count and string against the bytes given and against the
//! limits below *before* it uses them; afterwards every accessor is total: it neither fails nor
//! panics. A hostile file gets a [`GgufError`] with the fault and its byte offset. Only
//! the header's bytes are needed; tensor data is read elsewhere, through a
//! [`source::TensorSource`].
//!
//! # Layout
//!
//! Everything is little endian and unaligned; a *string* is a `u64` length and that many bytes.
//!
//! ```text
//! magic "GGUF", or "PWRI" of PowerInfer | version u32 | tensor count u64 | metadata count u64
//! metadata entry, repeated:  key string | value type u32 | value
//!     value of type 9 (array):  element type u32 | length u64 | elements
//! tensor info, repeated:     name string | n_dims u32 | n_dims x u64 | ggml type u32 | offset u64
//! padding to a multiple of `general.alignment` (32 where the key is absent)
//! tensor data: `offset` above counts from here
//! ```
//!
//! Little-endian versions 2 and 3 are supported; their layout is the same. Version 1 had 32-bit
//! counts and lengths and was out of use within weeks, and big-endian files exist only for big-endian
//! machines: both are refused by name.
//!
//! # Time and memory
//!
//! Nothing is allocated. Parsing is one walk over the header and a sort for the duplicate
//! checks, which runs in 8 KiB of stack (see `order.rs`: at most 4 passes over the keys and 65
//! over the tensor infos, even for a file made to be slow). [`Gguf`] keeps the
//! offsets of the first 128 metadata entries, so that looking up a key never walks a
//! vocabulary; entries beyond those are found by walking from the 128th. A tensor is looked up
//! by walking the tensor infos, which hold no long parts.
//!
//! Source: the GGUF specification (`docs/gguf.md` of ggml-org/ggml) and, where it says nothing,
//! the behaviour of `gguf.cpp` in the same project.
#![forbid(unsafe_code)]

mod cursor;
mod error;
mod order;
pub mod source;
mod tensor;
#[cfg(test)]
mod tests;
mod value;
mod value_type;

use core::fmt;

use cursor::Cursor;
pub use error::{GgufError, GgufErrorKind, GgufPlace, optional};
pub use tensor::{TensorInfo, Tensors};
pub use value::{Array, ArrayIter, Strings, Value};
pub use value_type::ValueType;

/// A validated view of a GGUF header. Copying it copies about 600 bytes, never the file.
#[derive(Clone, Copy)]
pub struct Gguf<'a> {
    /// From the magic to the end of the tensor infos.
    header: &'a [u8],
    data_offset: u64,
    version: u32,
    alignment: u32,
    metadata_count: u32,
    tensor_count: u32,
    /// Where the tensor infos start.
    tensors_at: u32,
    /// Where each of the first [`INDEX_LEN`] metadata entries starts, and one more: the start
    /// of the next entry or of the tensor infos. Entry `i` thus ends at `index[i + 1]`.
    index: [u32; INDEX_LEN + 1],
}

impl<'a> Gguf<'a> {
    /// Reads and checks a header.
    ///
    /// `header` holds the file's first bytes, at least up to the end of the tensor infos; it
    /// may be the whole file. `file_len` is the length of the whole file in bytes; bytes of
    /// `header` beyond it are ignored.
    ///
    /// In addition to the structure this checks: keys and tensor names are UTF-8, not empty and
    /// distinct; `general.alignment` is a `u32` and a power of two; every tensor has a type
    /// that ggml defines, rows of whole blocks, an aligned offset and its data, if any, inside
    /// the file; no two tensors overlap (ggml writes them back to back; here
    /// they may be in any order and with gaps).
    ///
    /// # Errors
    ///
    /// The fault and its position. Only [`GgufErrorKind::NeedMore`] is not a fault of the
    /// file: `header` is a prefix that is too short. Read at least the number of bytes that it names
    /// (better: also at least twice the previous number) and call again.
    pub fn parse(header: &'a [u8], file_len: u64) -> Result<Self, GgufError> {
        Self::parse_as(header, file_len, false)
    }

    /// As [`Self::parse`], for the header inside a `.slc` file, whose tensors may be precision lanes
    /// ([`crate::kernels::blocks::lane`]).
    ///
    /// # Errors
    ///
    /// As [`Self::parse`].
    pub fn parse_with_lanes(header: &'a [u8], file_len: u64) -> Result<Self, GgufError> {
        Self::parse_as(header, file_len, true)
    }

    fn parse_as(header: &'a [u8], file_len: u64, lanes: bool) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(header, file_len);
        let mut gguf = Self::parse_fixed(&mut cursor)?;
        gguf.parse_metadata(&mut cursor)?;
        gguf.parse_tensors(&mut cursor, file_len, lanes)?;
        Ok(gguf)
    }

    /// Magic, version and counts.
    fn parse_fixed(cursor: &mut Cursor<'a>) -> Result<Self, GgufError> {
        let magic = cursor.bytes::<4>()?;
        if ![MAGIC, MAGIC_POWERINFER].contains(&&magic) {
            return Err(cursor.error(0, GgufErrorKind::NotGguf { magic }));
        }
        let version = cursor.u32()?;
        if !VERSIONS.contains(&version) {
            let kind = if VERSIONS_BIG_ENDIAN.contains(&version.swap_bytes()) {
                GgufErrorKind::BigEndian {
                    version: version.swap_bytes(),
                }
            } else {
                GgufErrorKind::UnsupportedVersion { version }
            };
            return Err(cursor.error(4, kind));
        }
        let tensor_count = cursor.count("tensor count", TENSOR_COUNT_MAX)?;
        let metadata_count = cursor.count("metadata count", METADATA_COUNT_MAX)?;
        Ok(Self {
            header: &[],
            data_offset: 0,
            version,
            alignment: ALIGNMENT_DEFAULT,
            metadata_count,
            tensor_count,
            tensors_at: 0,
            index: [0; INDEX_LEN + 1],
        })
    }

    /// Checks every metadata entry and fills the index.
    fn parse_metadata(&mut self, cursor: &mut Cursor<'a>) -> Result<(), GgufError> {
        cursor.room(u64::from(self.metadata_count) * METADATA_ENTRY_BYTES_MIN)?;
        for i in 0..self.metadata_count {
            if let Some(slot) = self.index.get_mut(i as usize) {
                *slot = cursor.position_u32();
            }
            cursor.set_place(GgufPlace::Metadata { index: i });
            let key = cursor.name("key length", KEY_LEN_MAX)?;
            cursor
                .value()
                .map_err(|error| error.named(key.as_bytes()))?;
        }
        self.tensors_at = cursor.position_u32();
        if let Some(slot) = self.index.get_mut(self.metadata_count as usize) {
            *slot = self.tensors_at;
        }
        self.header = cursor.taken();
        cursor.set_place(GgufPlace::Header);
        order::check_distinct_keys(self)?;
        self.alignment = self.parse_alignment()?;
        Ok(())
    }

    fn parse_alignment(&self) -> Result<u32, GgufError> {
        let Some(entry) = self.entry(ALIGNMENT_KEY) else {
            return Ok(ALIGNMENT_DEFAULT);
        };
        match entry.value {
            Value::U32(alignment) if alignment.is_power_of_two() => Ok(alignment),
            Value::U32(value) => Err(entry.error(GgufErrorKind::AlignmentNotPowerOfTwo {
                value: value.into(),
            })),
            _ => Err(entry.wrong_type("a u32")),
        }
    }

    /// Checks every tensor info, then the data ranges, which are known once the infos end.
    fn parse_tensors(
        &mut self,
        cursor: &mut Cursor<'a>,
        file_len: u64,
        lanes: bool,
    ) -> Result<(), GgufError> {
        cursor.room(u64::from(self.tensor_count) * tensor::INFO_BYTES_MIN)?;
        for i in 0..self.tensor_count {
            cursor.set_place(GgufPlace::Tensor { index: i });
            let info = TensorInfo::read(cursor, 0)?;
            if info.ty.is_lane() && !lanes {
                let kind = GgufErrorKind::LaneOutsideSlc { ty: info.ty };
                return Err(cursor.error_behind(12, kind).named(info.name.as_bytes()));
            }
            if !info.offset.is_multiple_of(self.alignment()) {
                let (offset, alignment) = (info.offset, self.alignment());
                let kind = GgufErrorKind::OffsetMisaligned { offset, alignment };
                return Err(cursor.error_behind(8, kind).named(info.name.as_bytes()));
            }
        }
        self.header = cursor.taken();
        // The header is at most 4 GiB long and the alignment at most 2 GiB: no overflow.
        self.data_offset = (self.header.len() as u64).next_multiple_of(self.alignment());
        self.check_data_ranges(file_len)?;
        order::check_distinct_names(self)
    }

    /// Checks that every tensor's data is inside the file and does not overlap another's.
    fn check_data_ranges(&self, file_len: u64) -> Result<(), GgufError> {
        let mut cursor = self.tensor_cursor();
        let mut previous_end = 0;
        let mut ascending = true;
        for i in 0..self.tensor_count {
            cursor.set_place(GgufPlace::Tensor { index: i });
            let info = TensorInfo::read(&mut cursor, self.data_offset)?;
            if info.len_bytes == 0 {
                continue;
            }
            let end = info.offset.checked_add(info.len_bytes);
            if end.is_none_or(|end| end > file_len) {
                let kind = GgufErrorKind::DataOutsideFile {
                    offset: info.offset,
                    len_bytes: info.len_bytes,
                    file_len,
                };
                return Err(cursor.error_behind(8, kind).named(info.name.as_bytes()));
            }
            ascending &= info.offset >= previous_end;
            previous_end = end.unwrap_or(u64::MAX);
        }
        // Files as ggml writes them ascend, and then neighbours not overlapping is enough.
        if ascending {
            Ok(())
        } else {
            order::check_disjoint_data(self)
        }
    }

    /// The version of the file: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensor data, in bytes: a power of two.
    pub fn alignment(&self) -> u64 {
        self.alignment.into()
    }

    /// The number of metadata entries, up to [`METADATA_COUNT_MAX`].
    pub fn metadata_count(&self) -> u64 {
        self.metadata_count.into()
    }

    /// The number of tensors, up to [`TENSOR_COUNT_MAX`].
    pub fn tensor_count(&self) -> u64 {
        self.tensor_count.into()
    }

    /// The header alone: from the magic to the end of the tensor infos, without padding.
    pub fn header_bytes(&self) -> &'a [u8] {
        self.header
    }

    /// Where tensor data starts, in bytes from the file's start. A file without tensors (a
    /// vocabulary) may end before it.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// All metadata entries in file order.
    pub fn metadata(&self) -> Metadata<'a> {
        Metadata {
            gguf: *self,
            position: self.metadata_start(),
            next: 0,
        }
    }

    /// The value at `key`.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.entry(key).map(|entry| entry.value)
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> Tensors<'a> {
        Tensors::new(self.tensor_cursor(), self.tensor_count, self.data_offset)
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'a>> {
        self.tensors().find(|info| info.name == name)
    }

    /// The integer at `key`, of any integer type, if its value fits in a `u32`.
    ///
    /// # Errors
    ///
    /// The key is absent ([`GgufErrorKind::Missing`], see [`optional`]), is of another type,
    /// or does not fit. The same holds for the getters below.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        let entry = self.require(key)?;
        entry.integer(|value| u32::try_from(value).ok())
    }

    /// The integer at `key`, of any integer type, if its value fits in a `u64`.
    ///
    /// # Errors
    ///
    /// As [`Self::u32`].
    pub fn u64(&self, key: &str) -> Result<u64, GgufError> {
        let entry = self.require(key)?;
        entry.integer(|value| u64::try_from(value).ok())
    }

    /// The integer at `key`, of any integer type, if its value fits in an `i32`.
    ///
    /// # Errors
    ///
    /// As [`Self::u32`].
    pub fn i32(&self, key: &str) -> Result<i32, GgufError> {
        let entry = self.require(key)?;
        entry.integer(|value| i32::try_from(value).ok())
    }

    /// The floating-point number at `key`; an `f64` is rounded to the nearest `f32`.
    ///
    /// # Errors
    ///
    /// As [`Self::u32`].
    pub fn f32(&self, key: &str) -> Result<f32, GgufError> {
        let entry = self.require(key)?;
        entry
            .value
            .as_f32()
            .ok_or_else(|| entry.wrong_type("a floating-point number"))
    }

    /// The bool at `key`.
    ///
    /// # Errors
    ///
    /// As [`Self::u32`].
    pub fn bool(&self, key: &str) -> Result<bool, GgufError> {
        let entry = self.require(key)?;
        entry
            .value
            .as_bool()
            .ok_or_else(|| entry.wrong_type("a bool"))
    }

    /// The string at `key`, which must be UTF-8.
    ///
    /// # Errors
    ///
    /// As [`Self::u32`]; [`GgufErrorKind::NotUtf8`] for other bytes.
    pub fn str(&self, key: &str) -> Result<&'a str, GgufError> {
        let entry = self.require(key)?;
        let bytes = entry
            .value
            .as_bytes()
            .ok_or_else(|| entry.wrong_type("a string"))?;
        core::str::from_utf8(bytes).map_err(|error| {
            entry.error(GgufErrorKind::NotUtf8 {
                byte: error.valid_up_to(),
            })
        })
    }

    /// The string at `key` as it is in the file, in any encoding.
    ///
    /// # Errors
    ///
    /// As [`Self::u32`].
    pub fn bytes(&self, key: &str) -> Result<&'a [u8], GgufError> {
        let entry = self.require(key)?;
        entry
            .value
            .as_bytes()
            .ok_or_else(|| entry.wrong_type("a string"))
    }

    /// The array at `key`, with elements of any type.
    ///
    /// # Errors
    ///
    /// As [`Self::u32`].
    pub fn array(&self, key: &str) -> Result<Array<'a>, GgufError> {
        let entry = self.require(key)?;
        entry
            .value
            .as_array()
            .ok_or_else(|| entry.wrong_type("an array"))
    }

    /// The array of strings at `key`.
    ///
    /// # Errors
    ///
    /// As [`Self::u32`].
    pub fn strings(&self, key: &str) -> Result<Strings<'a>, GgufError> {
        let entry = self.require(key)?;
        let strings = entry.value.as_array().and_then(Array::strings);
        strings.ok_or_else(|| entry.wrong_type("an array of strings"))
    }

    fn require(&self, key: &str) -> Result<Entry<'a>, GgufError> {
        self.entry(key).ok_or_else(|| {
            GgufError::new(GgufErrorKind::Missing, GgufPlace::Header, 0).named(key.as_bytes())
        })
    }

    fn entry(&self, key: &str) -> Option<Entry<'a>> {
        let mut entries = self.metadata();
        // Comparing the raw key first avoids decoding the value of every other entry.
        while entries.next < self.metadata_count && (entries.next as usize) < INDEX_LEN {
            let mut cursor = self.cursor_at(self.index[entries.next as usize]);
            if cursor.string("key length", KEY_LEN_MAX).ok()? == key.as_bytes() {
                return entries.next_entry();
            }
            entries.next += 1;
            entries.position = self.index[entries.next as usize];
        }
        core::iter::from_fn(|| entries.next_entry()).find(|entry| entry.key == key)
    }

    fn metadata_start(&self) -> u32 {
        self.index[0]
    }

    fn cursor_at(&self, position: u32) -> Cursor<'a> {
        Cursor::at(self.header, position)
    }

    fn tensor_cursor(&self) -> Cursor<'a> {
        self.cursor_at(self.tensors_at)
    }
}

impl fmt::Debug for Gguf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gguf")
            .field("version", &self.version)
            .field("alignment", &self.alignment)
            .field("metadata_count", &self.metadata_count)
            .field("tensor_count", &self.tensor_count)
            .field("header_len_bytes", &self.header.len())
            .field("data_offset", &self.data_offset)
            .finish_non_exhaustive()
    }
}

/// Metadata entries in file order. Made by [`Gguf::metadata`].
#[derive(Clone, Debug)]
pub struct Metadata<'a> {
    gguf: Gguf<'a>,
    /// Where entry `next` starts.
    position: u32,
    next: u32,
}

impl<'a> Metadata<'a> {
    fn next_entry(&mut self) -> Option<Entry<'a>> {
        if self.next == self.gguf.metadata_count {
            return None;
        }
        let (at, index) = (self.position, self.next);
        let mut cursor = self.gguf.cursor_at(at);
        let key = cursor.name("key length", KEY_LEN_MAX).ok()?;
        // If the index knows the entry's end, the value need not be walked to find it.
        let value = match self.gguf.index.get(index as usize + 1) {
            Some(&end) => {
                self.position = end;
                cursor.value_until(end).ok()?
            }
            None => {
                let value = cursor.value().ok()?;
                self.position = cursor.position_u32();
                value
            }
        };
        self.next += 1;
        Some(Entry {
            index,
            at,
            key,
            value,
        })
    }
}

impl<'a> Iterator for Metadata<'a> {
    type Item = (&'a str, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        self.next_entry().map(|entry| (entry.key, entry.value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.gguf.metadata_count - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Metadata<'_> {}

/// A metadata entry and its position, for error messages.
struct Entry<'a> {
    index: u32,
    at: u32,
    key: &'a str,
    value: Value<'a>,
}

impl Entry<'_> {
    fn error(&self, kind: GgufErrorKind) -> GgufError {
        let place = GgufPlace::Metadata { index: self.index };
        GgufError::new(kind, place, self.at.into()).named(self.key.as_bytes())
    }

    fn wrong_type(&self, expected: &'static str) -> GgufError {
        let element = self.value.as_array().map(Array::element_type);
        let found = self.value.value_type();
        self.error(GgufErrorKind::WrongType {
            expected,
            found,
            element,
        })
    }

    fn integer<T>(&self, convert: impl Fn(i128) -> Option<T>) -> Result<T, GgufError> {
        let value = self
            .value
            .as_i128()
            .ok_or_else(|| self.wrong_type("an integer"))?;
        convert(value).ok_or_else(|| {
            self.error(GgufErrorKind::IntegerOutOfRange {
                negative: value < 0,
                // A GGUF integer has at most 64 bits.
                magnitude: u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX),
                target: core::any::type_name::<T>(),
            })
        })
    }
}

/// Maximum length of a header, in bytes: offsets into it are kept as `u32`.
pub const HEADER_BYTES_MAX: u64 = u32::MAX as u64;

/// Maximum metadata entries. Published files have fewer than a hundred.
pub const METADATA_COUNT_MAX: u64 = 4096;

/// Maximum tensors. The largest published models with unmerged experts stay below 50,000.
pub const TENSOR_COUNT_MAX: u64 = 65_536;

/// Maximum length of a metadata key in bytes, as in the specification.
pub const KEY_LEN_MAX: u64 = 65_535;

/// Maximum length of a tensor name in bytes. The specification says 64; some converters write longer ones.
pub const TENSOR_NAME_LEN_MAX: u64 = 127;

/// Maximum length of a string value in bytes.
pub const STRING_LEN_MAX: u64 = 1 << 30;

/// Maximum elements of an array.
pub const ARRAY_LEN_MAX: u64 = 1 << 30;

/// Maximum nesting of arrays: `[[[[u8]]]]` is read, one level more is refused.
pub const ARRAY_DEPTH_MAX: u32 = 4;

/// Maximum dimensions of a tensor.
pub const DIMS_MAX: usize = 4;

/// Alignment of tensor data without `general.alignment`, in bytes.
pub const ALIGNMENT_DEFAULT: u32 = 32;

const ALIGNMENT_KEY: &str = "general.alignment";
const MAGIC: &[u8; 4] = b"GGUF";
/// Of files that PowerInfer wrote; all else is the same.
const MAGIC_POWERINFER: &[u8; 4] = b"PWRI";
const VERSIONS: core::ops::RangeInclusive<u32> = 2..=3;
/// Byte-swapped versions that the version field of a big-endian file may hold.
const VERSIONS_BIG_ENDIAN: core::ops::RangeInclusive<u32> = 1..=0xffff;

/// Key length, a one-byte key, value type, a one-byte value.
const METADATA_ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;

/// Metadata entries whose offsets the view keeps.
const INDEX_LEN: usize = 128;
