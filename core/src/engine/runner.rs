//! The runner of blocks: rows, linear layers, shared work, barriers, events.

use super::adapt::Adapted;
use super::epilogue::Epilogue;
use super::linear::Linear;
use super::lora::FEW;
use super::pass::{Pass, RowsRoom, activations};
use super::rows::{Entries, Order, SMALL_BATCH};
use super::scratch::PerWorker;
use super::stream::{Stream, Target};
use crate::kernels::table::Activations;
use crate::model::{Norm, Site, Weight};
use crate::team::{Member, Stop};
use crate::trace::{Phase, TraceEvent};
use core::ops::Range;

/// A rank on its way through a pass.
pub(super) struct Runner<'p, 't> {
    pub(super) pass: &'p Pass<'p>,
    pub(super) member: &'p mut Member<'t>,
    pub(super) stream: Stream<'p>,
    /// Number of rows that are computed further; `order` maps them to entries.
    pub(super) n_rows: usize,
    pub(super) order: Order,
}

/// How a block adds to the stream, for [`Linear::epilogue`].
impl<'p> From<Target<'p>> for Epilogue<'p> {
    fn from(target: Target<'p>) -> Self {
        match target {
            Target::Add(rows, scale) => Self::Add(rows, scale),
            Target::Store(rows) => Self::Store(rows),
        }
    }
}

impl<'p, 't> Runner<'p, 't> {
    /// Before the first layer, all rows in the batch's order.
    pub(super) fn new(pass: &'p Pass<'p>, member: &'p mut Member<'t>) -> Self {
        Self {
            pass,
            member,
            stream: Stream::new(&pass.common.stream),
            n_rows: pass.batch.len(),
            order: Order::Batch,
        }
    }

    /// A linear layer over rows in the runner's order.
    pub(super) const fn linear(
        &self,
        layer: usize,
        site: Site,
        input: Activations<'p>,
        n_rows_in: usize,
        weight: Weight<'p>,
        epilogue: Epilogue<'p>,
    ) -> Linear<'p> {
        Linear {
            layer,
            site,
            part: None,
            input,
            n_rows_in,
            weight,
            epilogue,
            entries: Entries::Each(self.order),
            adapted: None,
            columns: None,
        }
    }

    /// Normalised and quantised rows of the residual stream; `order` is the order of the rows relative to
    /// the stream's.
    pub(super) fn normed(
        &mut self,
        phase: Phase,
        layer: usize,
        norm: Option<Norm<'_>>,
        order: Order,
    ) -> Result<Activations<'p>, Stop> {
        let (pass, n) = (self.pass, self.n_rows);
        let (common, config) = (pass.common, pass.config());
        let replaces = config.norms_replace_stream;
        let moves = replaces || self.stream.is_pending();
        let result = self.rows(phase, layer, &common.normed, n, |runner, i, row| {
            let at = common.entry(order, i);
            let x = runner.stream_row(at);
            let normed = runner.norm(x, norm);
            if moves && (n > SMALL_BATCH || runner.member.rank() == 0) {
                // SAFETY: a row of the other buffer is one worker's: the one that has it, or rank 0
                // where each worker makes all rows. Its last readers passed a barrier.
                unsafe {
                    runner
                        .stream
                        .write_other(at, if replaces { normed } else { x })
                };
            }
            pass.quantize(normed, &common.normed.layout, row);
        });
        self.stream.taken_in(moves);
        result
    }

    /// Row `i` of the residual stream, with its pending rows added.
    pub(super) fn stream_row(&self, i: usize) -> &'p [f32] {
        let pass = self.pass;
        let eps = pass.config().norm_eps;
        self.stream.row(pass.table, eps, self.member.rank(), i)
    }

    /// From here on, only output rows: moves this worker's columns of them to the front of the residual
    /// stream. Call it after a barrier that follows its readers, and before the barrier of its next readers.
    pub(super) fn keep_outputs(&mut self, layer: usize) {
        self.n_rows = self.pass.wanted.n_outputs;
        let start = self.now();
        let columns = self.member.home_range(self.pass.config().n_embd);
        for row in 0..self.n_rows {
            let from = self.pass.common.entry(Order::OutputsFirst, row);
            if from != row {
                // SAFETY: these columns are this worker's until the next barrier. Rows move forward
                // in their order, so none is overwritten before it has moved.
                unsafe { self.stream.move_row(from, row, &columns) };
            }
        }
        self.record(Phase::AttentionNorm, layer, start, 0);
    }

    /// The norm of a row, in this rank's own memory; without a norm, the row itself.
    pub(super) fn norm(&self, x: &'p [f32], norm: Option<Norm<'_>>) -> &'p [f32] {
        let Some(norm) = norm else {
            return x;
        };
        let pass = self.pass;
        // SAFETY: this rank's own row, whose last use is over.
        let out = unsafe { pass.common.norms.of(self.member.rank()).write(0..x.len()) };
        pass.norm(x, norm, out);
        out
    }

    /// Rows for a linear layer, computed by `make`: for small batches, all of them by every worker in its own
    /// memory; otherwise shared out, with a barrier.
    pub(super) fn rows(
        &mut self,
        phase: Phase,
        layer: usize,
        room: &RowsRoom<'p>,
        n: usize,
        make: impl Fn(&Self, usize, *mut u8),
    ) -> Result<Activations<'p>, Stop> {
        let own = &self.pass.common.private_rows;
        self.rows_in(phase, layer, room, own, n, make)
    }

    /// As [`Self::rows`], with other memory for small batches.
    pub(super) fn rows_in(
        &mut self,
        phase: Phase,
        layer: usize,
        room: &RowsRoom<'p>,
        own: &PerWorker<'p, u8>,
        n: usize,
        make: impl Fn(&Self, usize, *mut u8),
    ) -> Result<Activations<'p>, Stop> {
        let row_bytes = room.layout.row_bytes();
        if n <= SMALL_BATCH {
            let start = self.now();
            let own = own.of(self.member.rank());
            (0..n).for_each(|i| make(self, i, own.pointer(i * row_bytes)));
            self.record(phase, layer, start, 0);
            // SAFETY: this rank's own memory, written to again only when these rows are used.
            return Ok(unsafe { activations(&own, &room.layout, n) });
        }
        let start = self.now();
        for i in self.member.home_range(n) {
            make(self, i, room.memory.pointer(i * row_bytes));
        }
        self.record(phase, layer, start, 0);
        self.barrier(layer)?;
        // SAFETY: every row was written before the barrier; none is written while it is read.
        Ok(unsafe { activations(&room.memory, &room.layout, n) })
    }

    /// Runs linear layers side by side as one phase.
    pub(super) fn linears(
        &mut self,
        phase: Phase,
        layer: usize,
        linears: &mut [Linear<'p>],
    ) -> Result<(), Stop> {
        self.linears_open(phase, layer, linears)?;
        self.barrier(layer)
    }

    /// As [`Self::linears`], without a barrier at the end.
    pub(super) fn linears_open(
        &mut self,
        phase: Phase,
        layer: usize,
        linears: &mut [Linear<'p>],
    ) -> Result<(), Stop> {
        self.prepare(layer, linears)?;
        self.multiply(phase, layer, linears);
        Ok(())
    }

    /// Runs linear layers side by side, which neither adapters nor observers know of, without a barrier.
    pub(super) fn multiply(&mut self, phase: Phase, layer: usize, linears: &[Linear<'p>]) {
        let pass = self.pass;
        let n = linears.iter().map(Linear::n_strips).sum();
        self.share_ranges(phase, layer, n, |rank, strips| {
            let (mut first, mut bytes) = (0, 0);
            for linear in linears {
                let n = linear.n_strips();
                let start = strips.start.clamp(first, first + n) - first;
                let end = strips.end.clamp(first, first + n) - first;
                bytes += linear.run(pass, rank, start..end);
                first += n;
            }
            bytes
        });
    }

    /// Shows the rows of linear layers to an observer, and runs adapters on them, with a barrier if there
    /// are any.
    pub(super) fn prepare(&mut self, layer: usize, linears: &mut [Linear<'p>]) -> Result<(), Stop> {
        let pass = self.pass;
        if pass.options.observer.is_some() {
            let mut n = 0;
            for linear in &*linears {
                for at in linear.matrices() {
                    // One worker shows all rows of a matrix, in their order.
                    if n % self.member.size() == self.member.rank() {
                        pass.show(at, linear.input_rows(), 0..linear.n_rows_in);
                    }
                    n += 1;
                }
            }
        }
        if !pass.asked.adapts {
            return Ok(());
        }
        self.project(linears);
        if linears.iter().all(|linear| linear.adapted.is_none()) {
            return Ok(());
        }
        self.barrier(layer)?;
        for linear in linears {
            let Some(Adapted::Few { slot }) = linear.adapted else {
                continue;
            };
            let (rank, mut is_listed) = (self.member.rank(), true);
            for (at, slot) in linear.matrices().zip(slot..) {
                is_listed &= pass.collect(rank, at, linear.entries, linear.n_rows_in, slot);
            }
            if is_listed {
                linear.adapted = Some(Adapted::Listed { slot });
            }
        }
        Ok(())
    }

    /// Runs adapters on the rows of linear layers that they have matrices for.
    fn project(&mut self, linears: &mut [Linear<'p>]) {
        let pass = self.pass;
        let few = linears.iter().filter(|linear| linear.n_rows_in <= FEW);
        let jobs = few.flat_map(|linear| {
            let (entries, n) = (linear.entries, linear.n_rows_in);
            linear.matrices().map(move |at| pass.n_jobs(at, entries, n))
        });
        let mine = self.member.home_range(jobs.sum());
        let (mut slot, mut job) = (0, 0);
        for linear in linears {
            let first = slot;
            slot += linear.matrices().count();
            if !linear.matrices().any(|at| pass.adapts(at)) {
                continue;
            }
            let (input, n) = (linear.input_rows(), linear.n_rows_in);
            if n <= FEW {
                for (at, slot) in linear.matrices().zip(first..) {
                    pass.project_parts(&mine, at, input, n, slot, &mut job);
                }
                linear.adapted = Some(Adapted::Few { slot: first });
                continue;
            }
            let rows = self.member.home_range(n);
            for (at, slot) in linear.matrices().zip(first..) {
                pass.project(at, input, slot, 0, rows.clone());
            }
            linear.adapted = Some(Adapted::Room {
                slot: first,
                first: 0,
            });
        }
    }

    /// Shares `0..n` out among the ranks; `work` returns the bytes it read.
    pub(super) fn share(
        &mut self,
        phase: Phase,
        layer: usize,
        n: usize,
        mut work: impl FnMut(usize, usize) -> usize,
    ) {
        self.share_ranges(phase, layer, n, |rank, range| {
            range.map(|i| work(rank, i)).sum()
        });
    }

    /// As [`Self::share`], one range at a time.
    pub(super) fn share_ranges(
        &mut self,
        phase: Phase,
        layer: usize,
        n: usize,
        mut work: impl FnMut(usize, Range<usize>) -> usize,
    ) {
        let (start, mut bytes) = (self.now(), 0);
        self.member
            .share(n, |member, range| bytes += work(member.rank(), range));
        self.record(phase, layer, start, bytes);
    }

    /// Shares rows of neurons out. Not generic, as its callers are cold: a copy for each would only be long.
    pub(super) fn share_rows(&mut self, layer: usize, n: usize, work: &dyn Fn(Range<usize>)) {
        self.share_ranges(Phase::FfnGateUp, layer, n, |_, rows| {
            work(rows);
            0
        });
    }

    pub(super) fn barrier(&mut self, layer: usize) -> Result<(), Stop> {
        let start = self.now();
        let result = self.member.barrier();
        self.record(Phase::Barrier, layer, start, 0);
        result
    }

    pub(super) fn now(&self) -> u64 {
        self.pass.options.trace.map_or(0, |trace| trace.now())
    }

    pub(super) fn record(&self, phase: Phase, layer: usize, start_ticks: u64, bytes: usize) {
        if let Some(trace) = self.pass.options.trace {
            let event = TraceEvent {
                phase,
                rank: u8::try_from(self.member.rank()).unwrap_or(u8::MAX),
                layer: u16::try_from(layer).unwrap_or(u16::MAX),
                start_ticks,
                end_ticks: trace.now(),
                bytes: bytes as u64,
            };
            // SAFETY: a rank is joined once per step, so this is the only one with this rank.
            unsafe { trace.push(event) };
        }
    }
}
