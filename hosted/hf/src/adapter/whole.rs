//! Whole tensors of an adapter's file, in the order of the model's GGUF file.

use super::turn::{fits, rearranged};
use crate::decode::decode;
use crate::family::{Change, Map, Wanted};
use crate::safetensors::{Dtype, SafetensorsEntry};
use core::ops::Range;
use sluice::adapter::{AdapterLoadError, check_finite};
use sluice::file::ReadFile;
use sluice_core::gguf::source::TensorSource as _;
use std::sync::Arc;

/// A whole tensor that an adapter holds: (rows, columns), in the order of the model's tensor.
#[derive(Clone, Debug)]
pub struct WholeTensor {
    file: Arc<ReadFile>,
    entry: SafetensorsEntry,
    columns: usize,
    /// The numbers, where their order is not the file's. Others, such as embeddings, are read when they are needed.
    rearranged: Option<Vec<f32>>,
}

impl WholeTensor {
    /// The tensor `wanted`; `entry` has its source's shape.
    ///
    /// # Errors
    /// [`AdapterLoadError`]: of a shape that has no place in a GGUF file, or not readable.
    pub(super) fn new(
        file: &Arc<ReadFile>,
        entry: &SafetensorsEntry,
        wanted: &Wanted,
    ) -> Result<Self, AdapterLoadError> {
        let error = |what| AdapterLoadError::tensor(file.path(), &*entry.name, what);
        if !matches!(wanted.source.len(), 1 | 2) || wanted.shape.len() > 2 {
            let shape = &entry.shape;
            return Err(error(format!(
                "is not a matrix or a vector: it has shape {shape:?}"
            )));
        }
        let mut whole = Self {
            file: Arc::clone(file),
            entry: entry.clone(),
            columns: fits(*wanted.shape.last().unwrap_or(&1)),
            rearranged: None,
        };
        if (&wanted.change, wanted.map) == (&Change::None, Map::Same) {
            return Ok(whole);
        }
        let mut numbers = Vec::new();
        read_numbers(file, entry, 0..entry.len_bytes, &mut numbers)?;
        let numbers = rearranged(numbers, wanted).filter(|_| wanted.map != Map::NegExp);
        let told = "is computed or transposed for GGUF files, so it cannot be replaced";
        let mut numbers = numbers.ok_or_else(|| error(told.into()))?;
        if wanted.map == Map::AddOne {
            numbers.iter_mut().for_each(|x| *x += 1.0);
        }
        whole.rearranged = Some(numbers);
        Ok(whole)
    }

    /// Numbers in a row; a vector is one row.
    #[must_use]
    pub const fn n_cols(&self) -> usize {
        self.columns
    }

    /// The number of rows.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        let n = self.entry.shape.iter().product();
        match &self.rearranged {
            Some(numbers) => numbers.len() / self.columns,
            None => fits(n) / self.columns,
        }
    }

    /// The type of its numbers in the file.
    pub(super) const fn dtype(&self) -> Dtype {
        self.entry.dtype
    }

    /// Puts `rows` into `out`.
    ///
    /// # Errors
    /// [`AdapterLoadError`]: the file cannot be read, or holds numbers that are not finite.
    pub fn read(&self, rows: Range<usize>, out: &mut Vec<f32>) -> Result<(), AdapterLoadError> {
        out.clear();
        if let Some(numbers) = &self.rearranged {
            out.extend(&numbers[rows.start * self.columns..rows.end * self.columns]);
            return Ok(());
        }
        let row_bytes = self.columns as u64 * u64::from(self.entry.dtype.bits()) / 8;
        let bytes = rows.start as u64 * row_bytes..rows.end as u64 * row_bytes;
        read_numbers(&self.file, &self.entry, bytes, out)
    }
}

/// Appends the numbers in some bytes of a tensor.
pub(super) fn read_numbers(
    file: &ReadFile,
    entry: &SafetensorsEntry,
    range: Range<u64>,
    out: &mut Vec<f32>,
) -> Result<(), AdapterLoadError> {
    let (Dtype::F32 | Dtype::F16 | Dtype::BF16) = entry.dtype else {
        let what = format!(
            "is stored as {}; adapters have F32, F16 or BF16",
            entry.dtype
        );
        return Err(AdapterLoadError::tensor(file.path(), &*entry.name, what));
    };
    let mut bytes = vec![0; fits(range.end - range.start)];
    let read = file.read(entry.offset + range.start, &mut bytes);
    read.map_err(|error| AdapterLoadError::data(file.path(), &*entry.name, error))?;
    let before = out.len();
    decode(entry.dtype, &bytes, out);
    check_finite(file.path(), &entry.name, &out[before..])
}
