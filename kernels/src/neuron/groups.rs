//! From either form to panels: 256 columns of some rows at a time.

use super::codes::{self, CHUNK, Codes};
use super::format::{ByteLines, GroupFormat};
use super::{Form, chunk_at, group_cols, head_at};
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS, PanelLayout};
use core::ops::Range;

/// Panels of a strip.
pub(crate) const STRIP_PANELS: usize = 4;
/// Rows of a strip.
pub(crate) const STRIP_ROWS: usize = STRIP_PANELS * PANEL_ROWS;
/// Bytes of the largest panel of 256 columns, Q8_0's.
pub(super) const GROUP_BYTES_MAX: usize = 8 * 2 * PANEL_ROWS + GROUP / 4 * LINE_BYTES;

/// A strip of panels of 256 columns each.
#[repr(C, align(64))]
pub(crate) struct GroupPanels([u8; STRIP_PANELS * GROUP_BYTES_MAX]);

impl GroupPanels {
    pub(crate) const EMPTY: Self = Self([0; _]);
}

/// Which rows become panels.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Rows from one on, a multiple of 16.
    From(usize),
    /// Rows of [`Form::Rows`] one by one.
    Listed(&'a [u32]),
}

/// Makes panels of columns `256 g` up to `256 (g + 1)` of up to [`STRIP_ROWS`] rows, `n_rows` of `source`, and returns
/// them and the number of columns. Lanes without a row are zero.
pub(crate) fn gather<'p>(
    layout: &PanelLayout,
    bytes: &[u8],
    source: Source<'_>,
    n_rows: usize,
    g: usize,
    panels: &'p mut GroupPanels,
) -> (&'p [u8], usize) {
    let n_cols = group_cols(layout, g);
    let format = format_of(layout);
    let size = format.group_bytes(n_cols);
    let used = &mut panels.0[..n_rows.div_ceil(PANEL_ROWS) * size];
    for (p, panel) in used.chunks_exact_mut(size).enumerate() {
        let lanes = PANEL_ROWS * p..n_rows.min(PANEL_ROWS * (p + 1));
        match (layout.form(), source) {
            (Form::Rows, source) => {
                let before: usize = (0..g)
                    .map(|g| format.row_bytes(group_cols(layout, g)))
                    .sum();
                let row_of = |i: usize| match source {
                    Source::From(first) => first + i,
                    Source::Listed(rows) => rows[i] as usize,
                };
                if lanes.len() < PANEL_ROWS {
                    panel.fill(0);
                }
                for (lane, i) in lanes.enumerate() {
                    let row = &bytes[row_of(i) * layout.gguf_row_bytes()..][before..];
                    put_row(&format, n_cols, lane, row, panel);
                }
            }
            (Form::Neurons, Source::From(first)) => {
                neurons_panel(layout, bytes, first / PANEL_ROWS + p, g, panel);
            }
            _ => unreachable!("only rows are listed, and panels are not gathered"),
        }
    }
    (used, n_cols)
}

/// The format of a matrix in a form other than panels.
pub(super) fn format_of(layout: &PanelLayout) -> GroupFormat {
    GroupFormat::of(layout.ty()).expect("a form other than panels has integer codes")
}

/// Writes a row's group into its lane.
pub(super) fn put_row(
    format: &GroupFormat,
    n_cols: usize,
    lane: usize,
    row: &[u8],
    panel: &mut [u8],
) {
    let mut row = row;
    for (at, bytes) in format.numbers(n_cols) {
        let (number, rest) = row.split_at(bytes);
        panel[at + lane * bytes..][..bytes].copy_from_slice(number);
        row = rest;
    }
    let lines = &mut panel[format.head_bytes(n_cols)..];
    for (line, word) in
        (lines.as_chunks_mut::<LINE_BYTES>().0.iter_mut()).zip(row.as_chunks::<4>().0)
    {
        line[4 * lane..][..4].copy_from_slice(word);
    }
}

/// Reads a row's group from its lane.
pub(super) fn get_row(
    format: &GroupFormat,
    n_cols: usize,
    lane: usize,
    panel: &[u8],
    row: &mut [u8],
) {
    let mut row = row;
    for (at, bytes) in format.numbers(n_cols) {
        let (number, rest) = row.split_at_mut(bytes);
        number.copy_from_slice(&panel[at + lane * bytes..][..bytes]);
        row = rest;
    }
    let lines = &panel[format.head_bytes(n_cols)..];
    for (line, word) in (lines.as_chunks::<LINE_BYTES>().0.iter()).zip(row.as_chunks_mut::<4>().0) {
        word.copy_from_slice(&line[4 * lane..][..4]);
    }
}

/// The codes of a chunk of a neuron, and the panels that it has.
fn chunk_of(layout: &PanelLayout, panel: usize, neuron: usize) -> (Range<usize>, usize, usize) {
    let first = panel * PANEL_ROWS / CHUNK * CHUNK;
    let n_outputs = (layout.n_rows() - first).min(CHUNK);
    let at = chunk_at(layout, neuron, first);
    let len = n_outputs * format_of(layout).bits() / 8;
    (at..at + len, n_outputs, panel - first / PANEL_ROWS)
}

/// Makes panel `panel` of group `g` from a matrix in [`Form::Neurons`].
fn neurons_panel(layout: &PanelLayout, bytes: &[u8], panel: usize, g: usize, out: &mut [u8]) {
    let (format, n_cols) = (format_of(layout), group_cols(layout, g));
    let head_bytes = format.head_bytes(n_cols);
    let (head, lines) = out.split_at_mut(head_bytes);
    head.copy_from_slice(&bytes[head_at(layout, panel, g)..][..head_bytes]);
    let mut codes: ByteLines = [[0; _]; _];
    for col in 0..n_cols {
        let (at, n_outputs, p) = chunk_of(layout, panel, g * GROUP + col);
        let found = codes::get(&format, n_outputs, p..p + 1, &bytes[at]);
        for (row, code) in found[p].into_iter().enumerate() {
            codes[col / 4][4 * row + col % 4] = code;
        }
    }
    for (line, of) in lines.as_chunks_mut().0.iter_mut().zip(format.lines(n_cols)) {
        of.pack(&codes, line);
    }
}

/// The inverse of [`neurons_panel`].
fn put_neurons_panel(layout: &PanelLayout, panel: usize, g: usize, from: &[u8], bytes: &mut [u8]) {
    let (format, n_cols) = (format_of(layout), group_cols(layout, g));
    let (head, lines) = from.split_at(format.head_bytes(n_cols));
    bytes[head_at(layout, panel, g)..][..head.len()].copy_from_slice(head);
    let mut codes: ByteLines = [[0; _]; _];
    for (line, of) in lines.as_chunks().0.iter().zip(format.lines(n_cols)) {
        of.unpack(line, &mut codes);
    }
    for col in 0..n_cols {
        let (at, n_outputs, p) = chunk_of(layout, panel, g * GROUP + col);
        let mut put: Codes = [[0; _]; _];
        put[p] = core::array::from_fn(|row| codes[col / 4][4 * row + col % 4]);
        codes::put(&format, n_outputs, p..p + 1, &put, &mut bytes[at]);
    }
}

/// Packs a band of 16 GGUF rows, `first` the first one's number, into a whole matrix that starts as zeros.
pub(super) fn pack_band(layout: &PanelLayout, first: usize, rows: &[u8], bytes: &mut [u8]) {
    let format = format_of(layout);
    let panels = layout.in_panels();
    let row_bytes = layout.gguf_row_bytes();
    let mut room = [0; GROUP_BYTES_MAX];
    let mut before = 0;
    for g in 0..layout.n_cols().div_ceil(GROUP) {
        let n_cols = group_cols(layout, g);
        let gguf_bytes = panels.gguf_bytes(n_cols);
        let panel = &mut room[..format.group_bytes(n_cols)];
        panel.fill(0);
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let blocks = &row[panels.gguf_bytes(g * GROUP)..][..gguf_bytes];
            panels.pack_group_lane(n_cols, lane, blocks, panel);
        }
        match layout.form() {
            Form::Rows => {
                let len = format.row_bytes(n_cols);
                for lane in 0..PANEL_ROWS {
                    let row = &mut bytes[(first + lane) * row_bytes..][before..][..len];
                    get_row(&format, n_cols, lane, panel, row);
                }
                before += len;
            }
            Form::Neurons => put_neurons_panel(layout, first / PANEL_ROWS, g, panel, bytes),
            Form::Panels => unreachable!("packed row by row"),
        }
    }
}

/// The inverse of [`pack_band`].
pub(super) fn unpack_band(layout: &PanelLayout, first: usize, bytes: &[u8], rows: &mut [u8]) {
    let panels = layout.in_panels();
    let row_bytes = layout.gguf_row_bytes();
    let mut room = GroupPanels::EMPTY;
    for g in 0..layout.n_cols().div_ceil(GROUP) {
        let source = Source::From(first);
        let (panel, n_cols) = gather(layout, bytes, source, PANEL_ROWS, g, &mut room);
        let gguf_bytes = panels.gguf_bytes(n_cols);
        for (lane, row) in rows.chunks_exact_mut(row_bytes).enumerate() {
            let blocks = &mut row[panels.gguf_bytes(g * GROUP)..][..gguf_bytes];
            panels.unpack_group_lane(n_cols, lane, panel, blocks);
        }
    }
}
