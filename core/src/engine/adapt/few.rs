//! Few rows: workers share the columns of A, each adds up the sums itself, and looks up pairs once.

use super::{At, Factor, factors};
use crate::engine::lora::{Found, LISTED};
use crate::engine::pass::Pass;
use crate::engine::rows::{Entries, InputRows};
use crate::engine::sites::Adapter;
use crate::kernels::lora::{LoraDown, PART};
use crate::kernels::panel::PANEL_ROWS;
use crate::kernels::table::{Beside, TileRange};
use core::ops::Range;

impl<'s> Pass<'s> {
    /// Number of partial sums of `A · x` for a matrix and few rows.
    pub(in crate::engine) fn n_jobs(&self, at: At, entries: Entries<'_>, n_rows: usize) -> usize {
        let of_factor = |factor: Factor<'_>| {
            let a = factor.pair.a;
            a.n_panels() * parts(a.n_cols()).count()
        };
        let runs = self.runs(entries, 0..n_rows);
        let of_run = |(blend, _)| factors(blend, at).map(of_factor).sum::<usize>();
        runs.map(of_run).sum()
    }

    /// Computes the sums whose numbers are in `mine`; the first has number `job`. Neighbouring sums belong to one
    /// worker, as they are adjacent in memory.
    pub(in crate::engine) fn project_parts(
        &self,
        mine: &Range<usize>,
        at: At,
        input: InputRows<'_>,
        n_rows: usize,
        slot: usize,
        job: &mut usize,
    ) {
        let room = &self.common.lora;
        for (blend, run) in self.runs(input.entries, 0..n_rows) {
            for factor in factors(blend, at) {
                let a = factor.pair.a;
                for panel in 0..a.n_panels() {
                    for (part, columns) in parts(a.n_cols()) {
                        *job += 1;
                        if !mine.contains(&(*job - 1)) {
                            continue;
                        }
                        let first = run.start * room.stride() + factor.start + panel * PANEL_ROWS;
                        let args = LoraDown {
                            matrix: a,
                            panels: (panel..panel + 1).into(),
                            columns,
                            activations: *input.rows,
                            tokens: run.clone().into(),
                            out: room.sums(slot, part).pointer(first),
                            out_stride: room.stride(),
                        };
                        // SAFETY: each job belongs to one worker, and no other job writes to its memory.
                        unsafe { self.table.lora_down(&args) };
                    }
                }
            }
        }
    }

    /// Adds up the partial sums of few rows, for this worker only, and lists their pairs. False if the list is too
    /// short for them.
    pub(in crate::engine) fn collect(
        &self,
        rank: usize,
        at: At,
        entries: Entries<'_>,
        n_rows: usize,
        slot: usize,
    ) -> bool {
        let room = &self.common.lora;
        let list = room.list(rank, slot);
        // SAFETY: this worker's own list, whose last use is over.
        let list = unsafe { list.write(0..list.len()) };
        let mut n_found = 0;
        for (blend, run) in self.runs(entries, 0..n_rows) {
            for factor in factors(blend, at) {
                for row in run.clone() {
                    self.add_up(rank, &factor, slot, row);
                }
                let number = self.blend_of(entries, run.start).unwrap_or(0) as usize;
                if n_found < LISTED {
                    let words = factor.found(number, run.clone()).to_words();
                    let at = 1 + n_found * Found::WORDS;
                    list[at..at + Found::WORDS].copy_from_slice(&words);
                }
                n_found += 1;
            }
        }
        list[0] = u32::try_from(n_found.min(LISTED)).expect("a list is short");
        n_found <= LISTED
    }

    /// Adds up the partial sums of one row.
    fn add_up(&self, rank: usize, factor: &Factor<'_>, slot: usize, row: usize) {
        let room = &self.common.lora;
        let start = row * room.stride() + factor.start;
        let place = start..start + factor.len();
        // SAFETY: this worker's own room, whose last use is over.
        let t = unsafe { room.own(rank, slot).write(place.clone()) };
        for (part, _) in parts(factor.pair.a.n_cols()) {
            // SAFETY: written before the last barrier.
            let sums = unsafe { room.sums(slot, part).read(place.clone()) };
            match part {
                0 => t.copy_from_slice(sums),
                _ => t.iter_mut().zip(sums).for_each(|(t, sum)| *t += sum),
            }
        }
        factor.finish(t);
    }

    /// The pairs of few rows.
    fn listed(&self, rank: usize, slot: usize) -> impl Iterator<Item = (Found, &'s Adapter<'s>)> {
        let list = self.common.lora.list(rank, slot);
        // SAFETY: this worker's own list, written after the last barrier.
        let list = unsafe { list.read(0..list.len()) };
        let (n, words) = list.split_first().expect("it has a number");
        let words = words.as_chunks().0.iter().take(*n as usize);
        words.map(|words| {
            let found = Found::of_words(words);
            let parts = self.options.adapters[found.blend].parts;
            (found, parts[found.part].adapter)
        })
    }

    /// Lists what to prefetch while outputs from number `first` on of few rows are computed: their rows of B.
    pub(in crate::engine) fn list_beside(
        &self,
        rank: usize,
        slot: usize,
        first: usize,
        list: &mut BesideList,
    ) {
        let first = first / PANEL_ROWS;
        for (found, adapter) in self.listed(rank, slot) {
            list.push(adapter.pairs()[found.pair].b.panels(first..first + 1));
        }
    }

    /// Adds `B · (A · x)` of few rows to the products of some outputs and all rows.
    pub(in crate::engine) fn add_listed(
        &self,
        rank: usize,
        slot: usize,
        outputs: &Range<usize>,
        out: *mut f32,
    ) {
        let room = &self.common.lora;
        for (found, adapter) in self.listed(rank, slot) {
            let start = found.row * room.stride();
            let end = start + found.n_rows * room.stride();
            let t = room.own(rank, slot).part(start..end);
            let pair = &adapter.pairs()[found.pair];
            let out = out.wrapping_add(found.row * outputs.len());
            self.up(pair, found.start, &t, outputs, found.n_rows, out);
        }
    }
}

/// What is prefetched during a product, in addition to its own operands: B for each pair of a list.
pub(in crate::engine) struct BesideList {
    len: usize,
    all: [Beside; LISTED],
}

impl BesideList {
    pub(in crate::engine) const fn new() -> Self {
        let nothing = Beside {
            start: core::ptr::null(),
            panel_bytes: 0,
        };
        Self {
            len: 0,
            all: [nothing; _],
        }
    }

    fn push(&mut self, panel: &[u8]) {
        if let Some(place) = self.all.get_mut(self.len) {
            *place = Beside {
                start: panel.as_ptr(),
                panel_bytes: panel.len(),
            };
            self.len += 1;
        }
    }

    pub(in crate::engine) fn get(&self) -> &[Beside] {
        &self.all[..self.len]
    }
}

/// Parts of the columns, summed separately.
fn parts(n_cols: usize) -> impl Iterator<Item = (usize, TileRange)> {
    let starts = (0..n_cols).step_by(PART);
    let range = move |start: usize| (start..(start + PART).min(n_cols)).into();
    starts.map(range).enumerate()
}
