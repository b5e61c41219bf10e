//! From GGUF to `.slc`.

use super::plan::{Plan, no_form};
use super::{
    FfnLayout, NoFormReason, PIECE_BYTES, SlcFileError, SlcWatch, checksum_of, hash_through,
    pieces, verify,
};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};
use sluice::file::OutputFile;
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::gguf::{Gguf, TensorInfo};
use sluice_core::hash::Hash64;
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::kernels::neuron::Form;
use sluice_core::kernels::panel::PanelLayout;
use sluice_core::model::PowerInfer;
use sluice_core::slc::{FileHeader, Slc, SlcError, TensorHeader};
use sluice_core::state::Identity;
use std::sync::{Mutex, PoisonError};

/// Options of [`pack`].
#[derive(Clone, Copy, Debug)]
pub struct PackOptions {
    /// Threads that make panels; another one computes the SHA-256. At least 1.
    pub n_threads: usize,
    /// Read the written file back and compare the SHA-256 of the GGUF file inside. Without it, every panel is still
    /// converted back and compared before it is written.
    pub verify: bool,
    /// How the matrices of feed-forward networks are stored.
    pub ffn: FfnLayout,
}

/// Packs the GGUF file `source`, whose header is `gguf`. Returns the header of the new file.
///
/// `watch` counts the GGUF file's bytes twice (hash, panels), with `verify` three times.
///
/// # Errors
/// [`SlcFileError`]; no output remains.
///
/// # Panics
/// If a thread panics, which is a bug.
pub fn pack(
    source: &dyn TensorSource,
    gguf: &Gguf<'_>,
    output: OutputFile,
    options: PackOptions,
    watch: &SlcWatch<'_>,
) -> Result<FileHeader, SlcFileError> {
    if PowerInfer::of(gguf).is_some_and(|file| file.is_down_by_neuron) {
        return Err(SlcFileError::DownByNeuron);
    }
    let mut plan = Plan::new(source, gguf, options.ffn)?;
    output.reserve(plan.header.file_len)?;
    let jobs: Vec<_> = gguf
        .tensors()
        .zip(
            plan.tensors
                .iter_mut()
                .zip(&mut plan.matrices)
                .map(Mutex::new),
        )
        .collect();
    let next = AtomicUsize::new(0);
    let work = || -> Result<(), SlcFileError> {
        while let Some((tensor, places)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
            let (header, matrices) = &mut *places;
            let packer = Packer {
                source,
                output: &output,
                watch,
                tensor,
            };
            header.checksum = packer.pack(header, matrices).inspect_err(|_| {
                // The other threads can stop.
                next.store(jobs.len(), Ordering::Relaxed);
            })?;
        }
        Ok(())
    };
    let sha256 = std::thread::scope(|scope| {
        let hash = scope.spawn(|| hash_through(source, watch, &mut |_, _| Ok(())));
        let threads: Vec<_> = (0..options.n_threads.max(1))
            .map(|_| scope.spawn(work))
            .collect();
        let results = threads
            .into_iter()
            .map(|thread| thread.join().expect("packing panicked"));
        results.collect::<Result<(), _>>()?;
        hash.join().expect("hashing panicked")
    })?;
    drop(jobs);
    for gap in &mut plan.gaps {
        gap.checksum = copy(source, gap.gguf_offset, &output, gap.offset, gap.len_bytes)?;
    }
    plan.header.gguf_sha256 = sha256;
    let head = plan.head(gguf);
    output.write_at(0, &head)?;
    if options.verify {
        let slc = Slc::parse(&head, plan.header.file_len)?;
        verify(&Written(&output, plan.header.file_len), &slc, watch)?;
    }
    output.finish_with(Some(Identity(sha256)))?;
    Ok(plan.header)
}

/// Packs a file that was written and has no name: a GGUF file, but that its tensors may be precision lanes. It has
/// `len_bytes` bytes, of which the first are `head`. Returns the header of the new file.
///
/// # Errors
/// As [`pack`].
///
/// # Panics
/// As [`pack`].
pub fn pack_written(
    head: &[u8],
    written: &OutputFile,
    len_bytes: u64,
    output: OutputFile,
    options: PackOptions,
    watch: &SlcWatch<'_>,
) -> Result<FileHeader, SlcFileError> {
    let gguf = Gguf::parse_with_lanes(head, len_bytes).map_err(SlcError::from)?;
    pack(&Written(written, len_bytes), &gguf, output, options, watch)
}

/// The file under construction, for reading back.
struct Written<'o>(&'o OutputFile, u64);

impl TensorSource for Written<'_> {
    fn len_bytes(&self) -> u64 {
        self.1
    }

    fn slice(&self, _: u64, _: usize) -> Option<&[u8]> {
        None
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.0.read_at(offset, into)
    }
}

/// Copies bytes and returns their checksum.
fn copy(
    source: &dyn TensorSource,
    from: u64,
    output: &OutputFile,
    to: u64,
    len: u64,
) -> Result<u64, SlcFileError> {
    let mut hash = Hash64::new();
    pieces(source, from, len, &mut |at, piece| {
        hash.write(piece);
        Ok(output.write_at(to + (at - from), piece)?)
    })?;
    Ok(hash.finish())
}

/// Packs one tensor.
struct Packer<'p> {
    source: &'p dyn TensorSource,
    output: &'p OutputFile,
    watch: &'p SlcWatch<'p>,
    tensor: &'p TensorInfo<'p>,
}

impl Packer<'_> {
    /// Writes the payload; returns its checksum, and appends the checksums of matrices in records.
    fn pack(&self, header: &TensorHeader, matrices: &mut Vec<u64>) -> Result<u64, SlcFileError> {
        let tensor = self.tensor;
        let Some(layout) = header.matrix_layout() else {
            let mut hash = Hash64::new();
            pieces(
                self.source,
                tensor.offset,
                tensor.len_bytes,
                &mut |at, piece| {
                    self.watch.advance(piece.len() as u64)?;
                    hash.write(piece);
                    let at = header.offset + (at - tensor.offset);
                    Ok(self.output.write_at(at, piece)?)
                },
            )?;
            return Ok(hash.finish());
        };
        let mut out = Out {
            output: self.output,
            at: header.offset,
            room: Vec::new(),
            hash: Hash64::new(),
        };
        let padding = usize::try_from(header.matrix_bytes()).unwrap_or(usize::MAX) - layout.bytes();
        for matrix in 0..header.n_matrices() {
            out.go_to(header.matrix_offset(matrix))?;
            match layout.form() {
                Form::Panels | Form::Rows => self.bands(&layout, matrix, &mut out)?,
                Form::Neurons => self.neurons(&layout, matrix, &mut out)?,
            }
            out.room.resize(out.room.len() + padding, 0);
            if header.n_checksums() > 0 {
                out.flush()?;
                matrices.push(core::mem::replace(&mut out.hash, Hash64::new()).finish());
            }
        }
        out.flush()?;
        debug_assert_eq!(out.at, header.end());
        Ok(match header.n_checksums() {
            0 => out.hash.finish(),
            _ => checksum_of(matrices),
        })
    }

    /// Writes one matrix band by band; each is converted back at once and compared.
    fn bands(
        &self,
        layout: &PanelLayout,
        matrix: u64,
        out: &mut Out<'_>,
    ) -> Result<(), SlcFileError> {
        let mut rows = Rows::new(self, layout, matrix);
        for band in layout.bands() {
            if out.room.len() >= PIECE_BYTES {
                out.flush()?;
            }
            rows.read(band.clone())?;
            let start = out.room.len();
            let packed_bytes = layout.byte_range(band.clone()).len();
            out.room.resize(start + packed_bytes, 0);
            let packed = &mut out.room[start..];
            if layout.form() == Form::Rows {
                // Rows follow each other, so a band is a matrix of its own.
                let of_band = PanelLayout::new(self.tensor.ty, band.len(), layout.n_cols())
                    .and_then(|band| band.with_form(Form::Rows))
                    .expect("16 rows of a matrix that has the form");
                of_band.pack_band(0, &rows.rows, packed);
                of_band.unpack_band(0, packed, &mut rows.back);
            } else {
                let row_bytes = layout.gguf_row_bytes();
                for (index, row) in band.clone().zip(rows.rows.chunks_exact(row_bytes)) {
                    layout.pack_row(index, row, packed);
                }
                for (index, row) in band.zip(rows.back.chunks_exact_mut(row_bytes)) {
                    layout.unpack_row(index, packed, row);
                }
            }
            rows.compare()?;
            self.watch.advance(rows.rows.len() as u64)?;
        }
        Ok(())
    }

    /// Writes one matrix by neuron, as a whole: the bytes of a row are everywhere in it. Only then is it converted back,
    /// so that every band is compared as it is in the end.
    fn neurons(
        &self,
        layout: &PanelLayout,
        matrix: u64,
        out: &mut Out<'_>,
    ) -> Result<(), SlcFileError> {
        let mut rows = Rows::new(self, layout, matrix);
        out.flush()?;
        out.room.resize(layout.bytes(), 0);
        for band in layout.bands() {
            rows.read(band.clone())?;
            layout.pack_band(band.start, &rows.rows, &mut out.room);
            self.watch.advance(rows.rows.len() as u64)?;
        }
        for band in layout.bands() {
            self.watch.advance(0)?;
            rows.read(band.clone())?;
            layout.unpack_band(band.start, &out.room, &mut rows.back);
            rows.compare()?;
        }
        Ok(())
    }
}

/// A band of rows of a GGUF file, and the same rows converted back.
struct Rows<'p> {
    packer: &'p Packer<'p>,
    layout: &'p PanelLayout,
    matrix: u64,
    rows: Vec<u8>,
    back: Vec<u8>,
    /// A row's values.
    values: Vec<f32>,
}

impl<'p> Rows<'p> {
    fn new(packer: &'p Packer<'p>, layout: &'p PanelLayout, matrix: u64) -> Self {
        Self {
            packer,
            layout,
            matrix,
            rows: Vec::new(),
            back: Vec::new(),
            values: vec![0.0; layout.n_cols()],
        }
    }

    /// Reads a band. Where neurons may be skipped, every weight has to be finite: 0 times another is not 0.
    fn read(&mut self, band: Range<usize>) -> Result<(), SlcFileError> {
        let tensor = self.packer.tensor;
        let row_bytes = self.layout.gguf_row_bytes();
        let first = self.matrix * self.layout.n_rows() as u64 + band.start as u64;
        self.rows.resize(band.len() * row_bytes, 0);
        self.back.resize(self.rows.len(), 0);
        let at = tensor.offset + first * row_bytes as u64;
        self.packer.source.read(at, &mut self.rows)?;
        if self.layout.form() == Form::Panels {
            return Ok(());
        }
        for (row, bytes) in (first..).zip(self.rows.chunks_exact(row_bytes)) {
            dequantize_row(tensor.ty, bytes, &mut self.values);
            if self.values.iter().any(|x| !x.is_finite()) {
                return Err(no_form(tensor, NoFormReason::NotFinite { row }));
            }
        }
        Ok(())
    }

    /// Checks that the rows came back.
    fn compare(&self) -> Result<(), SlcFileError> {
        if self.back == self.rows {
            return Ok(());
        }
        let name = self.packer.tensor.name.escape_debug().to_string();
        Err(SlcFileError::NotInvertible { name })
    }
}

/// The payload being written.
struct Out<'o> {
    output: &'o OutputFile,
    at: u64,
    room: Vec<u8>,
    hash: Hash64,
}

impl Out<'_> {
    /// Continues at byte `offset`: in records, a tensor's matrices are interleaved with other tensors.
    fn go_to(&mut self, offset: u64) -> Result<(), SlcFileError> {
        if self.at + self.room.len() as u64 != offset {
            self.flush()?;
            self.at = offset;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), SlcFileError> {
        // Called before a band or a matrix, and at the end: data up to there is whole words, so the calls do not affect
        // the checksum. Only the last band of a matrix may not be.
        self.hash.write(&self.room);
        self.output.write_at(self.at, &self.room)?;
        self.at += self.room.len() as u64;
        self.room.clear();
        Ok(())
    }
}
