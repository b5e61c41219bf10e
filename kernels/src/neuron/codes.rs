//! The codes of neurons: chunks of outputs, each a plane after the other.

use crate::panel::form::{CHUNK, chunk_at, format_of, head_at};
use crate::panel::group::GroupFormat;
use crate::panel::{PANEL_ROWS, PanelLayout};

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
    panels: core::ops::Range<usize>,
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

/// Writes the codes of a neuron for panels `panels` into its chunk of `n_outputs` outputs.
#[inline(never)]
pub(super) fn put(
    format: &GroupFormat,
    n_outputs: usize,
    panels: core::ops::Range<usize>,
    codes: &Codes,
    chunk: &mut [u8],
) {
    for_each(format, n_outputs, panels, |panel, row, at| {
        let bits = codes[panel][row] >> at.first & at.mask;
        let byte = &mut chunk[at.byte];
        *byte = *byte & !(at.mask << at.shift) | bits << at.shift;
    });
}

/// Reads the codes of a neuron for panels `panels` from its chunk of `n_outputs` outputs; the others become 0.
#[inline(never)]
pub(super) fn get(
    format: &GroupFormat,
    n_outputs: usize,
    panels: core::ops::Range<usize>,
    chunk: &[u8],
) -> Codes {
    let mut codes: Codes = [[0; _]; _];
    for_each(format, n_outputs, panels, |panel, row, at| {
        codes[panel][row] |= (chunk[at.byte] >> at.shift & at.mask) << at.first;
    });
    codes
}

/// Where the chunks of a matrix are.
pub(crate) struct Chunks {
    format: GroupFormat,
    start: usize,
    /// Bytes from a column to the next.
    stride: usize,
}

impl Chunks {
    pub(crate) fn new(layout: &PanelLayout) -> Self {
        let format = format_of(layout);
        Self {
            format,
            start: chunk_at(layout, 0, 0),
            stride: layout.n_rows() * format.bits() / 8,
        }
    }

    /// Bytes of a column's codes for `n_outputs` outputs.
    pub(crate) const fn bytes(&self, n_outputs: usize) -> usize {
        n_outputs * self.format.bits() / 8
    }

    /// Where column `col`'s chunk of the outputs from `first` on is, and the distance to the next column's.
    pub(crate) const fn columns(&self, first: usize, col: usize) -> (usize, usize) {
        let at = self.start + col * self.stride + self.bytes(first);
        (at, self.stride)
    }

    /// Where the head of a panel's group is.
    pub(crate) fn head(&self, layout: &PanelLayout, panel: usize, g: usize) -> usize {
        head_at(layout, panel, g)
    }

    /// Widens the codes of a chunk to bytes, in the order of a whole chunk.
    #[inline(never)]
    pub(crate) fn widen(&self, n_outputs: usize, chunk: &[u8], wide: &mut [u8; CHUNK]) {
        let n_panels = n_outputs / PANEL_ROWS;
        let codes = get(&self.format, n_outputs, 0..n_panels, chunk);
        for (panel, codes) in codes[..n_panels].iter().enumerate() {
            for (row, code) in codes.iter().enumerate() {
                wide[panel / 4 * 64 + position(4, panel % 4, row)] = *code;
            }
        }
    }
}
