//! Streaming weights from one file to another, in pieces, on all workers.

use super::importance::ImportanceMatrix;
use super::plan::{Plan, PlannedTensor};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sluice::Team;
use sluice::file::{GgufWriter, OutputError};
use sluice::host::workers::WorkerPanicked;
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::kernels::quantize::{QuantizeError as ValueError, Quantizer};
use sluice_core::kernels::{GgmlType, WeightType};
use sluice_core::team::StopFlag;
use std::sync::{Mutex, PoisonError};

/// Why a file was not quantised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum QuantizeFileError {
    /// The source cannot be read.
    #[error("cannot read {tensor}: {error}")]
    Read { tensor: String, error: SourceError },
    /// A tensor holds values that cannot be quantised.
    #[error("{tensor}, from row {row} on: {error}")]
    Values {
        tensor: String,
        row: u64,
        error: ValueError,
    },
    /// The importance matrix is for another model.
    #[error("the importance matrix has {found} columns for {tensor}, expected {expected}")]
    Importance {
        tensor: String,
        found: usize,
        expected: u64,
    },
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] OutputError),
    /// A thread failed.
    #[error(transparent)]
    Panicked(#[from] WorkerPanicked),
    /// The stop flag was set.
    #[error("interrupted")]
    Stopped,
}

/// Writes every tensor of `plan` from `source` to `writer`, whose header lists the same tensors in the same order.
/// `progress` is called on the calling thread with the source bytes processed so far.
///
/// Each worker holds one piece of about 256 K weights at a time.
///
/// # Errors
/// [`QuantizeFileError`]: the first error of any worker. The output must then be discarded.
pub fn quantize(
    source: &dyn TensorSource,
    plan: &Plan,
    importance: Option<&ImportanceMatrix>,
    writer: &GgufWriter,
    team: &Team,
    stop: &StopFlag,
    progress: impl FnMut(u64) + Send,
) -> Result<(), QuantizeFileError> {
    let columns = importances(plan, importance)?;
    let pieces = pieces(plan);
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let (progress, first_error) = (Mutex::new(progress), Mutex::new(None));
    let quantizer = Quantizer::detect();
    team.run(|rank| {
        let mut room = Room::default();
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let tensor = &plan.tensors[piece.tensor];
            let result = if stop.is_set() {
                Err(QuantizeFileError::Stopped)
            } else {
                let columns = &columns[piece.tensor];
                room.convert(source, tensor, piece, columns, &quantizer)
                    .and_then(|()| {
                        let offset = piece.row * row_bytes(tensor.target, tensor);
                        Ok(writer.write(piece.tensor, offset, &room.out)?)
                    })
            };
            if let Err(error) = result {
                next.store(pieces.len(), Ordering::Relaxed);
                let mut first = first_error.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(error);
                return;
            }
            let bytes = piece.n_rows * row_bytes(tensor.source, tensor);
            let now = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if rank == 0 {
                let mut report = progress.lock().unwrap_or_else(PoisonError::into_inner);
                report(now);
            }
        }
    })?;
    let first_error = first_error.into_inner();
    first_error
        .unwrap_or_else(PoisonError::into_inner)
        .map_or(Ok(()), Err)
}

/// Some rows of a tensor, all in one matrix of it.
#[derive(Clone, Copy, Debug)]
struct Piece {
    tensor: usize,
    /// The first row, counted over all matrices.
    row: u64,
    n_rows: u64,
}

/// Cuts the plan into pieces, tensor by tensor.
fn pieces(plan: &Plan) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (index, tensor) in plan.tensors.iter().enumerate() {
        // An empty tensor does not have a piece.
        if tensor.n_elements() == 0 {
            continue;
        }
        let rows_per_matrix = tensor.dims.get(1).copied().unwrap_or(1);
        let step = (PIECE_WEIGHTS / tensor.row_len()).max(1);
        for matrix in 0..tensor.n_rows() / rows_per_matrix {
            let mut row = 0;
            while row < rows_per_matrix {
                let n_rows = step.min(rows_per_matrix - row);
                pieces.push(Piece {
                    tensor: index,
                    row: matrix * rows_per_matrix + row,
                    n_rows,
                });
                row += n_rows;
            }
        }
    }
    pieces
}

/// The importance of the columns of every matrix of every tensor; `None` if it is unknown.
pub(super) fn importances(
    plan: &Plan,
    importance: Option<&ImportanceMatrix>,
) -> Result<Vec<Vec<Vec<f32>>>, QuantizeFileError> {
    plan.tensors
        .iter()
        .map(|tensor| {
            let known = importance.and_then(|matrix| matrix.weights.get(&tensor.name));
            let Some(known) = known.filter(|_| !tensor.is_copied()) else {
                return Ok(Vec::new());
            };
            let n_matrices = tensor.dims.iter().skip(2).product::<u64>();
            let expected = tensor.row_len() * n_matrices;
            let found = known.sums.len();
            let n_counts = known.counts.len() as u64;
            // Files in the older format have one count for all experts.
            if found as u64 != expected || (n_counts != n_matrices && n_counts != 1) {
                let tensor = tensor.name.clone();
                return Err(QuantizeFileError::Importance {
                    tensor,
                    found,
                    expected,
                });
            }
            Ok(known.by_matrix(usize_of(n_matrices)))
        })
        .collect()
}

/// A worker's buffers.
#[derive(Default)]
struct Room {
    source: Vec<u8>,
    floats: Vec<f32>,
    out: Vec<u8>,
}

impl Room {
    /// Reads a piece and leaves its encoded bytes in `out`.
    fn convert(
        &mut self,
        source: &dyn TensorSource,
        tensor: &PlannedTensor,
        piece: &Piece,
        columns: &[Vec<f32>],
        quantizer: &Quantizer,
    ) -> Result<(), QuantizeFileError> {
        let len = |ty| usize_of(piece.n_rows * row_bytes(ty, tensor));
        let offset = tensor.offset + piece.row * row_bytes(tensor.source, tensor);
        let into = if tensor.is_copied() {
            &mut self.out
        } else {
            &mut self.source
        };
        into.resize(len(tensor.source), 0);
        let read = source.read(offset, into);
        read.map_err(|error| QuantizeFileError::Read {
            tensor: tensor.name.clone(),
            error,
        })?;
        if tensor.is_copied() && WeightType::from_ggml(tensor.source).is_none() {
            return Ok(());
        }
        let n = usize_of(piece.n_rows * tensor.row_len());
        self.floats.resize(n, 0.0);
        let bytes = if tensor.is_copied() {
            &self.out
        } else {
            &self.source
        };
        dequantize_row(tensor.source, bytes, &mut self.floats);
        if tensor.is_copied() {
            return check_finite(&self.floats, tensor, piece.row);
        }
        self.out.resize(len(tensor.target), 0);
        let matrix = piece.row / tensor.dims.get(1).copied().unwrap_or(1);
        let columns = columns.get(usize_of(matrix)).map(Vec::as_slice);
        let n_per_row = usize_of(tensor.row_len());
        quantizer
            .quantize_rows(
                tensor.target,
                &self.floats,
                n_per_row,
                columns,
                &mut self.out,
            )
            .map_err(|error| QuantizeFileError::Values {
                tensor: tensor.name.clone(),
                row: piece.row,
                error,
            })
    }
}

/// Copied tensors must be finite, as quantised ones must.
fn check_finite(floats: &[f32], tensor: &PlannedTensor, row: u64) -> Result<(), QuantizeFileError> {
    match floats.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(index) => Err(QuantizeFileError::Values {
            tensor: tensor.name.clone(),
            row,
            error: ValueError::ValueNotFinite { index },
        }),
    }
}

/// Reads some rows of a tensor as f32.
///
/// # Errors
/// [`QuantizeFileError::Read`].
pub fn read_rows(
    source: &dyn TensorSource,
    tensor: &PlannedTensor,
    rows: core::ops::Range<u64>,
    into: &mut Vec<f32>,
) -> Result<(), QuantizeFileError> {
    let n_rows = rows.end - rows.start;
    let mut bytes = vec![0; usize_of(n_rows * row_bytes(tensor.source, tensor))];
    let offset = tensor.offset + rows.start * row_bytes(tensor.source, tensor);
    let read = source.read(offset, &mut bytes);
    read.map_err(|error| QuantizeFileError::Read {
        tensor: tensor.name.clone(),
        error,
    })?;
    into.resize(usize_of(n_rows * tensor.row_len()), 0.0);
    dequantize_row(tensor.source, &bytes, into);
    Ok(())
}

fn row_bytes(ty: GgmlType, tensor: &PlannedTensor) -> u64 {
    ty.row_bytes(tensor.row_len())
        .expect("types fit their rows")
}

pub(super) fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("a piece fits in memory")
}

/// Weights in a piece: a few hundred KB of input and output, and a few ms of work.
const PIECE_WEIGHTS: u64 = 1 << 18;
