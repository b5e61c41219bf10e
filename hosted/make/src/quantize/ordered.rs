//! A file's tensors with their neurons in another order.

use core::fmt;
use sluice_core::gguf::source::{SourceError, TensorSource};

/// A tensor whose rows or elements are read in another order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OrderedTensor {
    /// Where its data is in the file.
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    /// Bytes of what is moved as one: a row of gate and up, an element of a row of down.
    pub(super) unit_bytes: u64,
    /// Index of its order.
    pub(super) order: usize,
}

impl OrderedTensor {
    fn end(&self) -> u64 {
        self.offset + self.len_bytes
    }
}

/// A file as it would be if its neurons were in another order. It stays open as long as this exists.
pub struct Ordered<'s> {
    pub(super) source: &'s dyn TensorSource,
    /// By offset; their data does not overlap.
    pub(super) tensors: &'s [OrderedTensor],
    /// For each position the index in the file.
    pub(super) orders: Vec<&'s [u32]>,
}

impl Ordered<'_> {
    /// Reads a part of a tensor; `at` counts from its start.
    fn read_tensor(
        &self,
        tensor: &OrderedTensor,
        at: u64,
        into: &mut [u8],
    ) -> Result<(), SourceError> {
        let order = self.orders[tensor.order];
        match tensor.unit_bytes {
            0..=ELEMENT_BYTES_MAX => self.read_elements(tensor, order, at, into),
            _ => self.read_rows(tensor, order, at, into),
        }
    }

    /// Reads each row from its own place.
    fn read_rows(
        &self,
        tensor: &OrderedTensor,
        order: &[u32],
        mut at: u64,
        mut into: &mut [u8],
    ) -> Result<(), SourceError> {
        let (unit, n) = (tensor.unit_bytes, order.len() as u64);
        while !into.is_empty() {
            let (row, skip) = (at / unit, at % unit);
            let from = row / n * n + u64::from(order[usize_of(row % n)]);
            let len = into.len().min(usize_of(unit - skip));
            let (piece, rest) = into.split_at_mut(len);
            self.source
                .read(tensor.offset + from * unit + skip, piece)?;
            (into, at) = (rest, at + len as u64);
        }
        Ok(())
    }

    /// Reads whole rows and moves their elements.
    fn read_elements(
        &self,
        tensor: &OrderedTensor,
        order: &[u32],
        mut at: u64,
        mut into: &mut [u8],
    ) -> Result<(), SourceError> {
        let unit = usize_of(tensor.unit_bytes);
        let row_bytes = order.len() * unit;
        let (mut row, mut ordered) = (vec![0; row_bytes], vec![0; row_bytes]);
        while !into.is_empty() {
            let (start, skip) = (at / row_bytes as u64, usize_of(at % row_bytes as u64));
            self.source
                .read(tensor.offset + start * row_bytes as u64, &mut row)?;
            for (element, from) in ordered.chunks_exact_mut(unit).zip(order) {
                element.copy_from_slice(&row[*from as usize * unit..][..unit]);
            }
            let len = into.len().min(row_bytes - skip);
            let (piece, rest) = into.split_at_mut(len);
            piece.copy_from_slice(&ordered[skip..skip + len]);
            (into, at) = (rest, at + len as u64);
        }
        Ok(())
    }
}

impl TensorSource for Ordered<'_> {
    fn len_bytes(&self) -> u64 {
        self.source.len_bytes()
    }

    fn slice(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let end = offset.checked_add(len as u64)?;
        let mut tensors = self.tensors.iter();
        let meets = |tensor: &OrderedTensor| tensor.offset < end && offset < tensor.end();
        match tensors.any(meets) {
            true => None,
            false => self.source.slice(offset, len),
        }
    }

    fn read(&self, mut offset: u64, mut into: &mut [u8]) -> Result<(), SourceError> {
        while !into.is_empty() {
            let after = self
                .tensors
                .partition_point(|tensor| tensor.end() <= offset);
            let next = self.tensors.get(after);
            let inside = next.filter(|tensor| tensor.offset <= offset);
            let end = match (inside, next) {
                (Some(tensor), _) => tensor.end(),
                (None, Some(next)) => next.offset,
                (None, None) => u64::MAX,
            };
            let len = usize::try_from(end - offset).map_or(into.len(), |len| len.min(into.len()));
            let (piece, rest) = into.split_at_mut(len);
            match inside {
                Some(tensor) => self.read_tensor(tensor, offset - tensor.offset, piece)?,
                None => self.source.read(offset, piece)?,
            }
            (into, offset) = (rest, offset + len as u64);
        }
        Ok(())
    }

    fn release(&self, offset: u64, len: usize) {
        self.source.release(offset, len);
    }
}

impl fmt::Debug for Ordered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ordered")
            .field("n_tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

/// No row of a matrix is as short as this; no element of a type that is ordered by element is longer.
const ELEMENT_BYTES_MAX: u64 = 4;

fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("a row fits in memory")
}
