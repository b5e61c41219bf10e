//! Matrices that files store by columns, a chunk of rows at a time.

use super::super::error::ModelError;
use super::super::job::Job;
use super::Loader;
use crate::gguf::source::TensorSource;
use crate::kernels::GgmlType;
use crate::kernels::blocks::dequantize_block;
use crate::memory::MemoryError;
use core::ops::Range;

/// Values of the longest block.
const BLOCK_LEN_MAX: usize = 256;

impl Loader<'_, '_> {
    /// Converts the rows `rows` of a matrix whose columns are the tensor's rows: the same blocks of every column, decoded
    /// where they have scales, so that no value changes. Returns the bytes of the result that it covered.
    pub(super) fn turn(
        &self,
        job: &Job,
        ty: GgmlType,
        rows: Range<usize>,
        source: &dyn TensorSource,
        staging: &mut [u8],
    ) -> Result<usize, ModelError> {
        let (len, stored_row_bytes) = (rows.len() * job.row_bytes, job.piece_bytes(job.n_rows));
        let (piece_len, skipped) = (job.piece_bytes(rows.len()), job.piece_bytes(rows.start));
        let missing_bytes = (len + piece_len).saturating_sub(staging.len());
        let (turned, piece) = (staging.get_mut(..len + piece_len))
            .ok_or(MemoryError::TooSmall { missing_bytes })?
            .split_at_mut(len);
        let element_bytes = match ty {
            GgmlType::F16 | GgmlType::BF16 => 2,
            _ => 4,
        };
        for column in 0..job.row_bytes / element_bytes {
            let at = job.offset + (column * stored_row_bytes + skipped) as u64;
            let stored = match source.slice(at, piece_len) {
                Some(stored) if stored.len() == piece_len => stored,
                _ => {
                    let name = |error| ModelError::Source {
                        name: self.name(job),
                        error,
                    };
                    source.read(at, piece).map_err(name)?;
                    &*piece
                }
            };
            let to = &mut turned[column * element_bytes..];
            put_column(ty, stored, to, job.row_bytes);
        }
        self.pack(job, rows.start, turned);
        if rows.end == job.n_rows {
            let n_columns = job.row_bytes / element_bytes;
            source.release(job.offset, n_columns * stored_row_bytes);
        }
        Ok(len)
    }
}

/// Writes the values of a column's blocks to rows that are `row_bytes` apart; `to` begins in the first.
fn put_column(ty: GgmlType, stored: &[u8], to: &mut [u8], row_bytes: usize) {
    let mut put = |row: usize, value: &[u8]| {
        let at = row * row_bytes;
        to[at..at + value.len()].copy_from_slice(value);
    };
    if matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16) {
        let values = stored.chunks_exact(ty.block_bytes()).enumerate();
        return values.for_each(|(row, value)| put(row, value));
    }
    let mut values = [0f32; BLOCK_LEN_MAX];
    let (n, blocks) = (ty.block_len(), stored.chunks_exact(ty.block_bytes()));
    for (index, block) in blocks.enumerate() {
        dequantize_block(ty, block, &mut values[..n]);
        for (row, value) in (index * n..).zip(&values[..n]) {
            put(row, &value.to_le_bytes());
        }
    }
}
