//! The GGUF file inside a `.slc` file, byte by byte.

use core::fmt;
use core::ops::Range;
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::kernels::neuron::Form;
use sluice_core::kernels::panel::PanelLayout;
use sluice_core::slc::{FILE_HEADER_BYTES, GapProblem, Slc, SlcError, TensorHeader};
use std::sync::{Arc, Mutex, PoisonError};

/// Where every part of a GGUF file is in the `.slc` file that was made from it.
#[derive(Clone, Debug)]
pub struct GgufInSlc {
    /// In the order of the GGUF file, disjoint. Gaps between them are zero.
    segments: Vec<Segment>,
    gguf_len: u64,
    matrix: Arc<LastMatrix>,
}

#[derive(Clone, Debug)]
struct Segment {
    gguf: Range<u64>,
    /// Offset in the `.slc` file.
    offset: u64,
    /// For matrices: their shape, and the header that says where each of them is.
    matrices: Option<(PanelLayout, TensorHeader)>,
}

/// The bytes of a matrix.
type Matrix = Arc<Vec<u8>>;

/// The matrix that was read last whose rows are not in one piece, and its offset: reads of a few rows at a time would
/// each read all of it.
#[derive(Default)]
struct LastMatrix(Mutex<Option<(u64, Matrix)>>);

impl LastMatrix {
    /// The `len` bytes of the matrix at `offset` of `packed`.
    fn read(
        &self,
        packed: &dyn TensorSource,
        offset: u64,
        len: usize,
    ) -> Result<Matrix, SourceError> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, matrix)) = &*lock()
            && *at == offset
        {
            return Ok(Arc::clone(matrix));
        }
        let mut bytes = vec![0; len];
        packed.read(offset, &mut bytes)?;
        let matrix = Arc::new(bytes);
        *lock() = Some((offset, Arc::clone(&matrix)));
        Ok(matrix)
    }

    /// Frees the matrix: files are mostly read from start to end.
    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl fmt::Debug for LastMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LastMatrix")
    }
}

impl GgufInSlc {
    /// The map of a `.slc` file.
    ///
    /// # Errors
    /// A gap that overlaps a tensor.
    pub fn new(slc: &Slc<'_>) -> Result<Self, SlcError> {
        let header = slc.header();
        let mut segments = vec![Segment {
            gguf: 0..header.gguf_header_len,
            offset: FILE_HEADER_BYTES as u64,
            matrices: None,
        }];
        segments.extend(slc.tensors().map(|(tensor, header)| Segment {
            gguf: tensor.offset..tensor.offset + tensor.len_bytes,
            offset: header.offset,
            matrices: header.matrix_layout().map(|layout| (layout, header)),
        }));
        segments.extend(slc.gaps().map(|gap| Segment {
            gguf: gap.gguf_offset..gap.gguf_offset + gap.len_bytes,
            offset: gap.offset,
            matrices: None,
        }));
        segments.sort_by_key(|segment| segment.gguf.start);
        for pair in segments.windows(2) {
            if pair[1].gguf.start < pair[0].gguf.end {
                // Tensors are disjoint, and so are gaps: one of the two is a gap.
                let starts = [pair[0].gguf.start, pair[1].gguf.start];
                let index = slc.gaps().position(|gap| starts.contains(&gap.gguf_offset));
                return Err(SlcError::Gap {
                    index: index
                        .and_then(|index| u32::try_from(index).ok())
                        .unwrap_or(0),
                    problem: GapProblem::Overlap {
                        offset: pair[1].gguf.start,
                        previous_end: pair[0].gguf.end,
                    },
                });
            }
        }
        Ok(Self {
            segments,
            gguf_len: header.gguf_len,
            matrix: Arc::default(),
        })
    }

    /// Bytes of the GGUF file.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.gguf_len
    }

    /// Fills `into` with the GGUF file's bytes from `offset` on; `packed` is the `.slc` file.
    ///
    /// # Errors
    /// The range is not inside the GGUF file, or `packed` cannot be read.
    pub fn read(
        &self,
        packed: &dyn TensorSource,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), SourceError> {
        let end = offset.checked_add(into.len() as u64);
        let Some(end) = end.filter(|&end| end <= self.gguf_len) else {
            return Err(SourceError::OutOfRange {
                offset,
                len_bytes: into.len() as u64,
                source_len_bytes: self.gguf_len,
            });
        };
        into.fill(0);
        let first = self
            .segments
            .partition_point(|segment| segment.gguf.end <= offset);
        for segment in &self.segments[first..] {
            if segment.gguf.start >= end {
                break;
            }
            let part = segment.gguf.start.max(offset)..segment.gguf.end.min(end);
            let target = &mut into[index(part.start - offset)..index(part.end - offset)];
            segment.read(
                packed,
                &self.matrix,
                part.start - segment.gguf.start,
                target,
            )?;
        }
        Ok(())
    }
}

impl Segment {
    /// Fills `into` with the GGUF bytes from `start` of the segment on.
    fn read(
        &self,
        packed: &dyn TensorSource,
        last: &LastMatrix,
        start: u64,
        into: &mut [u8],
    ) -> Result<(), SourceError> {
        let Some((layout, header)) = &self.matrices else {
            return packed.read(self.offset + start, into);
        };
        let row_bytes = layout.gguf_row_bytes();
        let matrix_bytes = layout.n_rows() * row_bytes;
        let mut band = Band::default();
        let mut at_band = None;
        let mut done = 0;
        while done < into.len() {
            let at = start + done as u64;
            let (matrix, at) = (at / matrix_bytes as u64, index(at % matrix_bytes as u64));
            let rows = layout.band(at / row_bytes);
            let matrix_at = header.matrix_offset(matrix);
            if at_band != Some((matrix, rows.start)) {
                at_band = Some((matrix, rows.start));
                band.read(packed, last, layout, matrix_at, rows.clone())?;
            }
            let of_band = &band.rows[at - rows.start * row_bytes..];
            let n = of_band.len().min(into.len() - done);
            into[done..done + n].copy_from_slice(&of_band[..n]);
            done += n;
        }
        Ok(())
    }
}

/// A band of a matrix as rows of a GGUF file.
#[derive(Default)]
struct Band {
    rows: Vec<u8>,
    packed: Vec<u8>,
}

impl Band {
    /// Reads the band `rows` of the matrix at `offset` of `packed`.
    fn read(
        &mut self,
        packed: &dyn TensorSource,
        last: &LastMatrix,
        layout: &PanelLayout,
        offset: u64,
        rows: Range<usize>,
    ) -> Result<(), SourceError> {
        let row_bytes = layout.gguf_row_bytes();
        self.rows.resize(rows.len() * row_bytes, 0);
        if layout.form() != Form::Neurons {
            let bytes = layout.byte_range(rows.clone());
            self.packed.resize(bytes.len(), 0);
            packed.read(offset + bytes.start as u64, &mut self.packed)?;
        }
        match layout.form() {
            Form::Panels => {
                for (row, out) in rows.zip(self.rows.chunks_exact_mut(row_bytes)) {
                    layout.unpack_row(row, &self.packed, out);
                }
            }
            // Rows follow each other, so these are a matrix.
            Form::Rows => PanelLayout::new(layout.ty().ggml(), rows.len(), layout.n_cols())
                .and_then(|band| band.with_form(Form::Rows))
                .expect("16 rows of a matrix that has the form")
                .unpack_band(0, &self.packed, &mut self.rows),
            Form::Neurons => {
                // The bytes of a band are everywhere in the matrix.
                let mut unpack = |matrix| layout.unpack_band(rows.start, matrix, &mut self.rows);
                let len = layout.bytes();
                match packed.slice(offset, len).filter(|bytes| bytes.len() == len) {
                    Some(matrix) => unpack(matrix),
                    None => unpack(&last.read(packed, offset, len)?),
                }
                if rows.end == layout.n_rows() {
                    last.forget();
                }
            }
        }
        Ok(())
    }
}

/// A number that is below a slice's length.
fn index(n: u64) -> usize {
    usize::try_from(n).expect("it is inside a slice or a row in memory")
}
