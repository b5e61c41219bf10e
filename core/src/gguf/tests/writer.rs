//! A GGUF writer for tests: writes its input unchecked, right or wrong.

use super::std::vec::Vec;
use crate::kernels::GgmlType;

pub(super) struct Writer {
    version: u32,
    metadata: Vec<u8>,
    /// The counts in the file's header, which a test may set to differ from the contents.
    pub(super) metadata_count: u64,
    infos: Vec<u8>,
    pub(super) tensor_count: u64,
    alignment: u64,
    data_len: u64,
}

impl Writer {
    pub(super) fn new(version: u32) -> Self {
        Self {
            version,
            metadata: Vec::new(),
            metadata_count: 0,
            infos: Vec::new(),
            tensor_count: 0,
            alignment: 32,
            data_len: 0,
        }
    }

    /// An entry of value type `id`, with `value` as it is stored in the file.
    pub(super) fn entry(self, key: &str, id: u32, value: &[u8]) -> Self {
        self.entry_bytes(key.as_bytes(), id, value)
    }

    pub(super) fn entry_bytes(mut self, key: &[u8], id: u32, value: &[u8]) -> Self {
        self.metadata_count += 1;
        self.metadata.extend(string(key));
        self.metadata.extend(id.to_le_bytes());
        self.metadata.extend(value);
        self
    }

    pub(super) fn u32(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    pub(super) fn str(self, key: &str, value: &[u8]) -> Self {
        self.entry(key, 8, &string(value))
    }

    pub(super) fn strings(self, key: &str, values: &[&[u8]]) -> Self {
        let elements: Vec<u8> = values.iter().flat_map(|value| string(value)).collect();
        self.entry(key, 9, &array(8, values.len() as u64, &elements))
    }

    pub(super) fn alignment(mut self, alignment: u32) -> Self {
        self.alignment = alignment.into();
        self.u32("general.alignment", alignment)
    }

    /// A tensor after those added so far, as ggml lays them out.
    pub(super) fn tensor(mut self, name: &str, dims: &[u64], ty: GgmlType) -> Self {
        let offset = self.data_len.next_multiple_of(self.alignment);
        let rows: u64 = dims[1..].iter().product();
        self.data_len = offset + rows * ty.row_bytes(dims[0]).expect("whole blocks");
        self.tensor_raw(name, dims, ty as u32, offset)
    }

    /// Only a tensor info; `offset` counts from the start of the data.
    pub(super) fn tensor_raw(mut self, name: &str, dims: &[u64], id: u32, offset: u64) -> Self {
        self.tensor_count += 1;
        self.infos.extend(string(name.as_bytes()));
        self.infos.extend(
            u32::try_from(dims.len())
                .expect("few dimensions")
                .to_le_bytes(),
        );
        self.infos
            .extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        self.infos.extend(id.to_le_bytes());
        self.infos.extend(offset.to_le_bytes());
        self
    }

    /// Room for the data of tensors added with [`Self::tensor_raw`].
    pub(super) fn data_len(mut self, data_len: u64) -> Self {
        self.data_len = data_len;
        self
    }

    pub(super) fn header(&self) -> Vec<u8> {
        let mut bytes = Vec::from(*b"GGUF");
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensor_count.to_le_bytes());
        bytes.extend(self.metadata_count.to_le_bytes());
        bytes.extend(&self.metadata);
        bytes.extend(&self.infos);
        bytes
    }

    /// The whole file; data bytes are zero.
    pub(super) fn file(&self) -> Vec<u8> {
        let mut bytes = self.header();
        if self.tensor_count > 0 {
            let len = (bytes.len() as u64).next_multiple_of(self.alignment) + self.data_len;
            bytes.resize(usize::try_from(len).expect("a small file"), 0);
        }
        bytes
    }
}

pub(super) fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// An array value: element type, stated length, elements.
pub(super) fn array(id: u32, len: u64, elements: &[u8]) -> Vec<u8> {
    [&id.to_le_bytes()[..], &len.to_le_bytes(), elements].concat()
}
