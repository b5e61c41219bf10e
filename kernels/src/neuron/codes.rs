//! The codes of neurons: chunks of outputs, each a plane after the other.

use crate::panel::form::{CHUNK, chunk_at, format_of};
use crate::panel::group::GroupFormat;
use crate::panel::{PANEL_ROWS, PanelLayout};
use core::ops::Range;

/// Codes of a chunk by panel and row.
pub(super) type Codes = [[u8; PANEL_ROWS]; CHUNK / PANEL_ROWS];

/// The position of row `row` of panel `q` in a half of `m` panels.
const fn position(m: usize, q: usize, row: usize) -> usize {
    (row / 4 * m + q) * 4 + row % 4
}

/// The place of a code's bits in a plane of `bits` bits: the byte, and the first bit.
const fn place(bits: usize, n: usize, half: usize, p: usize) -> (usize, usize) {
    match bits {
        8 => (half * n + p, 0),
        4 => (p, 4 * half),
        2 => (p % (n / 2), 4 * half + p / (n / 2) * 2),
        _ => (half * n / 8 + p / 8, p % 8),
    }
}

/// Calls `each` with panel, row and place of every bit group of a chunk of `n_outputs` outputs: bits, the first bit
/// in the code, the byte, the first bit there.
fn for_each(
    format: &GroupFormat,
    n_outputs: usize,
    panels: Range<usize>,
    mut each: impl FnMut(usize, usize, Bits),
) {
    let (n, m) = (n_outputs / 2, n_outputs / 2 / PANEL_ROWS);
    let (mut start, mut first) = (0, 0);
    for &bits in format.planes {
        for panel in panels.clone() {
            for row in 0..PANEL_ROWS {
                let (byte, shift) = place(bits, n, panel / m, position(m, panel % m, row));
                let at = Bits {
                    mask: 0xff >> (8 - bits),
                    first,
                    byte: start + byte,
                    shift,
                };
                each(panel, row, at);
            }
        }
        start += n_outputs * bits / 8;
        first += bits;
    }
}

/// Some bits of a code, and where they are.
struct Bits {
    mask: u8,
    first: usize,
    byte: usize,
    shift: usize,
}

/// The codes of a chunk of outputs.
#[derive(Clone, Copy)]
pub(crate) struct ChunkCodes {
    format: GroupFormat,
    /// Outputs that it has: up to [`CHUNK`].
    pub(crate) n_outputs: usize,
    /// Where the first column's are.
    pub(crate) at: usize,
    /// Bytes from a column to the next.
    pub(crate) stride: usize,
}

impl ChunkCodes {
    /// The chunk that output `first`, a multiple of [`CHUNK`], begins.
    pub(crate) fn new(layout: &PanelLayout, first: usize) -> Self {
        let (at, stride) = chunk_at(layout, first);
        Self {
            format: format_of(layout),
            n_outputs: (layout.n_rows() - first).min(CHUNK),
            at,
            stride,
        }
    }

    /// Bytes of a column's codes.
    pub(crate) const fn bytes(&self) -> usize {
        self.n_outputs * self.format.bits() / 8
    }

    /// Where column `col`'s codes are.
    pub(crate) fn column(&self, col: usize) -> Range<usize> {
        let at = self.at + col * self.stride;
        at..at + self.bytes()
    }

    /// Writes the codes of a neuron for panels `panels` into its chunk.
    #[inline(never)]
    pub(super) fn put(&self, panels: Range<usize>, codes: &Codes, chunk: &mut [u8]) {
        for_each(&self.format, self.n_outputs, panels, |panel, row, at| {
            let bits = codes[panel][row] >> at.first & at.mask;
            let byte = &mut chunk[at.byte];
            *byte = *byte & !(at.mask << at.shift) | bits << at.shift;
        });
    }

    /// Reads the codes of a neuron for panels `panels` from its chunk; the others become 0.
    #[inline(never)]
    pub(super) fn get(&self, panels: Range<usize>, chunk: &[u8]) -> Codes {
        let mut codes: Codes = [[0; _]; _];
        for_each(&self.format, self.n_outputs, panels, |panel, row, at| {
            codes[panel][row] |= (chunk[at.byte] >> at.shift & at.mask) << at.first;
        });
        codes
    }

    /// Widens the codes of a chunk to bytes, in the order of a whole chunk.
    #[inline(never)]
    pub(crate) fn widen(&self, chunk: &[u8], wide: &mut [u8; CHUNK]) {
        let n_panels = self.n_outputs / PANEL_ROWS;
        let codes = self.get(0..n_panels, chunk);
        for (panel, codes) in codes[..n_panels].iter().enumerate() {
            for (row, code) in codes.iter().enumerate() {
                wide[panel / 4 * 64 + position(4, panel % 4, row)] = *code;
            }
        }
    }
}
