//! Tensor infos: what each tensor is and where its data is stored.

use super::cursor::Cursor;
use super::error::{GgufError, GgufErrorKind};
use super::{DIMS_MAX, TENSOR_NAME_LEN_MAX};
use crate::kernels::GgmlType;

/// One tensor of the file. The data range was checked to be inside the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// For example `blk.0.attn_q.weight`; unique in the file.
    pub name: &'a str,
    /// Number of dimensions in the file, 0 to 4.
    pub n_dims: usize,
    /// Elements along each dimension; unused ones are 1. If one is 0, the tensor is empty. `dims[0]` is the row
    /// length and varies fastest: a weight of shape (rows, columns) has dims [columns, rows].
    pub dims: [u64; DIMS_MAX],
    /// The storage type of the elements.
    pub ty: GgmlType,
    /// Where the data starts, in bytes from the file's start.
    pub offset: u64,
    /// Bytes of data.
    pub len_bytes: u64,
}

impl<'a> TensorInfo<'a> {
    /// Reads an info, whose offset counts from `data_offset`. Does not look at the file length.
    pub(super) fn read(cursor: &mut Cursor<'a>, data_offset: u64) -> Result<Self, GgufError> {
        let name = cursor.name("tensor name length", TENSOR_NAME_LEN_MAX)?;
        Self::read_named(cursor, name, data_offset).map_err(|error| error.named(name.as_bytes()))
    }

    fn read_named(
        cursor: &mut Cursor<'a>,
        name: &'a str,
        data_offset: u64,
    ) -> Result<Self, GgufError> {
        let n_dims = cursor.u32()?;
        if n_dims as usize > DIMS_MAX {
            return Err(cursor.error_behind(
                4,
                GgufErrorKind::OverLimit {
                    what: "number of dimensions",
                    value: n_dims.into(),
                    max: DIMS_MAX as u64,
                },
            ));
        }
        let dims_at = cursor.position();
        let mut dims = [1; DIMS_MAX];
        for dim in 0..n_dims {
            dims[dim as usize] = cursor.u64()?;
        }
        let id = cursor.u32()?;
        let Some(ty) = GgmlType::from_id(id) else {
            return Err(cursor.error_behind(4, GgufErrorKind::UnknownTensorType { id }));
        };
        let offset = cursor.u64()?;
        let len_bytes = len_bytes(dims, ty).map_err(|kind| cursor.error(dims_at, kind))?;
        let Some(offset) = offset.checked_add(data_offset) else {
            return Err(cursor.error_behind(8, GgufErrorKind::SizeOverflow));
        };
        Ok(Self {
            name,
            n_dims: n_dims as usize,
            dims,
            ty,
            offset,
            len_bytes,
        })
    }

    /// Steps over an info that was read before and returns its offset as stored in the file.
    pub(super) fn read_offset(cursor: &mut Cursor<'_>) -> Result<u64, GgufError> {
        cursor.string("tensor name length", TENSOR_NAME_LEN_MAX)?;
        let n_dims = cursor.u32()?;
        cursor.take(u64::from(n_dims) * 8 + 4)?;
        cursor.u64()
    }

    /// Number of elements.
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Number of rows of `dims[0]` elements.
    pub fn n_rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// Bytes of one row; 0 if there are no rows.
    pub fn row_bytes(&self) -> u64 {
        self.len_bytes.checked_div(self.n_rows()).unwrap_or(0)
    }
}

/// Bytes of a tensor. The numbers of elements and rows are checked too, so that
/// [`TensorInfo::n_elements`] and [`TensorInfo::n_rows`] cannot overflow (4-bit types have more elements than bytes).
fn len_bytes(dims: [u64; DIMS_MAX], ty: GgmlType) -> Result<u64, GgufErrorKind> {
    let [row_len, outer @ ..] = dims;
    if !row_len.is_multiple_of(ty.block_len() as u64) {
        return Err(GgufErrorKind::RowNotWholeBlocks { row_len, ty });
    }
    let product = |first| {
        outer
            .iter()
            .try_fold(first, |n: u64, &dim| n.checked_mul(dim))
    };
    // Checked separately too: a row of no elements would hide the number of rows.
    product(row_len.max(1)).ok_or(GgufErrorKind::SizeOverflow)?;
    ty.row_bytes(row_len)
        .and_then(product)
        .ok_or(GgufErrorKind::SizeOverflow)
}

/// Tensors in file order. Made by [`super::Gguf::tensors`].
#[derive(Clone, Debug)]
pub struct Tensors<'a> {
    cursor: Cursor<'a>,
    left: u32,
    data_offset: u64,
}

impl<'a> Tensors<'a> {
    pub(super) fn new(cursor: Cursor<'a>, left: u32, data_offset: u64) -> Self {
        Self {
            cursor,
            left,
            data_offset,
        }
    }
}

impl<'a> Iterator for Tensors<'a> {
    type Item = TensorInfo<'a>;

    fn next(&mut self) -> Option<TensorInfo<'a>> {
        self.left = self.left.checked_sub(1)?;
        TensorInfo::read(&mut self.cursor, self.data_offset).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Tensors<'_> {}

/// Name length, a one-byte name, number of dimensions (0), type, offset.
pub(super) const INFO_BYTES_MIN: u64 = 8 + 1 + 4 + 4 + 8;
