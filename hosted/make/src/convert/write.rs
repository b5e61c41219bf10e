//! Streaming weights into the file.

use super::ConvertError;
use super::encode::encode;
use super::layout::{Mxfp4, Part, Parts, Source};
use super::plan::Conversion;
use crate::pieces::{Outcome, share};
use sluice::file::{GgufWriter, OutputFile};
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::quantize::{QuantizeError, Quantizer};
use sluice_core::team::StopFlag;
use sluice_hf::{Change, Map, Slice, decode};

/// A piece of one tensor: whole rows of one part, in whole heads if rows are reordered.
#[derive(Clone, Copy, Debug)]
struct Piece {
    tensor: usize,
    part: usize,
    row: u64,
    n_rows: u64,
}

/// Numbers in a piece, unless a single row or head has more.
const PIECE_LEN: u64 = 1 << 20;

/// A thread's buffers, a few times [`PIECE_LEN`] in size.
#[derive(Default)]
struct Buffers {
    source: Vec<u8>,
    numbers: Vec<f32>,
    rows: Vec<f32>,
    encoded: Vec<u8>,
    /// Runs of wanted rows in `numbers`: (first, count).
    runs: Vec<(u64, u64)>,
}

impl Conversion {
    /// Writes the file with `n_threads` threads. `progress` is called on this thread with the bytes of data written so
    /// far.
    ///
    /// # Errors
    /// [`ConvertError::Folder`], [`ConvertError::Numbers`] or [`ConvertError::Output`]; no file remains.
    ///
    /// # Panics
    /// Only if `progress` panics.
    pub fn write(
        self,
        output: OutputFile,
        n_threads: usize,
        stop: &StopFlag,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Outcome, ConvertError> {
        let writer = self.header.clone().start(output)?;
        let pieces = self.pieces();
        let quantizer = Quantizer::detect();
        let act =
            |piece: Piece, buffers: &mut Buffers| self.convert(piece, &writer, quantizer, buffers);
        let ended = share(&pieces, n_threads, stop, progress, act)?;
        if ended == Outcome::Complete {
            writer.finish()?;
        }
        Ok(ended)
    }

    fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (tensor, source) in self.sources.iter().enumerate() {
            let (n_parts, rows, columns, unit) = match source {
                Source::Parts(parts) => (parts.parts.len(), parts.rows, parts.columns, parts.unit),
                Source::Mxfp4(blocks) => (1, blocks.rows, blocks.columns, 1),
                Source::Numbers(_) => (1, 1, 1, 1),
            };
            let step = unit * (PIECE_LEN / (columns * unit)).max(1);
            for part in 0..n_parts {
                let mut row = 0;
                while row < rows {
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
        buffers.encoded.clear();
        let (at, columns) = match &self.sources[piece.tensor] {
            Source::Numbers(numbers) => {
                buffers.rows.clone_from(numbers);
                (0, numbers.len() as u64)
            }
            Source::Parts(parts) => {
                self.read_rows(parts, piece, buffers)?;
                let row = piece.part as u64 * parts.rows + piece.row;
                (row * parts.columns, parts.columns)
            }
            Source::Mxfp4(blocks) => {
                self.repack(blocks, piece, buffers)?;
                let offset = bytes_of(ty, piece.row * blocks.columns);
                writer.write(piece.tensor, offset, &buffers.encoded)?;
                return Ok(buffers.encoded.len() as u64);
            }
        };
        let row_len = usize::try_from(columns).expect("a row is in memory");
        let encoded = encode(quantizer, ty, &buffers.rows, row_len, &mut buffers.encoded);
        encoded.map_err(|error| ConvertError::Numbers {
            tensor: tensor.name.clone(),
            row: piece.row,
            error,
        })?;
        writer.write(piece.tensor, bytes_of(ty, at), &buffers.encoded)?;
        Ok(buffers.encoded.len() as u64)
    }

    /// Reads the rows of a piece, in the GGUF file's order, into `buffers.rows`.
    fn read_rows(
        &self,
        parts: &Parts,
        piece: Piece,
        buffers: &mut Buffers,
    ) -> Result<(), ConvertError> {
        let part = &parts.parts[piece.part];
        let (row, n_rows, columns) = (piece.row, piece.n_rows, parts.columns);
        buffers.numbers.clear();
        buffers.runs.clear();
        match &parts.change {
            Change::None | Change::PairRows(_) => {
                self.read_source(part, row, n_rows, columns, buffers)?;
            }
            Change::Columns(slices) => {
                let width = slices.iter().map(|slice| slice.n).sum();
                self.read_source(part, row, n_rows, width, buffers)?;
            }
            Change::Rows(slices) => {
                let runs = runs(slices, row, n_rows);
                let first = runs.iter().map(|run| run.0).min().unwrap_or(row);
                let end = runs.iter().map(|run| run.0 + run.1).max().unwrap_or(row);
                // Rows that are close together are read along with the gap between them.
                if end - first <= 4 * n_rows {
                    self.read_source(part, first, end - first, columns, buffers)?;
                    buffers
                        .runs
                        .extend(runs.iter().map(|run| (run.0 - first, run.1)));
                } else {
                    for (row, n_rows) in runs {
                        self.read_source(part, row, n_rows, columns, buffers)?;
                    }
                    buffers.runs.push((0, n_rows));
                }
            }
            Change::Turned { of, .. } => {
                let (first, n) = (row / parts.unit, n_rows / parts.unit);
                self.read_source(part, first * of, n * of, parts.width, buffers)?;
            }
        }
        let (x, out) = (&buffers.numbers, &mut buffers.rows);
        out.clear();
        match &parts.change {
            Change::None => out.extend(x),
            Change::Rows(_) => pick(x, &buffers.runs, columns, out),
            Change::PairRows(_) => pair_rows(x, parts.unit, columns, out),
            Change::Columns(slices) => pick_columns(x, slices, columns, out),
            &Change::Turned { start, step, of } => turn(x, parts, [start, step, of], out),
        }
        match parts.map {
            Map::Same => {}
            Map::AddOne => out.iter_mut().for_each(|x| *x += 1.0),
            Map::NegExp => out.iter_mut().for_each(|x| *x = -exp(*x)),
        }
        Ok(())
    }

    /// Appends rows of the folder's tensor to `buffers.numbers`.
    fn read_source(
        &self,
        part: &Part,
        row: u64,
        n_rows: u64,
        columns: u64,
        buffers: &mut Buffers,
    ) -> Result<(), ConvertError> {
        let dtype = self.weights.tensors[part.tensor].entry.dtype;
        let row_bytes = u64::from(dtype.bits()) / 8 * columns;
        let len = usize::try_from(row_bytes * n_rows);
        let len = len.expect("the tensor is in a file, the piece in memory");
        buffers.source.resize(len, 0);
        let weights = &self.weights;
        weights.read(part.tensor, row_bytes * row, &mut buffers.source)?;
        let start = buffers.numbers.len();
        decode(dtype, &buffers.source, &mut buffers.numbers);
        if let Some(scale) = &part.scale {
            let columns = usize::try_from(columns).expect("a row is in memory");
            scale.apply(&mut buffers.numbers[start..], row, columns);
        }
        Ok(())
    }

    /// Blocks of MXFP4 in ggml's layout: a scale, then 16 bytes; byte j holds number j in its low nibble and number j +
    /// 16 in its high one. In the folder, neighbours share a byte, and scales are separate.
    fn repack(
        &self,
        blocks: &Mxfp4,
        piece: Piece,
        buffers: &mut Buffers,
    ) -> Result<(), ConvertError> {
        let n_across = blocks.columns / 32;
        let fits = |n: u64| usize::try_from(n).expect("a row is in memory");
        let mut scales = vec![0; fits(n_across)];
        buffers.source.resize(fits(16 * n_across), 0);
        for row in piece.row..piece.row + piece.n_rows {
            let at = (blocks.start + row * blocks.step) * n_across;
            self.weights.read(blocks.scales, at, &mut scales)?;
            // The only exponent that encodes NaN.
            if let Some(block) = scales.iter().position(|&scale| scale == 255) {
                let error = QuantizeError::ValueNotFinite { index: 32 * block };
                let tensor = self.weights.tensors[blocks.scales].entry.name.clone();
                return Err(ConvertError::Numbers { tensor, row, error });
            }
            self.weights
                .read(blocks.blocks, 16 * at, &mut buffers.source)?;
            for (scale, block) in scales.iter().zip(buffers.source.as_chunks::<16>().0) {
                buffers.encoded.push(*scale);
                buffers.encoded.extend(halves_apart(block));
            }
        }
        Ok(())
    }
}

/// Rearranges 32 4-bit numbers so that a byte holds numbers 16 apart instead of neighbours.
fn halves_apart(block: &[u8; 16]) -> [u8; 16] {
    let number = |i: usize| {
        if i.is_multiple_of(2) {
            block[i / 2] & 15
        } else {
            block[i / 2] >> 4
        }
    };
    core::array::from_fn(|j| number(j) | number(j + 16) << 4)
}

/// Bytes of the first `n` elements of a row: all rows are whole blocks.
fn bytes_of(ty: GgmlType, n: u64) -> u64 {
    ty.row_bytes(n).expect("rows are whole blocks")
}

/// The positions of rows `row..row + n_rows` of slices, as (first, count) of consecutive runs.
fn runs(slices: &[Slice], row: u64, n_rows: u64) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let (mut begin, end) = (0, row + n_rows);
    for slice in slices {
        let own = row.max(begin)..end.min(begin + slice.n);
        for place in own.map(|row| slice.place(row - begin)) {
            match runs.last_mut() {
                Some((first, n)) if *first + *n == place => *n += 1,
                _ => runs.push((place, 1)),
            }
        }
        begin += slice.n;
    }
    runs
}

/// Picks the columns of slices; rows have the same length before and after.
fn pick_columns(x: &[f32], slices: &[Slice], columns: u64, out: &mut Vec<f32>) {
    let fits = |n: u64| usize::try_from(n).expect("a row is in memory");
    let runs = runs(slices, 0, columns);
    for row in x.chunks_exact(fits(columns)) {
        pick(row, &runs, 1, out);
    }
}

/// Picks runs of rows, given as (first, count).
fn pick(x: &[f32], runs: &[(u64, u64)], columns: u64, out: &mut Vec<f32>) {
    let fits = |n: u64| usize::try_from(n).expect("the rows are in memory");
    for &(first, n) in runs {
        out.extend(&x[fits(first * columns)..][..fits(n * columns)]);
    }
}

/// Columns of matrices of `of` rows become rows.
fn turn(x: &[f32], parts: &Parts, [start, step, of]: [u64; 3], out: &mut Vec<f32>) {
    let fits = |n: u64| usize::try_from(n).expect("the rows are in memory");
    let width = fits(parts.width);
    for matrix in x.chunks_exact(width * fits(of)) {
        for row in 0..fits(parts.unit) {
            let column = matrix.iter().skip(fits(start) + row * fits(step));
            out.extend(column.step_by(width).take(fits(parts.columns)));
        }
    }
}

/// Rounded once.
#[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
fn exp(x: f32) -> f32 {
    f64::from(x).exp() as f32
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
    fn neighbours_of_a_block_part() {
        let block = core::array::from_fn(|i| {
            u8::try_from((2 * i % 16) | (((2 * i + 1) % 16) << 4)).unwrap()
        });
        let numbers: Vec<_> = (0..32).map(|i| u8::try_from(i % 16).unwrap()).collect();
        let expected: Vec<_> = (0..16).map(|j| numbers[j] | numbers[j + 16] << 4).collect();
        assert_eq!(halves_apart(&block), *expected);
    }

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
