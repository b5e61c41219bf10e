//! The loader's jobs: tensors, converted a chunk of rows at a time.

use super::place::Target;
use super::refs::{LayoutRef, VectorRef};
use crate::gguf::TensorInfo;
use crate::kernels::bytes::Pod;
use crate::kernels::panel::PANEL_ROWS;
use crate::kernels::{GgmlType, WeightType};

/// Maximum bytes of scratch memory that one call of the conversion needs.
pub(super) fn chunk_bytes(tensor: &TensorInfo<'_>, target: Target) -> usize {
    let target = match target {
        Target::Turned(_) => target,
        // Of a stack, rows of all matrices count.
        _ => Target::Vector(VectorRef { offset: 0, len: 0 }),
    };
    let job = Job::new(0, tensor, target);
    let n_rows = job.chunk_rows().min(job.n_rows);
    n_rows * job.row_bytes + job.piece_bytes(n_rows)
}

/// A tensor to convert. Plain numbers: the table of jobs is stored in the caller's bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Job {
    /// Where the tensor starts in the file.
    pub(super) offset: u64,
    /// The result: 0 panels, 1 a vector, 2 rows, 3 panels of an expert, 4 rows that stay in the file; from 5 on panels of
    /// the transposed tensor, whose type has that place in [`WeightType::ALL`] after it.
    pub(super) kind: usize,
    /// Rows of the result, and bytes of each before it becomes panels.
    pub(super) n_rows: usize,
    pub(super) row_bytes: usize,
    /// Index of this job's first chunk among all chunks.
    pub(super) first_chunk: usize,
    /// Index of the tensor in the file, for messages.
    pub(super) tensor: usize,
    /// Offset in weight memory, of length `len`.
    pub(super) target: usize,
    pub(super) len: usize,
    /// For panels: type and shape.
    pub(super) layout: LayoutRef,
}

// An even number of words: on 32-bit machines an odd one would be padded.
const _: () = assert!(size_of::<Job>() == 8 + (7 + 5) * size_of::<usize>());
// SAFETY: repr(C) of u64 and `usize` alone, without padding by the assertion above.
unsafe impl Pod for Job {}

impl Job {
    pub(super) const PANELS: usize = 0;
    pub(super) const VECTOR: usize = 1;
    const ROWS: usize = 2;
    /// Rows that stay in the file: nothing to convert.
    pub(super) const FILE_ROWS: usize = 4;
    /// Panels of an expert, which may be stored elsewhere.
    pub(super) const EXPERT: usize = 3;

    /// Panels of the transposed tensor, of the first type.
    const TURNED: usize = 5;

    /// An empty job, to fill tables with.
    pub(super) const EMPTY: Self = Self {
        offset: 0,
        n_rows: 0,
        row_bytes: 0,
        first_chunk: 0,
        tensor: 0,
        kind: Self::VECTOR,
        target: 0,
        len: 0,
        layout: LayoutRef::EMPTY,
    };

    /// A job for the tensor at `index` in the file.
    pub(super) fn new(index: usize, tensor: &TensorInfo<'_>, target: Target) -> Self {
        let kind = match target {
            Target::Panels(_) | Target::OneOf(_, _, None) => Self::PANELS,
            Target::OneOf(_, _, Some(_)) => Self::EXPERT,
            Target::Turned(_) => {
                let place = WeightType::ALL.iter().position(|ty| ty.ggml() == tensor.ty);
                Self::TURNED + place.unwrap_or(0)
            }
            Target::Vector(_) => Self::VECTOR,
            Target::Rows(_) => Self::ROWS,
            Target::FileRows(_) => Self::FILE_ROWS,
        };
        let (start, len) = target.range();
        let row_bytes = usize::try_from(tensor.row_bytes()).unwrap_or(usize::MAX);
        let row_bytes = match target {
            Target::Turned(matrix) => matrix.layout().gguf_row_bytes(),
            _ => row_bytes,
        };
        let (n_rows, expert) = match target {
            Target::OneOf(matrix, expert, _) => (matrix.layout().n_rows(), expert),
            Target::Turned(matrix) => (matrix.layout().n_rows(), 0),
            _ => (usize::try_from(tensor.n_rows()).unwrap_or(usize::MAX), 0),
        };
        Self {
            // The tensor's length bounds the product.
            offset: tensor.offset + (expert * n_rows * row_bytes) as u64,
            n_rows,
            row_bytes,
            tensor: index,
            kind,
            target: start,
            len,
            layout: match target {
                Target::Panels(matrix) | Target::Turned(matrix) | Target::OneOf(matrix, ..) => {
                    matrix.layout
                }
                Target::Vector(_) | Target::Rows(_) | Target::FileRows(_) => LayoutRef::EMPTY,
            },
            ..Self::EMPTY
        }
    }

    /// The number of chunks in which it is converted.
    pub(super) const fn n_chunks(&self) -> usize {
        match self.kind {
            Self::FILE_ROWS => 0,
            _ => self.n_rows.div_ceil(self.chunk_rows()),
        }
    }

    /// Rows of a chunk: whole bands, about 512 KiB; whole blocks of a transposed tensor's rows.
    pub(super) const fn chunk_rows(&self) -> usize {
        let block_len = match self.stored_type() {
            Some(ty) => ty.block_len(),
            None => 1,
        };
        // Blocks are as long as a power of two.
        let unit = if block_len > PANEL_ROWS {
            block_len
        } else {
            PANEL_ROWS
        };
        let units = (512 << 10) / (self.row_bytes * unit);
        if units == 0 { unit } else { units * unit }
    }

    /// The type of the tensor, if it is transposed.
    pub(super) const fn stored_type(&self) -> Option<GgmlType> {
        match self.kind < Self::TURNED {
            true => None,
            false => Some(WeightType::ALL[self.kind - Self::TURNED].ggml()),
        }
    }

    /// Bytes of the part of a transposed tensor's row that holds `n` columns.
    pub(super) const fn piece_bytes(&self, n: usize) -> usize {
        match self.stored_type() {
            Some(ty) => n / ty.block_len() * ty.block_bytes(),
            None => 0,
        }
    }
}
