//! The GGUF file inside a `.slc` file, byte by byte.

use core::ops::Range;
use sluice_core::gguf::source::{SourceError, TensorSource};
use sluice_core::kernels::panel::PanelLayout;
use sluice_core::slc::{FILE_HEADER_BYTES, GapProblem, Slc, SlcError, TensorHeader};

/// Where every part of a GGUF file is in the `.slc` file that was made from it.
#[derive(Clone, Debug)]
pub struct GgufInSlc {
    /// In the order of the GGUF file, disjoint. Gaps between them are zero.
    segments: Vec<Segment>,
    gguf_len: u64,
}

#[derive(Clone, Debug)]
struct Segment {
    gguf: Range<u64>,
    /// Offset in the `.slc` file.
    offset: u64,
    /// For panels: their shape, and the header that says where each matrix is.
    panels: Option<(PanelLayout, TensorHeader)>,
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
            panels: None,
        }];
        segments.extend(slc.tensors().map(|(tensor, header)| Segment {
            gguf: tensor.offset..tensor.offset + tensor.len_bytes,
            offset: header.offset,
            panels: header.panels().map(|panels| (panels, header)),
        }));
        segments.extend(slc.gaps().map(|gap| Segment {
            gguf: gap.gguf_offset..gap.gguf_offset + gap.len_bytes,
            offset: gap.offset,
            panels: None,
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
            segment.read(packed, part.start - segment.gguf.start, target)?;
        }
        Ok(())
    }
}

impl Segment {
    /// Fills `into` with the GGUF bytes from `start` of the segment on.
    fn read(
        &self,
        packed: &dyn TensorSource,
        start: u64,
        into: &mut [u8],
    ) -> Result<(), SourceError> {
        let Some((layout, header)) = &self.panels else {
            return packed.read(self.offset + start, into);
        };
        let row_bytes = layout.gguf_row_bytes();
        let mut band = Vec::new();
        let mut row = vec![0; row_bytes];
        let mut at_band = None;
        let mut done = 0;
        while done < into.len() {
            let at = start + done as u64;
            let (row_index, skip) = (at / row_bytes as u64, index(at % row_bytes as u64));
            let (matrix, row_index) = (
                row_index / layout.n_rows() as u64,
                index(row_index % layout.n_rows() as u64),
            );
            let bytes = layout.byte_range(layout.band(row_index));
            let band_at = header.matrix_offset(matrix) + bytes.start as u64;
            if at_band != Some(band_at) {
                band.resize(bytes.len(), 0);
                packed.read(band_at, &mut band)?;
                at_band = Some(band_at);
            }
            layout.unpack_row(row_index, &band, &mut row);
            let n = (row_bytes - skip).min(into.len() - done);
            into[done..done + n].copy_from_slice(&row[skip..skip + n]);
            done += n;
        }
        Ok(())
    }
}

/// A number that is below a slice's length.
fn index(n: u64) -> usize {
    usize::try_from(n).expect("it is inside a slice or a row in memory")
}
