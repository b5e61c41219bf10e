//! The residual stream: its two buffers, and the pending rows that the next norm adds to it.
//!
//! Where a family has norms after its blocks, the rows that a block adds are stored as pending, and the next norm adds
//! them: every worker sums the rows that it needs, and one of them writes each to the stream's other buffer. This needs
//! no further barrier. Where mixer and channel read one norm, the mixer's rows are pending as well, so that the channel
//! still finds the stream as the mixer found it.

use super::limits::EngineLimits;
use super::rows::Rows;
use super::scratch::{PerWorker, Room};
use crate::kernels::KernelTable;
use crate::memory::{MemoryError, Shared};
use crate::model::{ModelConfig, Norm};
use core::ops::Range;

/// Buffers of the residual stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamRoom<'m> {
    /// The stream, (n_batch, n_embd); the second buffer is empty where rows are never pending.
    x: [Shared<'m, f32>; 2],
    /// Pending rows, (n_batch, n_embd), in families with norms after their blocks; two of them where experts run in
    /// addition to a network.
    branches: [Shared<'m, f32>; 2],
    /// Rows for each worker, where rows may be pending: the sum and its terms.
    sums: PerWorker<'m, f32>,
    n_embd: usize,
    /// Factor on the added rows.
    scale: f32,
}

impl<'m> StreamRoom<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let n_embd = config.n_embd;
        let has_branch = (config.kinds.iter())
            .any(|kind| kind.has_post_norms || kind.is_parallel || kind.has_second_norm);
        let has_two = config.experts().any(|shape| shape.has_norms);
        let or_none = |there: bool| if there { n_embd } else { 0 };
        let second = or_none(has_branch || config.norms_replace_stream);
        Ok(Self {
            x: [
                room.buffer(limits.n_batch, n_embd)?,
                room.buffer(limits.n_batch, second)?,
            ],
            branches: [
                room.buffer(limits.n_batch, or_none(has_branch))?,
                room.buffer(limits.n_batch, or_none(has_two))?,
            ],
            sums: room.of_workers(limits.n_workers, 3 * or_none(has_branch))?,
            n_embd,
            scale: config.residual_scale,
        })
    }
}

/// Where a block adds to the stream.
#[derive(Clone, Copy)]
pub(super) enum Target<'p> {
    /// It adds to the stream itself, times a factor.
    Add(Rows<'p>, f32),
    /// It adds to the pending rows, until the next norm.
    Store(Rows<'p>),
}

/// The residual stream on its way through a pass. All workers' agree.
#[derive(Clone, Copy)]
pub(super) struct Stream<'p> {
    room: &'p StreamRoom<'p>,
    /// Which of its two buffers it is in.
    current: usize,
    /// How the pending rows are added, if there are any.
    pending: Option<Pending<'p>>,
    /// Whether they are hidden for now: the channel reads what the mixer read.
    is_hidden: bool,
    /// Factor on the stream, applied when the pending rows are added.
    factor: f32,
}

/// How pending rows are added.
#[derive(Clone, Copy)]
enum Pending<'p> {
    /// After a norm.
    Norm(Norm<'p>),
    /// As the sum of two, each after a norm of its own, after a further norm.
    Sum([Norm<'p>; 2], Norm<'p>),
    /// Times the stream's factor.
    Plain,
    /// The sum goes through a norm, and the stream is added to the result once more.
    Again(Norm<'p>),
}

impl<'p> Stream<'p> {
    pub(super) const fn new(room: &'p StreamRoom<'p>) -> Self {
        Self {
            room,
            current: 0,
            pending: None,
            is_hidden: false,
            factor: 1.0,
        }
    }

    /// Whether there are pending rows that its readers have to add.
    pub(super) const fn is_pending(&self) -> bool {
        self.pending.is_some() && !self.is_hidden
    }

    /// Row `i` to write to.
    ///
    /// # Safety
    /// - No other worker accesses the row at the same time.
    pub(super) unsafe fn write(&self, i: usize) -> &'p mut [f32] {
        // SAFETY: by the caller.
        unsafe { self.room.x[self.current].write(self.range(i)) }
    }

    fn range(&self, i: usize) -> Range<usize> {
        i * self.room.n_embd..(i + 1) * self.room.n_embd
    }

    /// Row `i`, with its pending rows added. Call it between the barrier after the last writer and the one before
    /// the next.
    pub(super) fn row(&self, table: &KernelTable, eps: f32, rank: usize, i: usize) -> &'p [f32] {
        // SAFETY: this buffer of the stream is only read in this phase.
        let x = unsafe { self.room.x[self.current].read(self.range(i)) };
        let Some(pending) = self.pending.filter(|_| !self.is_hidden) else {
            return x;
        };
        // SAFETY: written before the last barrier.
        let branch = |which: usize| unsafe { self.room.branches[which].read(self.range(i)) };
        let n_embd = self.room.n_embd;
        // SAFETY: this rank's own rows, whose last use is over.
        let rows = unsafe { self.room.sums.of(rank).write(0..3 * n_embd) };
        let (sum, rest) = rows.split_at_mut(n_embd);
        let (first, second) = rest.split_at_mut(n_embd);
        match pending {
            Pending::Norm(post) => {
                post.apply(table, branch(0), eps, sum);
                sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
            }
            Pending::Sum([norm, other], post) => {
                norm.apply(table, branch(0), eps, first);
                other.apply(table, branch(1), eps, second);
                first.iter_mut().zip(&*second).for_each(|(x, y)| *x += y);
                post.apply(table, first, eps, sum);
                sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
            }
            Pending::Again(norm) => {
                first.copy_from_slice(x);
                table.add_scaled(self.room.scale, branch(0), first);
                norm.apply(table, first, eps, sum);
                sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
            }
            Pending::Plain => {
                sum.copy_from_slice(x);
                table.add_scaled(self.room.scale, branch(0), sum);
            }
        }
        #[expect(clippy::float_cmp, reason = "1 is a setting, not a result")]
        if self.factor != 1.0 {
            sum.iter_mut().for_each(|x| *x *= self.factor);
        }
        sum
    }

    /// Writes a row of the other buffer.
    ///
    /// # Safety
    /// - The row is this worker's alone until the next barrier, and its last readers passed one.
    pub(super) unsafe fn write_other(&self, i: usize, x: &[f32]) {
        // SAFETY: by the caller.
        unsafe { self.room.x[1 - self.current].write(self.range(i)) }.copy_from_slice(x);
    }

    /// Records that the pending rows have been added; `moves`: into the other buffer.
    pub(super) const fn taken_in(&mut self, moves: bool) {
        if !self.is_hidden {
            (self.pending, self.factor) = (None, 1.0);
        }
        if moves {
            self.current = 1 - self.current;
        }
    }

    /// Where the next block adds: at once, or at the next norm where it goes through the norm `post` before.
    pub(super) const fn add(&mut self, post: Option<Norm<'p>>) -> Target<'p> {
        // The channel in parallel with a mixer: from now on, the rows that the mixer stored are visible.
        if self.is_hidden {
            self.is_hidden = false;
            return self.target();
        }
        match post {
            Some(post) => {
                self.pending = Some(Pending::Norm(post));
                self.beside()
            }
            None => self.target(),
        }
    }

    /// Where a mixer adds, if the stream is added once more after the norm `first`.
    pub(super) const fn add_again(&mut self, first: Norm<'p>) -> Target<'p> {
        self.pending = Some(Pending::Again(first));
        self.beside()
    }

    /// Where a mixer adds whose channel reads the mixer's own input.
    pub(super) const fn add_hidden(&mut self) -> Target<'p> {
        (self.pending, self.is_hidden) = (Some(Pending::Plain), true);
        self.beside()
    }

    /// Multiplies the stream by a number, once its pending rows have been added.
    pub(super) const fn multiply(&mut self, factor: f32) {
        self.factor = factor;
    }

    /// Where two networks side by side add, each after a norm of its own, and both after a third.
    pub(super) const fn add_two(&mut self, norms: [Norm<'p>; 2], post: Norm<'p>) -> [Rows<'p>; 2] {
        self.pending = Some(Pending::Sum(norms, post));
        let stride = self.room.n_embd;
        let [first, second] = self.room.branches;
        [
            Rows {
                memory: first,
                stride,
            },
            Rows {
                memory: second,
                stride,
            },
        ]
    }

    /// Its rows, to write the first values to.
    pub(super) const fn rows(&self) -> Rows<'p> {
        Rows {
            memory: self.room.x[self.current],
            stride: self.room.n_embd,
        }
    }

    const fn target(&self) -> Target<'p> {
        Target::Add(self.rows(), self.room.scale)
    }

    const fn beside(&self) -> Target<'p> {
        Target::Store(Rows {
            memory: self.room.branches[0],
            stride: self.room.n_embd,
        })
    }

    /// Moves some columns of the row at `from` to the earlier row `to`.
    ///
    /// # Safety
    /// - These columns are this worker's alone until the next barrier.
    pub(super) unsafe fn move_row(&self, from: usize, to: usize, columns: &Range<usize>) {
        let (x, n_embd) = (&self.room.x[self.current], self.room.n_embd);
        let at = |row: usize| row * n_embd + columns.start..row * n_embd + columns.end;
        // SAFETY: by the caller.
        let from = unsafe { x.read(at(from)) };
        // SAFETY: by the caller; another row.
        let to = unsafe { x.write(at(to)) };
        to.copy_from_slice(from);
    }
}
