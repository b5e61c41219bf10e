//! Adapters and observers at work: `A · x` once a row, `B` strip by strip, each input shown once.
//!
//! Rows that follow each other with the same adapter are one product, with A and with B.

use super::lora;
use super::pass::{Pass, activations};
use super::rows::Entries;
use super::sites::{AdapterPair, Seen};
use crate::kernels::table::{Activations, Matmul, Store};
use crate::model::Site;
use core::ops::Range;

/// Rows of a block: runs of rows with the same adapter end with it. Many enough for a product that reads
/// matrices once for several rows, few enough to look back over.
const RUN_ROWS: usize = 64;

/// Which matrix of the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) layer: usize,
    pub(super) site: Site,
    pub(super) expert: Option<u32>,
}

impl<'s> Pass<'s> {
    /// The adapter of a row, if it has a pair for the matrix.
    fn pair(&self, at: At, entries: Entries<'_>, row: usize) -> Option<&'s AdapterPair<'s>> {
        let entry = self.entry_of_row(entries, row);
        let adapter = &self.options.adapters[self.batch[entry].adapter? as usize];
        adapter.find(at.layer, at.site, at.expert)
    }

    /// Rows from the start of `rows` on that have the same adapter as the first, within its block of rows;
    /// and the first such row of the block. What `A` makes of a block's run lies side by side from there on,
    /// whoever computes which rows of it.
    fn run(&self, entries: Entries<'_>, rows: &Range<usize>) -> (usize, Range<usize>) {
        let adapter = |row| self.batch[self.entry_of_row(entries, row)].adapter;
        let first = adapter(rows.start);
        let block = rows.start / RUN_ROWS * RUN_ROWS;
        let is_same = |row: &usize| adapter(*row) == first;
        let n_before = (block..rows.start).rev().take_while(is_same).count();
        let end = rows.end.min(block + RUN_ROWS);
        let n = (rows.start..end).take_while(is_same).count();
        (rows.start - n_before, rows.start..rows.start + n)
    }

    /// Whether entries may have adapters.
    pub(super) const fn has_adapters(&self) -> bool {
        !self.options.adapters.is_empty()
    }

    /// `A · x` of some rows of `input`, whose numbers begin at `first` in the room.
    pub(super) fn project(
        &self,
        rank: usize,
        at: At,
        (input, entries): (&Activations<'_>, Entries<'_>),
        (slot, first): (usize, usize),
        rows: Range<usize>,
    ) {
        let mut rest = rows;
        while !rest.is_empty() {
            let (start, run) = self.run(entries, &rest);
            rest.start = run.end;
            let Some(pair) = self.pair(at, entries, run.start) else {
                continue;
            };
            let (n_rank, memory) = (pair.a.n_rows, self.common.products.of(rank));
            let args = Matmul {
                layout: pair.a.layout,
                panels: pair.a.panels,
                rows: (0..n_rank).into(),
                activations: *input,
                tokens: run.clone().into(),
                out: memory.pointer(0),
                out_stride: n_rank,
                store: Store::Set,
                prefetch: self.options.prefetch,
            };
            // SAFETY: this worker's own memory, for a tile of tokens × the widest strip.
            unsafe { self.table.matmul(&args) };
            let layout = lora::layout(n_rank);
            for (i, row) in run.enumerate() {
                // SAFETY: this worker's own memory.
                let x = unsafe { memory.read(i * n_rank..(i + 1) * n_rank) };
                let at = (slot, first + start, row - start);
                let out = self.common.lora.rows(at, 1, n_rank);
                self.quantize(x, &layout, out.pointer(0));
            }
        }
    }

    /// Adds `B · (A · x)` to the products of some outputs and rows; `out` are those of the first row.
    pub(super) fn add_adapters(
        &self,
        at: At,
        entries: Entries<'_>,
        (slot, first): (usize, usize),
        (outputs, rows): (&Range<usize>, &Range<usize>),
        out: *mut f32,
    ) {
        let mut rest = rows.clone();
        while !rest.is_empty() {
            let (start, run) = self.run(entries, &rest);
            rest.start = run.end;
            let Some(pair) = self.pair(at, entries, run.start) else {
                continue;
            };
            let (n_rank, n) = (pair.a.n_rows, run.len());
            let layout = lora::layout(n_rank);
            let place = (slot, first + start, run.start - start);
            let from = self.common.lora.rows(place, n, n_rank);
            let args = Matmul {
                layout: pair.b.layout,
                panels: pair.b.panels,
                rows: (outputs.start..outputs.end).into(),
                // SAFETY: written before the last barrier, and read until the next.
                activations: unsafe { activations(&from, &layout, n) },
                tokens: (0..n).into(),
                out: out.wrapping_add((run.start - rows.start) * outputs.len()),
                out_stride: outputs.len(),
                store: Store::Add,
                prefetch: self.options.prefetch,
            };
            // SAFETY: the tile is this worker's own and holds the products of these outputs.
            unsafe { self.table.matmul(&args) };
        }
    }

    /// Shows some rows of `input` to the observer.
    pub(super) fn show(
        &self,
        at: At,
        (input, entries): (&Activations<'_>, Entries<'_>),
        rows: Range<usize>,
    ) {
        let Some(observer) = self.options.observer else {
            return;
        };
        for row in rows {
            observer.sees(Seen {
                layer: at.layer,
                site: at.site,
                expert: at.expert,
                entry: self.entry_of_row(entries, row),
                input: input.f32_row(row),
            });
        }
    }
}
