//! Streaming weights into the file.
#![forbid(unsafe_code)]

use super::ConvertError;
use super::encode::{decode, encode};
use super::plan::{Conversion, Source};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sluice::file::{GgufWriter, OutputFile};
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::quantize::Quantizer;
use sluice_core::team::StopFlag;
use std::sync::Mutex;
use std::thread;

/// How a conversion ended that met no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The file is complete and has its name.
    Complete,
    /// It was asked to stop; no file is left.
    Stopped,
}

/// A piece of one tensor: whole rows, of one part, in whole heads where rows are reordered.
#[derive(Clone, Copy, Debug)]
struct Piece {
    tensor: usize,
    part: usize,
    row: u64,
    n_rows: u64,
}

/// Numbers in a piece, unless one row or head has more.
const PIECE_LEN: u64 = 1 << 20;

/// What a thread works in, a few times [`PIECE_LEN`].
#[derive(Default)]
struct Buffers {
    source: Vec<u8>,
    numbers: Vec<f32>,
    rows: Vec<f32>,
    encoded: Vec<u8>,
}

impl Conversion {
    /// Writes the file with `n_threads` threads. `progress` is told the bytes of data written so
    /// far, on this thread.
    ///
    /// # Errors
    /// [`ConvertError::Data`], [`ConvertError::Numbers`] or [`ConvertError::Output`], after which
    /// no file is left.
    ///
    /// # Panics
    /// Never by itself; if `progress` does.
    pub fn write(
        self,
        output: OutputFile,
        n_threads: usize,
        stop: &StopFlag,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Ended, ConvertError> {
        let writer = self.header.clone().start(output)?;
        let pieces = self.pieces();
        let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
        let is_over = AtomicBool::new(false);
        let failure = Mutex::new(None);
        let quantizer = Quantizer::detect();
        let work = |report: &mut dyn FnMut(u64)| {
            let mut buffers = Buffers::default();
            while !stop.is_set() && !is_over.load(Ordering::Relaxed) {
                let Some(&piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    break;
                };
                match self.convert(piece, &writer, quantizer, &mut buffers) {
                    Ok(len) => report(done.fetch_add(len, Ordering::Relaxed) + len),
                    Err(error) => {
                        is_over.store(true, Ordering::Relaxed);
                        let mut failure = failure.lock().expect("no holder panics");
                        failure.get_or_insert(error);
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..n_threads {
                scope.spawn(|| work(&mut |_| {}));
            }
            work(progress);
        });
        if let Some(error) = failure.into_inner().expect("no holder panics") {
            return Err(error);
        }
        if stop.is_set() {
            return Ok(Ended::Stopped);
        }
        writer.finish()?;
        Ok(Ended::Complete)
    }

    fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (tensor, source) in self.sources.iter().enumerate() {
            let Source::Parts {
                parts,
                rows,
                columns,
                permute_heads,
            } = source
            else {
                pieces.push(Piece {
                    tensor,
                    part: 0,
                    row: 0,
                    n_rows: 1,
                });
                continue;
            };
            // Rows that stay together.
            let unit = permute_heads.map_or(1, |n_head| rows / u64::from(n_head));
            let step = unit * (PIECE_LEN / (columns * unit)).max(1);
            for part in 0..parts.len() {
                let mut row = 0;
                while row < *rows {
                    let n_rows = step.min(rows - row);
                    pieces.push(Piece {
                        tensor,
                        part,
                        row,
                        n_rows,
                    });
                    row += n_rows;
                }
            }
        }
        pieces
    }

    /// Converts one piece. Returns its bytes.
    fn convert(
        &self,
        piece: Piece,
        writer: &GgufWriter,
        quantizer: Quantizer,
        buffers: &mut Buffers,
    ) -> Result<u64, ConvertError> {
        let tensor = &writer.tensors()[piece.tensor];
        let ty = tensor.ty;
        let numbers_error = |error| ConvertError::Numbers {
            tensor: tensor.name.clone(),
            row: piece.row,
            error,
        };
        buffers.encoded.clear();
        let (parts, rows, columns, permute_heads) = match &self.sources[piece.tensor] {
            Source::Numbers(numbers) => {
                encode(quantizer, ty, numbers, numbers.len(), &mut buffers.encoded)
                    .map_err(numbers_error)?;
                writer.write(piece.tensor, 0, &buffers.encoded)?;
                return Ok(buffers.encoded.len() as u64);
            }
            Source::Parts {
                parts,
                rows,
                columns,
                permute_heads,
            } => (parts, *rows, *columns, *permute_heads),
        };
        let part = parts[piece.part];
        let dtype = self.weights.tensors[part].entry.dtype;
        let element_bytes = u64::from(dtype.bits()) / 8;
        let len = element_bytes * columns * piece.n_rows;
        let len = usize::try_from(len).expect("the tensor is in a file, the piece in memory");
        buffers.source.resize(len, 0);
        let offset = element_bytes * columns * piece.row;
        self.weights.read(part, offset, &mut buffers.source)?;
        buffers.numbers.clear();
        decode(dtype, &buffers.source, &mut buffers.numbers);
        let numbers = match permute_heads {
            Some(n_head) => {
                let head_rows = rows / u64::from(n_head);
                pair_rows(&buffers.numbers, head_rows, columns, &mut buffers.rows);
                &buffers.rows
            }
            None => &buffers.numbers,
        };
        let row_len = usize::try_from(columns).expect("a row is in memory");
        encode(quantizer, ty, numbers, row_len, &mut buffers.encoded).map_err(numbers_error)?;
        let at = (piece.part as u64 * rows + piece.row) * columns;
        let offset = bytes_of(ty, at);
        writer.write(piece.tensor, offset, &buffers.encoded)?;
        Ok(buffers.encoded.len() as u64)
    }
}

/// Bytes of `n` elements from a row's start: all rows are whole blocks.
fn bytes_of(ty: GgmlType, n: u64) -> u64 {
    ty.row_bytes(n).expect("rows are whole blocks")
}

/// Reorders the rows of each head: row j of its first half and row j of its second become rows
/// 2j and 2j + 1. `x`: (whole heads of `head_rows`, `columns`).
fn pair_rows(x: &[f32], head_rows: u64, columns: u64, out: &mut Vec<f32>) {
    let fits = |n: u64| usize::try_from(n).expect("the rows are in memory");
    let (head_rows, columns) = (fits(head_rows), fits(columns));
    out.clear();
    for head in x.chunks_exact(head_rows * columns) {
        let (first, second) = head.split_at(head_rows / 2 * columns);
        for (a, b) in first
            .chunks_exact(columns)
            .zip(second.chunks_exact(columns))
        {
            out.extend(a);
            out.extend(b);
        }
    }
    assert_eq!(out.len(), x.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_become_pairs() {
        // Two heads of four rows of two columns; a row's numbers are its place.
        let x: Vec<f32> = (0..8u8).flat_map(|row| [f32::from(row); 2]).collect();
        let mut out = Vec::new();
        pair_rows(&x, 4, 2, &mut out);
        let rows: Vec<f32> = out.iter().step_by(2).copied().collect();
        assert_eq!(rows, [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }
}
