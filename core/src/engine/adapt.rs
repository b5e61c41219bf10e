//! Adapters and observers at work: `A · x` once a row, `B` strip by strip, each input shown once.
//!
//! Consecutive rows with the same blend are one product, with A and with B. If they are few, workers share the
//! columns of A and add up the sums themselves after a barrier; otherwise they share the rows.

mod few;

pub(super) use few::BesideList;

use super::lora::{FEW, Found};
use super::pass::Pass;
use super::rows::{Entries, InputRows};
use super::sites::{AdapterPair, Blend, SiteInput};
use crate::kernels::lora::{LoraDown, LoraType, LoraUp, quantize_factors};
use crate::kernels::panel::PANEL_ROWS;
use crate::kernels::table::Activations;
use crate::memory::Shared;
use crate::model::Site;
use core::ops::Range;

/// A matrix of the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) layer: usize,
    pub(super) site: Site,
    /// The expert or head.
    pub(super) part: Option<u32>,
}

/// Where the adapters' products for the rows of a linear layer are. The up matrix has the slot after its gate's.
#[derive(Clone, Copy, Debug)]
pub(super) enum Adapted {
    /// Few rows, in each worker's own room, with lists of their pairs.
    Listed { slot: usize },
    /// As [`Self::Listed`], with more pairs than a list takes.
    Few { slot: usize },
    /// In the shared room, from row `first` on.
    Room { slot: usize, first: usize },
    /// Not stored: each tile computes them again.
    Tile,
}

impl Adapted {
    /// The place `n` slots further on.
    pub(super) const fn skip(self, n: usize) -> Self {
        match self {
            Self::Listed { slot } => Self::Listed { slot: slot + n },
            Self::Few { slot } => Self::Few { slot: slot + n },
            Self::Room { slot, first } => Self::Room {
                slot: slot + n,
                first,
            },
            Self::Tile => Self::Tile,
        }
    }
}

/// Some outputs of some rows of a linear layer.
#[derive(Clone, Copy)]
pub(super) struct Area<'a> {
    pub(super) outputs: &'a Range<usize>,
    pub(super) rows: &'a Range<usize>,
}

/// A pair of matrices, and its part of a row's room.
struct Factor<'s> {
    pair: &'s AdapterPair<'s>,
    /// The adapter's place in its blend.
    part: usize,
    /// The pair's place in its adapter.
    index: usize,
    start: usize,
    scale: f32,
}

impl Factor<'_> {
    /// Ranks, in whole panels.
    const fn len(&self) -> usize {
        self.pair.a.n_panels() * PANEL_ROWS
    }

    /// Its place in the lists, for some rows with blend number `blend`.
    fn found(&self, blend: usize, rows: Range<usize>) -> Found {
        Found {
            blend,
            part: self.part,
            pair: self.index,
            row: rows.start,
            n_rows: rows.len(),
            start: self.start,
        }
    }

    /// Scales the product of `A`, and rounds it if `B` needs that.
    fn finish(&self, t: &mut [f32]) {
        t.iter_mut().for_each(|t| *t *= self.scale);
        if self.pair.b.ty() == LoraType::Int8 {
            quantize_factors(t, self.pair.a.n_rows());
        }
    }
}

/// The pairs of a blend for a matrix.
fn factors<'s>(blend: Blend<'s>, at: At) -> impl Iterator<Item = Factor<'s>> {
    let mut start = 0;
    blend.parts.iter().enumerate().filter_map(move |(i, part)| {
        let index = part.adapter.find(at.layer, at.site, at.part)?;
        let pair = &part.adapter.pairs()[index];
        let factor = Factor {
            pair,
            part: i,
            index,
            start,
            scale: part.scale * pair.scale,
        };
        start += factor.len();
        Some(factor)
    })
}

impl<'s> Pass<'s> {
    /// The number of a row's blend.
    fn blend_of(&self, entries: Entries<'_>, row: usize) -> Option<u32> {
        self.batch[self.entry_of_row(entries, row)].adapter
    }

    /// Runs of consecutive rows with the same blend; rows without one are left out.
    fn runs<'r>(
        &'r self,
        entries: Entries<'r>,
        rows: Range<usize>,
    ) -> impl Iterator<Item = (Blend<'s>, Range<usize>)> + use<'r, 's> {
        let mut rest = rows;
        core::iter::from_fn(move || {
            while !rest.is_empty() {
                let first = self.blend_of(entries, rest.start);
                let is_same = |row: &usize| self.blend_of(entries, *row) == first;
                let n = rest.clone().take_while(is_same).count();
                let run = rest.start..rest.start + n;
                rest.start = run.end;
                if let Some(blend) = first {
                    return Some((self.options.adapters[blend as usize], run));
                }
            }
            None
        })
    }

    /// Whether an adapter of the step has a pair for the matrix.
    pub(super) fn adapts(&self, at: At) -> bool {
        let has = |blend: &Blend<'_>| {
            let mut parts = blend.parts.iter();
            parts.any(|part| part.adapter.find(at.layer, at.site, at.part).is_some())
        };
        self.asked.adapts && self.options.adapters.iter().any(has)
    }

    /// `A · x` of some rows of `input`, whose numbers begin at `first` in the room.
    pub(super) fn project(
        &self,
        at: At,
        input: InputRows<'_>,
        slot: usize,
        first: usize,
        rows: Range<usize>,
    ) {
        let room = &self.common.lora;
        for (blend, run) in self.runs(input.entries, rows) {
            let out = room.rows(slot, first + run.start, run.len());
            for factor in factors(blend, at) {
                self.down(input.rows, &factor, run.clone(), &out);
            }
        }
    }

    /// `A · x` of some rows, scaled, into rows of the room.
    fn down(
        &self,
        input: &Activations<'_>,
        factor: &Factor<'_>,
        run: Range<usize>,
        out: &Shared<'_, f32>,
    ) {
        let (a, stride) = (factor.pair.a, self.common.lora.stride());
        let args = LoraDown {
            matrix: a,
            panels: (0..a.n_panels()).into(),
            columns: (0..a.n_cols()).into(),
            activations: *input,
            tokens: run.clone().into(),
            out: out.pointer(factor.start),
            out_stride: stride,
        };
        // SAFETY: these rows of the room are this worker's until the next barrier, or its own.
        unsafe { self.table.lora_down(&args) };
        for i in 0..run.len() {
            let start = i * stride + factor.start;
            // SAFETY: as above.
            let t = unsafe { out.write(start..start + factor.len()) };
            factor.finish(t);
        }
    }

    /// Adds `B · (A · x)` to the products of some outputs and rows; `out` points to the products of the first row.
    pub(super) fn add_adapters(
        &self,
        rank: usize,
        at: At,
        input: InputRows<'_>,
        adapted: Adapted,
        area: Area<'_>,
        out: *mut f32,
    ) {
        let (room, Area { outputs, rows }) = (&self.common.lora, area);
        for (blend, run) in self.runs(input.entries, rows.clone()) {
            let mut rest = run;
            while !rest.is_empty() {
                let (run, t) = match adapted {
                    Adapted::Listed { slot } | Adapted::Few { slot } => {
                        let start = rest.start * room.stride();
                        let end = rest.end * room.stride();
                        (rest.clone(), room.own(rank, slot).part(start..end))
                    }
                    Adapted::Room { slot, first } => {
                        let t = room.rows(slot, first + rest.start, rest.len());
                        (rest.clone(), t)
                    }
                    Adapted::Tile => {
                        let run = rest.start..rest.end.min(rest.start + FEW);
                        (run, room.own(rank, 0))
                    }
                };
                rest.start = run.end;
                for factor in factors(blend, at) {
                    if matches!(adapted, Adapted::Tile) {
                        self.down(input.rows, &factor, run.clone(), &t);
                    }
                    let out = out.wrapping_add((run.start - rows.start) * outputs.len());
                    self.up(factor.pair, factor.start, &t, outputs, run.len(), out);
                }
            }
        }
    }

    /// Adds `B · t` to some outputs of `n` rows.
    fn up(
        &self,
        pair: &AdapterPair<'_>,
        start: usize,
        t: &Shared<'_, f32>,
        outputs: &Range<usize>,
        n: usize,
        out: *mut f32,
    ) {
        let stride = self.common.lora.stride();
        let len = pair.a.n_panels() * PANEL_ROWS;
        let args = LoraUp {
            matrix: pair.b,
            rows: (outputs.start..outputs.end).into(),
            // SAFETY: written before the last barrier and read until the next, or this worker's own.
            t: unsafe { t.read(start..(n - 1) * stride + start + len) },
            t_stride: stride,
            n_tokens: n,
            out,
            out_stride: outputs.len(),
        };
        // SAFETY: the tile is this worker's own and holds the products of these outputs.
        unsafe { self.table.lora_up(&args) };
    }

    /// Adds the adapters' embeddings of an entry's token.
    pub(super) fn add_embedding(&self, rank: usize, entry: usize, x: &mut [f32]) {
        let Some(blend) = self.batch[entry].adapter.filter(|_| self.asked.adapts) else {
            return;
        };
        let token = self.batch[entry].token as usize;
        for part in self.options.adapters[blend as usize].parts {
            let Some(pair) = part.adapter.embedding() else {
                continue;
            };
            let n = pair.a.n_rows().next_multiple_of(PANEL_ROWS);
            // SAFETY: this worker's own room, whose last use is over.
            let t = unsafe { self.common.lora.own(rank, 0).write(0..n) };
            for (r, t) in t.iter_mut().enumerate().take(pair.a.n_rows()) {
                *t = pair.a.element(r, token) * (part.scale * pair.scale);
            }
            if pair.b.ty() == LoraType::Int8 {
                quantize_factors(t, pair.a.n_rows());
            }
            let args = LoraUp {
                matrix: pair.b,
                rows: (0..x.len()).into(),
                t,
                t_stride: n,
                n_tokens: 1,
                out: x.as_mut_ptr(),
                out_stride: x.len(),
            };
            // SAFETY: a row of as many numbers.
            unsafe { self.table.lora_up(&args) };
        }
    }

    /// Shows some rows of `input` to the observer.
    pub(super) fn show(&self, at: At, input: InputRows<'_>, rows: Range<usize>) {
        let Some(observer) = self.options.observer else {
            return;
        };
        for row in rows {
            observer.sees(SiteInput {
                layer: at.layer,
                site: at.site,
                expert: at.part,
                entry: self.entry_of_row(input.entries, row),
                input: input.rows.f32_row(row),
            });
        }
    }
}
