//! Making `.slc` files and converting them back: [`pack`] and [`unpack`].
//!
//! [`sluice_core::slc`] describes the format. Both read and write a piece at a time (about a MiB
//! per thread), and leave either a complete file or no file.

mod pack;
mod plan;
mod unpack;

pub use pack::{PackOptions, pack, pack_written};
pub use unpack::{unpack, verify};

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use sha2::{Digest as _, Sha256};
use sluice::file::OutputError;
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::hash::Hash64;
use sluice_core::kernels::GgmlType;
use sluice_core::model::LoadProgress;
use sluice_core::slc::{SlcError, TensorProblem};
use sluice_core::state::Identity;
use sluice_core::team::StopFlag;

/// How the matrices of feed-forward networks are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FfnLayout {
    /// In panels, as all others.
    #[default]
    Panels,
    /// Gates in panels, up by rows, down by neurons: what is zero can be left unread.
    Neurons,
    /// As [`Self::Neurons`], with gates by rows as well: neurons that a predictor does not choose are not read at all.
    Predicted,
}

/// Why a file was not packed or unpacked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlcFileError {
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The input cannot be read.
    #[error("{0}")]
    Source(#[from] SourceError),
    /// The `.slc` file's headers are not valid.
    #[error("{0}")]
    Header(Box<SlcError>),
    /// A tensor cannot be stored.
    #[error("tensor {name}: {problem}")]
    Tensor {
        /// Its name.
        name: String,
        /// The problem.
        problem: TensorProblem,
    },
    /// A tensor of a feed-forward network that cannot be stored by row or by neuron.
    #[error("tensor {name} cannot be stored by neuron: {reason}; nothing was written")]
    NoNeuronForm {
        /// The tensor's name.
        name: String,
        /// Why not, and what to do.
        reason: NoFormReason,
    },
    /// The model has no tensor that could be stored by row or by neuron.
    #[error(
        "no tensor of a feed-forward network (blk.N.ffn_down.weight): there is nothing to store by neuron; \
         pack the file without --ffn"
    )]
    NoFeedForward,
    /// A file of PowerInfer, whose down projections are turned when they are loaded.
    #[error("its down projections (ffn_down_t) are stored by neuron, which has no packed form")]
    DownByNeuron,
    /// A precision lane, which has no number in GGUF.
    #[error(
        "tensor {name} is of type {ty}, which GGUF has no number for: this model has no GGUF file; `sluice quantize \
         --allow-requantize` makes one of another type"
    )]
    Lane {
        /// The tensor's name.
        name: String,
        /// Its type.
        ty: GgmlType,
    },
    /// A part of the GGUF file that would not be restored exactly.
    #[error("tensor {name} differs after packing and unpacking; nothing was written")]
    NotInvertible {
        /// The tensor's name.
        name: String,
    },
    /// A payload's bytes are not the packed ones.
    #[error("{part} is damaged: its checksum differs from the recorded one")]
    Damaged {
        /// The part, such as `tensor blk.0.attn_q.weight`.
        part: String,
    },
    /// The unpacked GGUF file differs from the packed one.
    #[error("the restored GGUF file has SHA-256 {found}, not the recorded {expected}")]
    Sha256 {
        /// The hash of the packed file.
        expected: Identity,
        /// The hash of the unpacked file.
        found: Identity,
    },
    /// The input changed while it was read.
    #[error("the file changed while it was read")]
    Changed,
    /// The stop flag was set.
    #[error("interrupted")]
    Stopped,
}

/// Why a tensor cannot be stored by row or by neuron.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoFormReason {
    /// Its sums have a fixed order of columns.
    #[error("type {0} is not one of integers (quantise the model first: sluice quantize)")]
    Float(GgmlType),
    /// No kernels for single neurons of it.
    #[error(
        "type {0} has no such form (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4 have)"
    )]
    Type(GgmlType),
    /// Rows that fill no chunk, or too few columns.
    #[error(
        "its shape is {n_rows} x {n_cols}, and that takes a multiple of {unit} rows, of 64 columns or more"
    )]
    Shape {
        /// Its rows.
        n_rows: u64,
        /// Its columns.
        n_cols: u64,
        /// What its rows have to be a multiple of.
        unit: u64,
    },
    /// A scale that is infinite or not a number.
    #[error("row {row} has a weight that is not a finite number")]
    NotFinite {
        /// Its row, counted through all of its matrices.
        row: u64,
    },
}

impl From<SlcError> for SlcFileError {
    fn from(error: SlcError) -> Self {
        Self::Header(Box::new(error))
    }
}

/// Receives the bytes of a file in order, with their offset.
type Sink<'s> = &'s mut dyn FnMut(u64, &[u8]) -> Result<(), SlcFileError>;

/// Reads a whole file in order, through `sink`; returns its SHA-256.
fn hash_through(
    source: &dyn TensorSource,
    watch: &SlcWatch<'_>,
    sink: Sink<'_>,
) -> Result<[u8; 32], SlcFileError> {
    let mut hash = Sha256::new();
    pieces(source, 0, source.len_bytes(), &mut |at, piece| {
        watch.advance(piece.len() as u64)?;
        hash.update(piece);
        sink(at, piece)
    })?;
    Ok(hash.finalize().into())
}

/// Reads `len` bytes from `offset` on, a piece at a time; all pieces but the last are whole words.
fn pieces(
    source: &dyn TensorSource,
    offset: u64,
    len: u64,
    sink: Sink<'_>,
) -> Result<(), SlcFileError> {
    let mut room = vec![0; PIECE_BYTES.min(usize::try_from(len).unwrap_or(PIECE_BYTES))];
    let mut done = 0;
    while done < len {
        let n = usize::try_from(len - done).unwrap_or(PIECE_BYTES);
        let piece = &mut room[..n.min(PIECE_BYTES)];
        source.read(offset + done, piece)?;
        sink(offset + done, piece)?;
        done += piece.len() as u64;
    }
    Ok(())
}

/// The checksum of a tensor in records, from the checksums of its matrices.
fn checksum_of(matrices: &[u64]) -> u64 {
    let mut hash = Hash64::new();
    matrices
        .iter()
        .for_each(|sum| hash.write(&sum.to_le_bytes()));
    hash.finish()
}

/// Bytes per read and write.
const PIECE_BYTES: usize = 1 << 20;

/// Reports progress, and checks whether to stop.
pub struct SlcWatch<'w> {
    done_bytes: AtomicU64,
    total_bytes: u64,
    stop: &'w StopFlag,
    report: &'w (dyn Fn(LoadProgress) + Sync),
}

impl<'w> SlcWatch<'w> {
    /// Watches work on `total_bytes`, which ends when `stop` is set; `report` is called after every
    /// piece, from any thread.
    pub fn new(
        total_bytes: u64,
        stop: &'w StopFlag,
        report: &'w (dyn Fn(LoadProgress) + Sync),
    ) -> Self {
        Self {
            done_bytes: AtomicU64::new(0),
            total_bytes,
            stop,
            report,
        }
    }

    fn advance(&self, bytes: u64) -> Result<(), SlcFileError> {
        if self.stop.is_set() {
            return Err(SlcFileError::Stopped);
        }
        let before = self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
        (self.report)(LoadProgress {
            done_bytes: before + bytes,
            total_bytes: self.total_bytes,
        });
        Ok(())
    }
}

impl fmt::Debug for SlcWatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch({:?} of {})", self.done_bytes, self.total_bytes)
    }
}
