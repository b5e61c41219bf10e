//! Writing GGUF files: metadata, tensor directory, data.
//!
//! The layout is described in [`sluice_core::gguf`]; version 3, data in the order of the tensor
//! directory, each tensor aligned. A file that is only copied is byte for byte as ggml's own
//! tools write it.
#![forbid(unsafe_code)]

use super::follow::HashFollower;
use super::{OutputError, OutputFile};
use sluice_core::gguf::{Gguf, Value, ValueType};
use sluice_core::kernels::GgmlType;

/// A metadata value as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaValue {
    ty: ValueType,
    bytes: Vec<u8>,
}

/// Contents of a GGUF file's header. Keys keep the order in which they were first set.
#[derive(Clone, Debug)]
pub struct GgufHeader {
    metadata: Vec<(String, MetaValue)>,
    tensors: Vec<TensorEntry>,
    data_bytes: u64,
    alignment: u64,
}

/// A tensor of a file to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Elements along each dimension, the row length first; up to four.
    pub dims: Vec<u64>,
    /// How elements are stored.
    pub ty: GgmlType,
    /// Where the data starts, in bytes from the start of the data section.
    pub offset: u64,
    /// Bytes of data.
    pub len_bytes: u64,
}

/// A GGUF file being written: the header is complete, tensors may be written in any order.
#[derive(Debug)]
pub struct GgufWriter {
    output: OutputFile,
    tensors: Vec<TensorEntry>,
    data_offset: u64,
    hash: Option<HashFollower>,
}

impl GgufHeader {
    /// An empty header.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            metadata: Vec::new(),
            tensors: Vec::new(),
            data_bytes: 0,
            alignment: ALIGNMENT,
        }
    }

    /// All metadata of a file except its alignment.
    #[must_use]
    pub fn with_metadata_of(gguf: &Gguf<'_>) -> Self {
        let entries = gguf.metadata().filter_map(|(key, value)| {
            let own = key != ALIGNMENT_KEY;
            own.then(|| (key.to_owned(), MetaValue::from(value)))
        });
        Self {
            metadata: entries.collect(),
            ..Self::new()
        }
    }

    /// All metadata of a file, with its alignment of data.
    #[must_use]
    pub fn with_layout_of(gguf: &Gguf<'_>) -> Self {
        let entries = gguf.metadata();
        Self {
            metadata: entries
                .map(|(key, value)| (key.to_owned(), value.into()))
                .collect(),
            alignment: gguf.alignment(),
            ..Self::new()
        }
    }

    /// Sets a key, in place if it is there.
    pub fn set(&mut self, key: &str, value: impl Into<MetaValue>) {
        let value = value.into();
        match self.metadata.iter_mut().find(|(other, _)| other == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.into(), value)),
        }
    }

    /// Removes a key, if it is there.
    pub fn remove(&mut self, key: &str) {
        self.metadata.retain(|(other, _)| other != key);
    }

    /// The value of a key, if it is there.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        let entry = self.metadata.iter().find(|(other, _)| other == key);
        entry.map(|(_, value)| value)
    }

    /// Whether the key is there.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Adds a tensor and returns its index.
    ///
    /// # Panics
    /// If rows are not a whole number of blocks, or the size overflows: the caller chooses types
    /// that fit.
    pub fn add_tensor(&mut self, name: &str, dims: &[u64], ty: GgmlType) -> usize {
        let (row_len, outer) = dims.split_first().unwrap_or((&1, &[]));
        let len_bytes = ty
            .row_bytes(*row_len)
            .and_then(|row| outer.iter().try_fold(row, |bytes, &n| bytes.checked_mul(n)))
            .unwrap_or_else(|| panic!("{name}: {dims:?} is not a shape of {ty}"));
        self.tensors.push(TensorEntry {
            name: name.into(),
            dims: dims.into(),
            ty,
            offset: self.data_bytes,
            len_bytes,
        });
        self.data_bytes = (self.data_bytes + len_bytes).next_multiple_of(self.alignment);
        self.tensors.len() - 1
    }

    /// The tensors so far.
    #[must_use]
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// Magic, metadata and tensor directory, padded: the data follows directly.
    ///
    /// # Panics
    /// If a tensor has 2^32 dimensions.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let (mut out, len) = self.unpadded();
        out.resize(usize::try_from(len).expect("a header is in memory"), 0);
        out
    }

    /// The header without padding, and the offset of the data: a file may set it far after the header's end.
    pub(super) fn unpadded(&self) -> (Vec<u8>, u64) {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            push_string(&mut out, key.as_bytes());
            out.extend((value.ty as u32).to_le_bytes());
            out.extend(&value.bytes);
        }
        for tensor in &self.tensors {
            push_string(&mut out, tensor.name.as_bytes());
            let n_dims = u32::try_from(tensor.dims.len()).expect("a tensor has few dimensions");
            out.extend(n_dims.to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|n| n.to_le_bytes()));
            out.extend((tensor.ty as u32).to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        let data_offset = (out.len() as u64).next_multiple_of(self.alignment);
        (out, data_offset)
    }

    /// Bytes of the data section.
    #[must_use]
    pub const fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Bytes of the whole file.
    ///
    /// # Panics
    /// As [`Self::bytes`].
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.bytes().len() as u64 + self.data_bytes
    }

    /// Reserves room for the whole file and writes the header. The file is hashed while it is written.
    ///
    /// # Errors
    /// [`OutputError::Lane`]; [`OutputError::Write`], for example because the disk is full.
    ///
    /// # Panics
    /// As [`Self::bytes`].
    pub fn start(self, output: OutputFile) -> Result<GgufWriter, OutputError> {
        let mut writer = self.start_provisional(output)?;
        // Without a follower, the file is hashed later.
        writer.hash = writer.output.follow().ok();
        if let Some(hash) = &writer.hash {
            hash.written(0..writer.data_offset);
        }
        Ok(writer)
    }

    /// As [`Self::start`], for a header that [`GgufWriter::replace_header`] replaces. The file is not hashed.
    ///
    /// # Errors
    /// As [`Self::start`].
    ///
    /// # Panics
    /// As [`Self::bytes`].
    pub fn start_provisional(self, output: OutputFile) -> Result<GgufWriter, OutputError> {
        if let Some(tensor) = self.tensors.iter().find(|tensor| tensor.ty.is_lane()) {
            return Err(OutputError::Lane {
                path: output.path().to_path_buf(),
                tensor: tensor.name.clone(),
                ty: tensor.ty,
            });
        }
        self.start_scratch(output)
    }

    /// As [`Self::start`], for a file that becomes a `.slc` file and is then removed: tensors may be precision lanes. The
    /// file is not hashed.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    ///
    /// # Panics
    /// As [`Self::bytes`].
    pub fn start_scratch(self, output: OutputFile) -> Result<GgufWriter, OutputError> {
        let header = self.bytes();
        output.reserve(header.len() as u64 + self.data_bytes)?;
        output.write_at(0, &header)?;
        Ok(GgufWriter {
            output,
            tensors: self.tensors,
            data_offset: header.len() as u64,
            hash: None,
        })
    }
}

impl Default for GgufHeader {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// The tensors to write.
    #[must_use]
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// Writes a part of tensor `index`, `offset` bytes from its start. Threads may do so at once.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    ///
    /// # Panics
    /// If the part is not inside the tensor.
    pub fn write(&self, index: usize, offset: u64, bytes: &[u8]) -> Result<(), OutputError> {
        let tensor = &self.tensors[index];
        assert!(offset + bytes.len() as u64 <= tensor.len_bytes);
        let start = self.data_offset + tensor.offset;
        let at = start + offset;
        self.output.write_at(at, bytes)?;
        if let Some(hash) = &self.hash {
            let end = offset + bytes.len() as u64;
            // After the last byte of a tensor, padding leads to the next one.
            let next = self.tensors.get(index + 1);
            let next = next.filter(|next| end == tensor.len_bytes && next.offset > tensor.offset);
            let end = next.map_or(start + end, |next| self.data_offset + next.offset);
            hash.written(at..end);
        }
        Ok(())
    }

    /// Writes another header, whose values take as many bytes as the first one's.
    ///
    /// # Errors
    /// [`OutputError::Write`].
    ///
    /// # Panics
    /// As [`GgufHeader::bytes`]; a header of another length; a writer that has hashed the first one.
    pub fn replace_header(&self, header: &GgufHeader) -> Result<(), OutputError> {
        let header = header.bytes();
        assert_eq!(header.len() as u64, self.data_offset);
        assert!(self.hash.is_none());
        self.output.write_at(0, &header)
    }

    /// The file that was written, which does not get its name: what it holds can be read back.
    #[must_use]
    pub fn into_output(self) -> OutputFile {
        self.output
    }

    /// Gives the file its name, and records its SHA-256 for this machine ([`super::HashRecords`]). Call it after all
    /// tensors have been written.
    ///
    /// # Errors
    /// As [`OutputFile::finish`].
    pub fn finish(self) -> Result<(), OutputError> {
        let hash = self.hash.and_then(|hash| hash.finish().ok());
        self.output.finish_with(hash)
    }
}

/// The value as stored in a file; arrays and strings are copied as they are.
impl From<Value<'_>> for MetaValue {
    fn from(value: Value<'_>) -> Self {
        let mut bytes = Vec::new();
        match value {
            Value::U8(n) => bytes.push(n),
            Value::I8(n) => bytes.extend(n.to_le_bytes()),
            Value::U16(n) => bytes.extend(n.to_le_bytes()),
            Value::I16(n) => bytes.extend(n.to_le_bytes()),
            Value::U32(n) => bytes.extend(n.to_le_bytes()),
            Value::I32(n) => bytes.extend(n.to_le_bytes()),
            Value::U64(n) => bytes.extend(n.to_le_bytes()),
            Value::I64(n) => bytes.extend(n.to_le_bytes()),
            Value::F32(x) => bytes.extend(x.to_le_bytes()),
            Value::F64(x) => bytes.extend(x.to_le_bytes()),
            Value::Bool(b) => bytes.push(b.into()),
            Value::String(text) => push_string(&mut bytes, text),
            Value::Array(array) => {
                bytes.extend((array.element_type() as u32).to_le_bytes());
                bytes.extend(array.len().to_le_bytes());
                bytes.extend(array.data_bytes());
            }
        }
        Self {
            ty: value.value_type(),
            bytes,
        }
    }
}

macro_rules! from_scalar {
    ($($ty:ty => $variant:ident),*) => {$(
        impl From<$ty> for MetaValue {
            fn from(value: $ty) -> Self {
                Value::$variant(value).into()
            }
        }
    )*};
}

from_scalar!(u8 => U8, u16 => U16, u32 => U32, i32 => I32, u64 => U64, f32 => F32, bool => Bool);

impl From<&str> for MetaValue {
    fn from(text: &str) -> Self {
        Value::String(text.as_bytes()).into()
    }
}

impl MetaValue {
    /// An array of f32.
    #[must_use]
    pub fn f32s(values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes());
        Self::array(ValueType::F32, values.len(), bytes)
    }

    /// An array of i32.
    #[must_use]
    pub fn i32s(values: &[i32]) -> Self {
        let bytes = values.iter().flat_map(|n| n.to_le_bytes());
        Self::array(ValueType::I32, values.len(), bytes)
    }

    /// An array of u32.
    #[must_use]
    pub fn u32s(values: &[u32]) -> Self {
        let bytes = values.iter().flat_map(|n| n.to_le_bytes());
        Self::array(ValueType::U32, values.len(), bytes)
    }

    /// An array of u64.
    #[must_use]
    pub fn u64s(values: &[u64]) -> Self {
        let bytes = values.iter().flat_map(|n| n.to_le_bytes());
        Self::array(ValueType::U64, values.len(), bytes)
    }

    /// An array of bytes.
    #[must_use]
    pub fn u8s(values: &[u8]) -> Self {
        Self::array(ValueType::U8, values.len(), values.iter().copied())
    }

    /// An array of truth values.
    #[must_use]
    pub fn bools(values: &[bool]) -> Self {
        Self::array(
            ValueType::Bool,
            values.len(),
            values.iter().map(|&b| u8::from(b)),
        )
    }

    /// An array of strings, which GGUF readers expect to be UTF-8.
    #[must_use]
    pub fn strings<T: AsRef<str>>(values: &[T]) -> Self {
        let mut bytes = Vec::new();
        for text in values {
            push_string(&mut bytes, text.as_ref().as_bytes());
        }
        Self::array(ValueType::String, values.len(), bytes)
    }

    fn array(ty: ValueType, len: usize, elements: impl IntoIterator<Item = u8>) -> Self {
        let mut bytes = (ty as u32).to_le_bytes().to_vec();
        bytes.extend((len as u64).to_le_bytes());
        bytes.extend(elements);
        Self {
            ty: ValueType::Array,
            bytes,
        }
    }
}

fn push_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

/// Copied only together with the layout: everything else is written with the default alignment.
const ALIGNMENT_KEY: &str = "general.alignment";

/// GGUF's default.
const ALIGNMENT: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn core_reads_what_was_written() {
        let mut header = GgufHeader::new();
        header.set("general.architecture", "llama");
        header.set("a.u32", 7u32);
        header.set("a.f32", 0.5f32);
        header.set("a.bool", true);
        header.set("a.f32s", MetaValue::f32s(&[1.0, -2.0]));
        header.set("a.strings", MetaValue::strings(&["x", "", "äö"]));
        header.set("a.u32", 8u32);
        header.add_tensor("one", &[3], GgmlType::F32);
        header.add_tensor("two", &[32, 2], GgmlType::Q8_0);
        let path = std::env::temp_dir().join(format!("sluice-gguf-{}", std::process::id()));
        let len = header.file_bytes();
        let output = OutputFile::create_model(&path, true, *b"GGUF").unwrap();
        let writer = header.clone().start(output).unwrap();
        writer.write(1, 34, &[2; 34]).unwrap();
        writer.write(1, 0, &[1; 34]).unwrap();
        writer.write(0, 0, &[3; 12]).unwrap();
        writer.finish().unwrap();
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();

        assert_eq!(bytes.len() as u64, len);
        let gguf = Gguf::parse(&bytes, len).unwrap();
        assert_eq!(gguf.u32("a.u32").unwrap(), 8);
        assert_eq!(gguf.get("a.bool").unwrap().as_bool(), Some(true));
        let tensor = gguf.tensor("two").unwrap();
        let at = usize::try_from(tensor.offset).unwrap();
        assert_eq!(&bytes[at..at + 68], [[1; 34], [2; 34]].as_flattened());
        let again = GgufHeader::with_metadata_of(&gguf);
        assert_eq!(again.metadata, header.metadata);
    }
}
