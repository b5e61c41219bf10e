//! The codes of neurons: chunks of outputs, each a plane after the other.

use super::format::GroupFormat;
use crate::panel::PANEL_ROWS;

/// Outputs of a chunk; the last may have 32, 64 or 96.
pub(crate) const CHUNK: usize = 128;
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
