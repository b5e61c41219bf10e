//! Damaged weights, which are not looked for when a file is opened.
#![forbid(unsafe_code)]

use super::{FileError, ModelFile};
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::gguf::{Gguf, TensorInfo};
use sluice_core::hash::Hash64;
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::kernels::{GgmlType, WeightType};
use sluice_core::slc::Slc;
use sluice_core::team::StopFlag;

impl ModelFile {
    /// Checks all weights: the checksums of a `.slc` file, and of a GGUF file, which has none, that every weight is
    /// finite, as llama.cpp does. The whole file is read, unless `stop` is set meanwhile.
    ///
    /// # Errors
    /// [`FileError::Weights`] with the first tensor that is damaged, or the file cannot be read.
    pub fn check_tensors(&self, stop: &StopFlag) -> Result<(), FileError> {
        let gguf = self.parse()?;
        let damage = match self.slc()? {
            Some(slc) => damaged_payload(self.contents(), &slc, stop).map(|part| {
                Some(format!(
                    "{} is damaged: its checksum differs from the recorded one",
                    part?
                ))
            }),
            None => not_finite(self.source(), &gguf, stop),
        };
        let weights = |what| FileError::Weights {
            name: self.name().to_owned(),
            what,
        };
        match damage {
            Ok(None) => Ok(()),
            Ok(Some(what)) => Err(weights(what)),
            Err(error) => Err(weights(error.to_string())),
        }
    }
}

/// The first row with a weight that is not a finite number.
fn not_finite(
    source: &dyn TensorSource,
    gguf: &Gguf<'_>,
    stop: &StopFlag,
) -> Result<Option<String>, SourceError> {
    let (mut bytes, mut row) = (Vec::new(), Vec::new());
    for tensor in gguf.tensors().filter(has_weights) {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        bytes.resize(size(tensor.row_bytes()), 0);
        row.resize(size(tensor.dims[0]), 0.0);
        for index in 0..tensor.n_rows() {
            if stop.is_set() {
                return Ok(None);
            }
            source.read(tensor.offset + index * tensor.row_bytes(), &mut bytes)?;
            if !is_finite(tensor.ty, &bytes, &mut row) {
                let name = tensor.name.escape_debug();
                return Ok(Some(format!(
                    "row {index} of tensor {name} has a weight that is not a finite number"
                )));
            }
        }
    }
    Ok(None)
}

/// Whether all numbers of a row are finite; `room` is as long as the row.
fn is_finite(ty: GgmlType, row: &[u8], room: &mut [f32]) -> bool {
    if ty == GgmlType::F64 {
        let (numbers, _) = row.as_chunks();
        return numbers.iter().all(|x| f64::from_le_bytes(*x).is_finite());
    }
    dequantize_row(ty, row, room);
    room.iter().all(|x| x.is_finite())
}

/// Integers are always finite.
fn has_weights(tensor: &TensorInfo<'_>) -> bool {
    let has = tensor.ty == GgmlType::F64 || WeightType::from_ggml(tensor.ty).is_some();
    has && tensor.len_bytes > 0
}

/// The first payload of `slc`, with the bytes `packed`, whose checksum is wrong. The whole file is read. `None`, too, if
/// `stop` was set meanwhile.
///
/// # Errors
/// [`SourceError`]: the file cannot be read.
pub fn damaged_payload(
    packed: &dyn TensorSource,
    slc: &Slc<'_>,
    stop: &StopFlag,
) -> Result<Option<String>, SourceError> {
    for (index, (tensor, header)) in slc.tensors().enumerate() {
        if stop.is_set() {
            return Ok(None);
        }
        let name = tensor.name.escape_debug();
        let sums: Option<Vec<u64>> = slc.matrix_checksums(index).map(Iterator::collect);
        let mut whole = Hash64::new();
        for matrix in 0..header.n_matrices() {
            let (at, len) = (header.matrix_offset(matrix), header.matrix_bytes());
            let Some(sums) = &sums else {
                add(packed, at, len, &mut whole)?;
                continue;
            };
            let mut hash = Hash64::new();
            add(packed, at, len, &mut hash)?;
            let sum = hash.finish();
            if usize::try_from(matrix).map(|matrix| sums.get(matrix)) != Ok(Some(&sum)) {
                return Ok(Some(format!("expert {matrix} of tensor {name}")));
            }
            whole.write(&sum.to_le_bytes());
        }
        if whole.finish() != header.checksum {
            return Ok(Some(format!("tensor {name}")));
        }
    }
    for gap in slc.gaps() {
        let mut hash = Hash64::new();
        add(packed, gap.offset, gap.len_bytes, &mut hash)?;
        if hash.finish() != gap.checksum {
            let at = gap.gguf_offset;
            return Ok(Some(format!("the gap at byte {at} of the GGUF file")));
        }
    }
    Ok(None)
}

/// Adds a range of a file to a checksum. The range must be whole words unless it is the last one.
fn add(
    packed: &dyn TensorSource,
    mut offset: u64,
    len: u64,
    hash: &mut Hash64,
) -> Result<(), SourceError> {
    let mut left = usize::try_from(len).unwrap_or(usize::MAX);
    let mut room = vec![0; PIECE_BYTES.min(left)];
    while left > 0 {
        let piece = &mut room[..PIECE_BYTES.min(left)];
        packed.read(offset, piece)?;
        hash.write(piece);
        offset += piece.len() as u64;
        left -= piece.len();
    }
    Ok(())
}

/// Bytes per read.
const PIECE_BYTES: usize = 1 << 20;
