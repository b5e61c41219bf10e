//! A small GGUF reader: the whole file in memory, metadata as values, tensors as f32.
//!
//! Source: the GGUF specification (`docs/gguf.md` of ggml), versions 2 and 3, little endian.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Unreadable, dequant};

/// A GGUF file.
#[derive(Debug)]
pub struct File {
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
    /// What follows the header and its padding; tensor offsets count from here.
    data: Vec<u8>,
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer of any width.
    Integer(i128),
    /// f32 or f64.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string.
    Text(String),
    /// Values of one type.
    Array(Vec<Self>),
}

/// The position of a tensor.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Extents, the contiguous one first: a matrix is (columns, rows).
    pub dims: Vec<usize>,
    /// ggml's number of the element type.
    pub type_id: u32,
    /// Bytes from the start of the tensor data.
    pub offset_bytes: usize,
}

impl File {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`Unreadable`] when the file cannot be read or is not well-formed GGUF.
    pub fn open(path: &Path) -> Result<Self, Unreadable> {
        let bytes = std::fs::read(path)
            .map_err(|error| Unreadable::new(format!("{}: {error}", path.display())))?;
        Self::parse(&bytes)
    }

    /// Reads a file from memory.
    ///
    /// # Errors
    /// [`Unreadable`] when `bytes` is not well-formed GGUF.
    pub fn parse(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut cursor = Cursor { bytes, position: 0 };
        if cursor.take(4)? != b"GGUF" {
            return Err(Unreadable::new("no GGUF magic"));
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            return Err(Unreadable::new(format!("GGUF version {version}")));
        }
        let tensor_count = cursor.length()?;
        let metadata_count = cursor.length()?;
        let mut metadata = BTreeMap::new();
        for _ in 0..metadata_count {
            let key = cursor.text()?;
            let type_id = cursor.u32()?;
            metadata.insert(key, cursor.value(type_id)?);
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..tensor_count {
            let name = cursor.text()?;
            let n_dims = cursor.u32()?;
            let dims = (0..n_dims)
                .map(|_| cursor.length())
                .collect::<Result<_, _>>()?;
            let type_id = cursor.u32()?;
            let offset_bytes = cursor.length()?;
            tensors.insert(
                name,
                TensorInfo {
                    dims,
                    type_id,
                    offset_bytes,
                },
            );
        }
        let alignment = match metadata.get("general.alignment") {
            Some(&Value::Integer(alignment)) => usize::try_from(alignment).unwrap_or(0),
            _ => 32,
        };
        if alignment == 0 {
            return Err(Unreadable::new("alignment 0"));
        }
        let start = cursor.position.next_multiple_of(alignment).min(bytes.len());
        Ok(Self {
            metadata,
            tensors,
            data: bytes[start..].to_vec(),
        })
    }

    /// The metadata value `key`.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// The keys of all metadata.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// The metadata value `key` as a number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key)? {
            Value::Integer(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        }
    }

    /// The metadata value `key` as a length.
    ///
    /// # Errors
    /// [`Unreadable`] naming the key when it is absent or not a length.
    pub fn length(&self, key: &str) -> Result<usize, Unreadable> {
        match self.metadata.get(key) {
            Some(&Value::Integer(number)) => usize::try_from(number).ok(),
            _ => None,
        }
        .ok_or_else(|| Unreadable::new(format!("{key} is not a length")))
    }

    /// The names of all tensors.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The position of tensor `name`.
    #[must_use]
    pub fn tensor_info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// The elements of tensor `name`, dequantised, row after row.
    ///
    /// # Errors
    /// [`Unreadable`] when the tensor does not exist, when it extends past the end of the file, or when [`dequant`]
    /// does not support its type.
    pub fn tensor(&self, name: &str) -> Result<Vec<f32>, Unreadable> {
        let info = self
            .tensor_info(name)
            .ok_or_else(|| Unreadable::new(format!("tensor {name} is missing")))?;
        let elements = info.dims.iter().product();
        let data = self.data.get(info.offset_bytes..).unwrap_or_default();
        dequant::dequantise(info.type_id, data, elements)
            .map_err(|error| Unreadable::new(format!("tensor {name}: {error}")))
    }
}

struct Cursor<'b> {
    bytes: &'b [u8],
    position: usize,
}

impl<'b> Cursor<'b> {
    fn take(&mut self, len: usize) -> Result<&'b [u8], Unreadable> {
        let taken = self.bytes[self.position..]
            .get(..len)
            .ok_or_else(|| Unreadable::new(format!("cut off at byte {}", self.position)))?;
        self.position += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        Ok(self
            .take(N)?
            .try_into()
            .expect("take gives as many bytes as asked for"))
    }

    fn u32(&mut self) -> Result<u32, Unreadable> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn length(&mut self) -> Result<usize, Unreadable> {
        let number = u64::from_le_bytes(self.array()?);
        usize::try_from(number).map_err(|_| Unreadable::new(format!("length {number}")))
    }

    fn text(&mut self) -> Result<String, Unreadable> {
        let len = self.length()?;
        // Some vocabularies hold tokens that are not UTF-8; nothing here depends on them.
        Ok(String::from_utf8_lossy(self.take(len)?).into_owned())
    }

    fn value(&mut self, type_id: u32) -> Result<Value, Unreadable> {
        Ok(match type_id {
            0 => Value::Integer(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Integer(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Integer(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Integer(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Integer(u32::from_le_bytes(self.array()?).into()),
            5 => Value::Integer(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => Value::Text(self.text()?),
            9 => {
                let element_type = self.u32()?;
                let len = self.length()?;
                // No capacity up front: a wrong length ends at the end of the file instead.
                let mut values = Vec::new();
                for _ in 0..len {
                    values.push(self.value(element_type)?);
                }
                Value::Array(values)
            }
            10 => Value::Integer(u64::from_le_bytes(self.array()?).into()),
            11 => Value::Integer(i64::from_le_bytes(self.array()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(Unreadable::new(format!("metadata type {type_id}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{File, Value};
    use crate::reference::Model;

    #[test]
    fn reads_a_model_and_refuses_its_pieces() {
        let path = crate::fixture("models/llama-F32.gguf");
        let bytes = std::fs::read(&path).expect("a readable file");
        let file = File::parse(&bytes).expect("a sound file");
        assert_eq!(
            file.value("general.name"),
            Some(&Value::Text("random weights".into()))
        );
        assert_eq!(file.length("llama.feed_forward_length"), Ok(128));
        assert_eq!(
            file.tensor("blk.0.attn_k.weight").map(|rows| rows.len()),
            Ok(64 * 32)
        );
        let last = file.tensor_names().last().expect("tensors");
        assert!(file.tensor(last).is_ok());
        // Within the header every cut is noticed at once, in the data when a tensor is read.
        for len in (0..5000).step_by(7) {
            assert!(File::parse(&bytes[..len]).is_err(), "{len}");
        }
        let cut = File::parse(&bytes[..bytes.len() - 4]).expect("the header is whole");
        assert!(cut.tensor_names().any(|name| cut.tensor(name).is_err()));
    }

    #[test]
    fn refuses_other_architectures() {
        for name in ["embed/tiny-bert-f16", "tokenizer/bpe"] {
            let path = crate::fixture(&format!("{name}.gguf"));
            let error = Model::open(&path).map(|_| ()).expect_err(name);
            assert!(!error.to_string().is_empty());
            eprintln!("{name}: {error}");
        }
    }
}
