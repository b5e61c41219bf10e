//! From either form to panels: 256 columns of some rows at a time.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::codes::{ChunkCodes, Codes};
use crate::contract::GROUP;
use crate::panel::form::{CHUNK, format_of, group_cols, head_at};
use crate::panel::group::{ByteLines, GroupFormat};
use crate::panel::{Form, LINE_BYTES, PANEL_ROWS, PanelLayout};
use crate::prefetch::prefetch_to_l2;
use core::mem::MaybeUninit;

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
    #[expect(
        clippy::large_stack_arrays,
        reason = "a kernel has no other memory; stack depths are tested"
    )]
    pub(crate) const EMPTY: Self = Self([0; _]);
}

/// Up to [`STRIP_ROWS`] rows of a matrix that become panels.
pub(crate) struct Strip<'a> {
    layout: PanelLayout,
    format: GroupFormat,
    bytes: &'a [u8],
    /// The first row, in [`Form::Neurons`].
    first: usize,
    /// Where each row is in [`Form::Rows`]; from [`Self::n_rows`] on the last one again.
    rows: [*const u8; STRIP_ROWS],
    n_rows: usize,
}

impl<'a> Strip<'a> {
    /// `n_rows` rows from row `first` on, a multiple of 16; or those that `listed` names, of a matrix in
    /// [`Form::Rows`].
    pub(crate) fn new(
        layout: &PanelLayout,
        bytes: &'a [u8],
        first: usize,
        n_rows: usize,
        listed: Option<&[u32]>,
    ) -> Self {
        let mut rows = [bytes.as_ptr(); STRIP_ROWS];
        if layout.form() == Form::Rows {
            let n_lanes = n_rows.next_multiple_of(PANEL_ROWS);
            for (i, at) in rows[..n_lanes].iter_mut().enumerate() {
                let i = i.min(n_rows - 1);
                let row = listed.map_or(first + i, |listed| listed[i] as usize);
                *at = bytes[row * layout.gguf_row_bytes()..][..layout.gguf_row_bytes()].as_ptr();
            }
        }
        Self {
            layout: *layout,
            format: format_of(layout),
            bytes,
            first,
            rows,
            n_rows,
        }
    }

    pub(crate) const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Where group `g` of each row of a panel of a matrix in [`Form::Rows`] is.
    pub(crate) fn groups(&self, panel: usize, g: usize) -> [*const u8; PANEL_ROWS] {
        let before = g * self.format.row_bytes(GROUP);
        self.rows.as_chunks().0[panel].map(|row| row.wrapping_add(before))
    }

    /// Its rows, each once.
    pub(crate) fn each_row(&self) -> &[*const u8] {
        match self.layout.form() {
            Form::Rows => &self.rows[..self.n_rows],
            _ => &[],
        }
    }

    /// Prefetches part `part` of `n_parts` of its rows; in [`Form::Neurons`] nothing.
    pub(crate) fn prefetch(&self, part: usize, n_parts: usize) {
        if self.layout.form() == Form::Rows {
            let range = self.n_rows * part / n_parts..self.n_rows * (part + 1) / n_parts;
            for row in &self.rows[range] {
                prefetch_to_l2(*row, self.layout.gguf_row_bytes());
            }
        }
    }

    /// Makes panels of columns `256 g` up to `256 (g + 1)`; returns them and the number of columns.
    pub(crate) fn gather<'p>(
        &self,
        g: usize,
        panels: &'p mut GroupPanels,
        transpose: Option<&Transpose>,
        lines: Option<LinesFn>,
    ) -> (&'p [u8], usize) {
        let n_cols = group_cols(&self.layout, g);
        let size = self.format.group_bytes(n_cols);
        let used = &mut panels.0[..self.n_rows.div_ceil(PANEL_ROWS) * size];
        let lines = lines.filter(|_| {
            let is_half = self.first.is_multiple_of(STRIP_ROWS) && self.n_rows == STRIP_ROWS;
            let chunk = self.first - self.first % CHUNK;
            self.layout.form() == Form::Neurons && is_half && self.layout.n_rows() - chunk >= CHUNK
        });
        if let Some(lines) = lines {
            self.gather_half(g, used, lines);
            return (used, n_cols);
        }
        for (p, panel) in used.chunks_exact_mut(size).enumerate() {
            if self.layout.form() == Form::Neurons {
                let number = self.first / PANEL_ROWS + p;
                neurons_panel(&self.layout, self.bytes, number, g, panel);
                continue;
            }
            let rows = self.groups(p, g);
            // SAFETY: each points into a row of the matrix, which was checked to be whole; the group is in it.
            unsafe { put_rows(&self.format, n_cols, &rows, panel, transpose) };
        }
        (used, n_cols)
    }
}

impl Strip<'_> {
    /// Makes the panels of group `g` from half a whole chunk.
    fn gather_half(&self, g: usize, panels: &mut [u8], lines: LinesFn) {
        let n_cols = group_cols(&self.layout, g);
        let (size, head_bytes) = (
            self.format.group_bytes(n_cols),
            self.format.head_bytes(n_cols),
        );
        let chunk = ChunkCodes::new(&self.layout, self.first - self.first % CHUNK);
        let half = HalfChunk {
            format: self.format,
            first: self.bytes[chunk.at + g * GROUP * chunk.stride..].as_ptr(),
            stride: chunk.stride,
            n_cols,
            half: self.first % CHUNK / STRIP_ROWS,
        };
        let mut lines_of = [panels.as_mut_ptr(); HALF];
        for (p, panel) in panels.chunks_exact_mut(size).enumerate() {
            let head = head_at(&self.layout, self.first / PANEL_ROWS + p, g);
            panel[..head_bytes].copy_from_slice(&self.bytes[head..][..head_bytes]);
            lines_of[p] = panel[head_bytes..].as_mut_ptr();
        }
        // SAFETY: the columns are in the matrix, a panel has room for its lines, and the table that `lines` comes from
        // proves the features.
        unsafe { lines(&half, lines_of) };
    }
}

/// Writes a row's group into its lane.
#[inline(never)]
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

/// Panels of half a chunk.
pub(crate) const HALF: usize = 4;

/// Half a whole chunk of a group of columns.
pub(crate) struct HalfChunk {
    pub(crate) format: GroupFormat,
    /// The chunk's codes of the first column, and the distance to the next column's.
    pub(crate) first: *const u8,
    pub(crate) stride: usize,
    pub(crate) n_cols: usize,
    /// Which half: 0 or 1.
    pub(crate) half: usize,
}

/// Writes the lines of the four panels of half a chunk.
pub(crate) type LinesFn = unsafe fn(&HalfChunk, [*mut u8; HALF]);

/// How rows become lines.
#[derive(Clone, Copy)]
pub(crate) struct Transpose {
    /// Writes lines from rows: 16 bytes of each make four lines, as often as the number says.
    pub(crate) rows: unsafe fn(&[*const u8; PANEL_ROWS], usize, *mut [u8; LINE_BYTES]),
    /// Writes the lower halves of each line's 32-bit words, then the upper ones.
    pub(crate) words: unsafe fn(&[[u8; LINE_BYTES]], *mut u8),
    /// Writes the first bytes of each line's 32-bit words, then the second ones, …
    pub(crate) bytes: unsafe fn(&[[u8; LINE_BYTES]], *mut u8),
}

/// Writes a group of 16 rows into their lanes.
///
/// # Safety
/// - A group is readable at each of `rows`; the CPU has what `transpose` needs.
#[inline(never)]
unsafe fn put_rows(
    format: &GroupFormat,
    n_cols: usize,
    rows: &[*const u8; PANEL_ROWS],
    panel: &mut [u8],
    transpose: Option<&Transpose>,
) {
    let n_lines = format.line_bytes(n_cols) / LINE_BYTES;
    let Some(transpose) = transpose.filter(|_| n_lines.is_multiple_of(4)) else {
        for (lane, row) in rows.iter().enumerate() {
            // SAFETY: by the caller.
            let row = unsafe { core::slice::from_raw_parts(*row, format.row_bytes(n_cols)) };
            put_row(format, n_cols, lane, row, panel);
        }
        return;
    };
    assert!(panel.len() == format.group_bytes(n_cols));
    // SAFETY: by the caller; at least four lines follow the head.
    unsafe {
        let rows = put_numbers(format, n_cols, rows, panel, transpose);
        let lines = panel[format.head_bytes(n_cols)..].as_mut_ptr();
        (transpose.rows)(&rows, n_lines / 4, lines.cast());
    }
}

/// Writes the numbers of a group of 16 rows into a head, in whole lines; returns where the rows' codes are.
///
/// # Safety
/// - As [`put_rows`]; rows have at least 16 bytes of codes.
#[inline(always)]
pub(crate) unsafe fn put_numbers(
    format: &GroupFormat,
    n_cols: usize,
    rows: &[*const u8; PANEL_ROWS],
    head: &mut [u8],
    transpose: &Transpose,
) -> [*const u8; PANEL_ROWS] {
    assert!(head.len() >= format.head_bytes(n_cols) + LINE_BYTES);
    let [(words_at, n_words), (bytes_at, n_bytes)] = format.words_and_bytes(n_cols);
    let head = head.as_mut_ptr();
    let mut numbers = [const { MaybeUninit::<[u8; LINE_BYTES]>::uninit() }; 8];
    let lines_of = numbers.as_mut_ptr().cast();
    // In this order: whole lines are written, and later parts follow.
    // SAFETY: rows have 16 bytes for each piece, codes included; there are 8 lines, and at most 32 bytes of
    // numbers; after the head there is room for a line. The CPU has the features, by the caller.
    unsafe {
        if n_words > 0 {
            let n = n_words.div_ceil(2);
            (transpose.rows)(rows, n.div_ceil(4), lines_of);
            (transpose.words)(numbers[..n].assume_init_ref(), head.add(words_at));
        }
        if n_bytes > 0 {
            let n = n_bytes.div_ceil(4);
            let rows = rows.map(|row| row.wrapping_add(2 * n_words));
            (transpose.rows)(&rows, n.div_ceil(4), lines_of);
            (transpose.bytes)(numbers[..n].assume_init_ref(), head.add(bytes_at));
        }
    }
    rows.map(|row| row.wrapping_add(2 * n_words + n_bytes))
}

/// Reads a row's group from its lane.
#[inline(never)]
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

/// The chunk that has panel `panel`, and the panel's number in it.
fn chunk_of(layout: &PanelLayout, panel: usize) -> (ChunkCodes, usize) {
    let first = panel * PANEL_ROWS / CHUNK * CHUNK;
    (ChunkCodes::new(layout, first), panel - first / PANEL_ROWS)
}

/// Makes panel `panel` of group `g` from a matrix in [`Form::Neurons`].
#[inline(never)]
fn neurons_panel(layout: &PanelLayout, bytes: &[u8], panel: usize, g: usize, out: &mut [u8]) {
    let (format, n_cols) = (format_of(layout), group_cols(layout, g));
    let head_bytes = format.head_bytes(n_cols);
    let (head, lines) = out.split_at_mut(head_bytes);
    head.copy_from_slice(&bytes[head_at(layout, panel, g)..][..head_bytes]);
    let mut codes: ByteLines = [[0; _]; _];
    let (chunk, p) = chunk_of(layout, panel);
    for col in 0..n_cols {
        let found = chunk.get(p..p + 1, &bytes[chunk.column(g * GROUP + col)]);
        for (row, code) in found[p].into_iter().enumerate() {
            codes[col / 4][4 * row + col % 4] = code;
        }
    }
    for (line, of) in lines.as_chunks_mut().0.iter_mut().zip(format.lines(n_cols)) {
        of.pack(&codes, line);
    }
}

/// The inverse of [`neurons_panel`].
#[inline(never)]
fn put_neurons_panel(layout: &PanelLayout, panel: usize, g: usize, from: &[u8], bytes: &mut [u8]) {
    let (format, n_cols) = (format_of(layout), group_cols(layout, g));
    let (head, lines) = from.split_at(format.head_bytes(n_cols));
    bytes[head_at(layout, panel, g)..][..head.len()].copy_from_slice(head);
    let mut codes: ByteLines = [[0; _]; _];
    for (line, of) in lines.as_chunks().0.iter().zip(format.lines(n_cols)) {
        of.unpack(line, &mut codes);
    }
    let (chunk, p) = chunk_of(layout, panel);
    for col in 0..n_cols {
        let mut put: Codes = [[0; _]; _];
        put[p] = core::array::from_fn(|row| codes[col / 4][4 * row + col % 4]);
        chunk.put(p..p + 1, &put, &mut bytes[chunk.column(g * GROUP + col)]);
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
    let strip = Strip::new(layout, bytes, first, PANEL_ROWS, None);
    for g in 0..layout.n_cols().div_ceil(GROUP) {
        let (panel, n_cols) = strip.gather(g, &mut room, None, None);
        let gguf_bytes = panels.gguf_bytes(n_cols);
        for (lane, row) in rows.chunks_exact_mut(row_bytes).enumerate() {
            let blocks = &mut row[panels.gguf_bytes(g * GROUP)..][..gguf_bytes];
            panels.unpack_group_lane(n_cols, lane, panel, blocks);
        }
    }
}
