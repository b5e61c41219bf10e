//! Few rows: workers share the columns of A, each adds up the sums for itself, and looks pairs up once.

use super::{At, Factor, factors};
use crate::engine::lora::{Found, LISTED};
use crate::engine::pass::Pass;
use crate::engine::rows::Entries;
use crate::engine::sites::Adapter;
use crate::kernels::lora::{LoraDown, PART};
use crate::kernels::panel::PANEL_ROWS;
use crate::kernels::prefetch_to_l2;
use crate::kernels::table::{Activations, TileRange};
use core::ops::Range;

impl<'s> Pass<'s> {
    /// Sums of parts of `A · x` of few rows: those that are this worker's, of jobs that are numbered from `job` on.
    pub(in crate::engine) fn project_parts(
        &self,
        (rank, size): (usize, usize),
        at: At,
        (input, entries, n_rows): (&Activations<'_>, Entries<'_>, usize),
        slot: usize,
        job: &mut usize,
    ) {
        let room = &self.common.lora;
        for (blend, run) in self.runs(entries, 0..n_rows) {
            for factor in factors(blend, at) {
                let a = factor.pair.a;
                for (part, columns) in parts(a.n_cols()) {
                    for panel in 0..a.n_panels() {
                        *job += 1;
                        if *job % size != rank {
                            continue;
                        }
                        let first = run.start * room.stride() + factor.start + panel * PANEL_ROWS;
                        let args = LoraDown {
                            matrix: a,
                            panels: (panel..panel + 1).into(),
                            columns,
                            activations: *input,
                            tokens: run.clone().into(),
                            out: room.sums(slot, part).pointer(first),
                            out_stride: room.stride(),
                        };
                        // SAFETY: a job is one worker's, and what it writes no other's.
                        unsafe { self.table.lora_down(&args) };
                    }
                }
            }
        }
    }

    /// Adds up the sums of parts of few rows, for this worker alone, and lists the pairs that they have. False if
    /// those are more than the list takes.
    pub(in crate::engine) fn collect(
        &self,
        rank: usize,
        at: At,
        (entries, n_rows): (Entries<'_>, usize),
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

    /// Adds up the sums of parts of one row.
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
        // SAFETY: this worker's own list, written behind the last barrier.
        let list = unsafe { list.read(0..list.len()) };
        let (n, words) = list.split_first().expect("it has a number");
        let words = words.as_chunks().0.iter().take(*n as usize);
        words.map(|words| {
            let found = Found::of_words(words);
            let parts = self.options.adapters[found.blend].parts;
            (found, parts[found.part].adapter)
        })
    }

    /// Asks memory for the rows of B that some outputs of few rows need, and for as much of the A of the phase
    /// behind as these outputs are of all `n`: its rows cannot be computed before, and its workers would wait.
    pub(in crate::engine) fn prefetch_adapters(
        &self,
        rank: usize,
        slot: usize,
        outputs: &Range<usize>,
        n: usize,
    ) {
        for (found, adapter) in self.listed(rank, slot) {
            let pairs = adapter.pairs();
            let panels = outputs.start / PANEL_ROWS..outputs.end.div_ceil(PANEL_ROWS);
            let bytes = pairs[found.pair].b.panels(panels);
            prefetch_to_l2(bytes.as_ptr(), bytes.len());
            for next in &pairs[found.next..found.next + found.n_next] {
                let bytes = next.a.bytes();
                let part = |at: usize| bytes.len() / n * at;
                let part = &bytes[part(outputs.start)..part(outputs.end)];
                prefetch_to_l2(part.as_ptr(), part.len());
            }
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
            self.up(pair, found.start, &t, (outputs, found.n_rows), out);
        }
    }
}

/// Parts of columns that are summed by themselves.
fn parts(n_cols: usize) -> impl Iterator<Item = (usize, TileRange)> {
    let starts = (0..n_cols).step_by(PART);
    let range = move |start: usize| (start..(start + PART).min(n_cols)).into();
    starts.map(range).enumerate()
}
