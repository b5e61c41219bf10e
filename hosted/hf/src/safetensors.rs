//! The header of a safetensors file: which tensors, of which type and shape, where.
//!
//! The format (huggingface/safetensors, `README.md`): 8 bytes of little-endian length N, N bytes of
//! JSON `{"name": {"dtype", "shape", "data_offsets": [begin, end]}}` with an optional
//! `"__metadata__"` of strings, then the data; offsets count from its start. Checked here, as by
//! the official crate: the header's length is bounded, each tensor's bytes are exactly its type
//! times its shape, and the tensors tile the data without gap, overlap or rest.

use core::fmt;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::{BTreeMap, HashSet};

/// The header of a safetensors file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The tensors, in the order of their data.
    pub tensors: Vec<SafetensorsEntry>,
}

/// A tensor of a safetensors file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SafetensorsEntry {
    /// The name, such as `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// How elements are stored.
    pub dtype: Dtype,
    /// Elements along each dimension, the slowest first; empty for a scalar.
    pub shape: Vec<u64>,
    /// Where the data starts, in bytes from the start of the file.
    pub offset: u64,
    /// Bytes of data.
    pub len_bytes: u64,
}

/// Why a safetensors header is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum HeaderError {
    /// The file is shorter than the length prefix.
    #[error("{len_bytes} bytes are not enough for a safetensors file")]
    TooShort { len_bytes: u64 },
    /// The file ends inside the header.
    #[error("the header of {header_bytes} bytes does not fit in the file of {len_bytes} bytes")]
    Truncated { header_bytes: u64, len_bytes: u64 },
    /// The header exceeds the size limit.
    #[error("a header of {header_bytes} bytes exceeds the maximum of {HEADER_BYTES_MAX}")]
    TooLong { header_bytes: u64 },
    /// The header is not valid JSON of this format.
    #[error("the header is malformed: {0}")]
    Json(#[from] serde_json::Error),
    /// Two tensors have the same name.
    #[error("tensor {tensor:?} is defined twice")]
    Duplicate { tensor: String },
    /// An unknown dtype.
    #[error("tensor {tensor:?} has the unknown dtype {dtype:?}")]
    UnknownDtype { tensor: String, dtype: String },
    /// The product of the shape and the type does not fit in 64 bits.
    #[error("tensor {tensor:?}: the shape {shape:?} is too large")]
    ShapeOverflow { tensor: String, shape: Vec<u64> },
    /// The offsets do not match the type and the shape.
    #[error(
        "tensor {tensor:?} of shape {shape:?} takes {needed} bytes, but its offsets are {begin}..{end}"
    )]
    WrongLength {
        tensor: String,
        shape: Vec<u64>,
        needed: u64,
        begin: u64,
        end: u64,
    },
    /// The data has a gap or an overlap before the tensor.
    #[error("tensor {tensor:?} begins at byte {begin} of the data, expected {expected}")]
    NotTiled {
        tensor: String,
        begin: u64,
        expected: u64,
    },
    /// The data is shorter or longer than its tensors.
    #[error(
        "the tensors take {tensors_bytes} bytes, but the file has {data_bytes} after its header"
    )]
    WrongDataLength { tensors_bytes: u64, data_bytes: u64 },
}

/// Maximum header length in bytes: the official crate's limit.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Maximum number of dimensions, far above any real tensor's; bounds what a hostile shape can
/// allocate.
const DIMS_MAX: usize = 8;

/// Bytes of the length prefix.
pub const PREFIX_BYTES: usize = 8;

impl Header {
    /// Length of the header's JSON in bytes, from the file's first eight bytes and the file's
    /// length.
    ///
    /// # Errors
    /// [`HeaderError::TooShort`], [`HeaderError::TooLong`], [`HeaderError::Truncated`].
    ///
    /// # Panics
    /// Never: the limit fits in any `usize`.
    pub fn json_bytes(prefix: &[u8], file_bytes: u64) -> Result<usize, HeaderError> {
        let Some(prefix) = prefix.first_chunk::<8>() else {
            return Err(HeaderError::TooShort {
                len_bytes: prefix.len() as u64,
            });
        };
        let header_bytes = u64::from_le_bytes(*prefix);
        if header_bytes > HEADER_BYTES_MAX {
            return Err(HeaderError::TooLong { header_bytes });
        }
        if header_bytes > file_bytes.saturating_sub(PREFIX_BYTES as u64) {
            return Err(HeaderError::Truncated {
                header_bytes,
                len_bytes: file_bytes,
            });
        }
        Ok(usize::try_from(header_bytes).expect("the limit fits in any usize"))
    }

    /// Parses a header. `head` holds the file's first bytes, eight more than [`Self::json_bytes`]
    /// returns; `file_bytes` is the length of the whole file.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn parse(head: &[u8], file_bytes: u64) -> Result<Self, HeaderError> {
        let json_bytes = Self::json_bytes(head, file_bytes.min(head.len() as u64))?;
        let data_start = (PREFIX_BYTES + json_bytes) as u64;
        let json = &head[PREFIX_BYTES..][..json_bytes];
        let raw: RawHeader = serde_json::from_slice(json)?;
        let mut seen = HashSet::with_capacity(raw.0.len());
        for (name, _) in &raw.0 {
            if !seen.insert(name.as_str()) {
                return Err(HeaderError::Duplicate {
                    tensor: name.clone(),
                });
            }
        }
        drop(seen);
        let entries = raw.0.into_iter().map(|(name, raw)| entry(name, raw));
        let mut tensors = entries.collect::<Result<Vec<_>, _>>()?;
        tensors.sort_by_key(|tensor| (tensor.offset, tensor.len_bytes));
        let mut at = 0;
        for tensor in &tensors {
            if tensor.offset != at {
                return Err(HeaderError::NotTiled {
                    tensor: tensor.name.clone(),
                    begin: tensor.offset,
                    expected: at,
                });
            }
            at += tensor.len_bytes;
        }
        let data_bytes = file_bytes - data_start;
        if at != data_bytes {
            return Err(HeaderError::WrongDataLength {
                tensors_bytes: at,
                data_bytes,
            });
        }
        for tensor in &mut tensors {
            tensor.offset += data_start;
        }
        Ok(Self { tensors })
    }
}

/// Checks one tensor by itself; its offset still counts from the start of the data.
fn entry(name: String, raw: RawTensor) -> Result<SafetensorsEntry, HeaderError> {
    let Some(dtype) = Dtype::from_name(&raw.dtype) else {
        return Err(HeaderError::UnknownDtype {
            tensor: name,
            dtype: raw.dtype,
        });
    };
    let shape = raw.shape.0;
    let bits = u64::from(dtype.bits());
    let product = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
    let Some(n_bits) = product.and_then(|n| n.checked_mul(bits)) else {
        return Err(HeaderError::ShapeOverflow {
            tensor: name,
            shape,
        });
    };
    let [begin, end] = raw.data_offsets;
    let needed = n_bits / 8;
    if n_bits % 8 != 0 || end.checked_sub(begin) != Some(needed) {
        return Err(HeaderError::WrongLength {
            tensor: name,
            shape,
            needed,
            begin,
            end,
        });
    }
    Ok(SafetensorsEntry {
        name,
        dtype,
        shape,
        offset: begin,
        len_bytes: needed,
    })
}

macro_rules! dtypes {
    ($($name:ident = $text:literal, $bits:literal;)*) => {
        /// An element type, as safetensors files name it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is the type of that name in the format")]
        #[expect(non_camel_case_types, reason = "the format's own spelling")]
        pub enum Dtype { $($name,)* }

        impl Dtype {
            /// The type with that name, if the format has it.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$name),)* _ => None }
            }

            /// The name in files.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Bits of an element.
            #[must_use]
            pub const fn bits(self) -> u8 {
                match self { $(Self::$name => $bits,)* }
            }
        }
    };
}

dtypes! {
    Bool = "BOOL", 8;
    F4 = "F4", 4;
    F6_E2M3 = "F6_E2M3", 6;
    F6_E3M2 = "F6_E3M2", 6;
    U8 = "U8", 8;
    I8 = "I8", 8;
    F8_E5M2 = "F8_E5M2", 8;
    F8_E4M3 = "F8_E4M3", 8;
    F8_E8M0 = "F8_E8M0", 8;
    I16 = "I16", 16;
    U16 = "U16", 16;
    F16 = "F16", 16;
    BF16 = "BF16", 16;
    I32 = "I32", 32;
    U32 = "U32", 32;
    F32 = "F32", 32;
    F64 = "F64", 64;
    I64 = "I64", 64;
    U64 = "U64", 64;
    C64 = "C64", 64;
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The header as written: a map in file order, whose names may repeat.
struct RawHeader(Vec<(String, RawTensor)>);

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Shape,
    data_offsets: [u64; 2],
}

/// Up to [`DIMS_MAX`] numbers, so that a shape does not need more memory than its text.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<Option<BTreeMap<String, String>>>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(RawHeader(tensors))
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShapeVisitor;
        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {DIMS_MAX} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
                let mut dims = Vec::with_capacity(4);
                while let Some(dim) = seq.next_element()? {
                    dims.push(dim);
                    if dims.len() == DIMS_MAX && seq.next_element::<IgnoredAny>()?.is_some() {
                        return Err(A::Error::invalid_length(DIMS_MAX + 1, &self));
                    }
                }
                Ok(Shape(dims))
            }
        }
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str, data_bytes: u64) -> Result<Header, HeaderError> {
        let mut head = (json.len() as u64).to_le_bytes().to_vec();
        head.extend(json.as_bytes());
        let file_bytes = head.len() as u64 + data_bytes;
        Header::parse(&head, file_bytes)
    }

    #[test]
    fn tensors_come_in_the_order_of_their_data() {
        let json = r#"{"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},
            "__metadata__":{"format":"pt"},"empty":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},
            "a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
            "scalar":{"dtype":"U8","shape":[],"data_offsets":[28,29]}}"#;
        let header = parse(json, 29).unwrap();
        let start = 8 + json.len() as u64;
        let seen: Vec<_> = header
            .tensors
            .iter()
            .map(|t| (&*t.name, t.offset - start))
            .collect();
        assert_eq!(seen, [("a", 0), ("empty", 4), ("b", 4), ("scalar", 28)]);
        assert_eq!(header.tensors[2].shape, [2, 3]);
        assert_eq!(header.tensors[2].dtype, Dtype::F32);
        assert_eq!(parse("{}", 0).unwrap(), Header::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let one = |dtype: &str, shape: &str, at: &str| {
            format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{at}}}}}"#)
        };
        let twice = r#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
            "x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
        let overlap = r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
            "y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#;
        let deep = "[".repeat(100_000);
        let cases = [
            (one("F32", "[2]", "[0,8]"), 9, "the file has 9"),
            (one("F32", "[2]", "[0,8]"), 7, "the file has 7"),
            (one("F32", "[2]", "[1,9]"), 9, "expected 0"),
            (one("F32", "[2]", "[8,0]"), 8, "offsets are 8..0"),
            (one("F32", "[2]", "[0,4]"), 4, "takes 8 bytes"),
            (one("F4", "[3]", "[0,1]"), 1, "offsets are 0..1"),
            (one("F12", "[2]", "[0,8]"), 8, "unknown dtype \"F12\""),
            (
                one("F32", "[4294967296,4294967296]", "[0,0]"),
                0,
                "too large",
            ),
            (
                one("F32", "[18446744073709551616]", "[0,0]"),
                0,
                "malformed",
            ),
            (one("F32", "[-1]", "[0,0]"), 0, "malformed"),
            (
                one("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"),
                4,
                "at most 8 dimensions",
            ),
            (one("F32", "[1]", "[0,4,4]"), 4, "malformed"),
            (twice.into(), 2, "\"x\" is defined twice"),
            (overlap.into(), 3, "\"y\" begins at byte 1"),
            (deep, 0, "malformed"),
            (
                one("U8", "[1152921504606846976]", "[0,1152921504606846976]"),
                1,
                "the file has 1",
            ),
            ("[]".into(), 0, "malformed"),
            (String::new(), 0, "malformed"),
        ];
        for (json, data_bytes, expected) in cases {
            let message = parse(&json, data_bytes).unwrap_err().to_string();
            assert!(message.contains(expected), "{expected}: {message}");
        }
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_read() {
        let length = |n: u64, file_bytes| Header::json_bytes(&n.to_le_bytes(), file_bytes);
        assert_eq!(length(10, 18).unwrap(), 10);
        assert!(matches!(length(10, 17), Err(HeaderError::Truncated { .. })));
        assert!(matches!(
            length(u64::MAX, u64::MAX),
            Err(HeaderError::TooLong { .. })
        ));
        let short = Header::json_bytes(&[0; 7], 7);
        assert!(matches!(short, Err(HeaderError::TooShort { len_bytes: 7 })));
        assert!(Header::parse(&[], 0).is_err());
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_handled() {
        let json = br#"{"x":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]}}"#;
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend(json);
        file.extend([0; 8]);
        for len in 0..file.len() {
            assert!(Header::parse(&file[..len], len as u64).is_err(), "{len}");
        }
        for at in 0..file.len() - 8 {
            for value in [0, 1, b'0', b'9', b'"', b'}', 0xff] {
                let mut changed = file.clone();
                changed[at] = value;
                let _either = Header::parse(&changed, changed.len() as u64);
            }
        }
    }
}
