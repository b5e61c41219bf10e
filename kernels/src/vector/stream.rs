//! The weights that a product reads next, prefetched while it multiplies others.

use crate::args::{Matmul, Prefetch};
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::prefetch::{prefetch, prefetch_line_to_l2};
use crate::tuning::{Distances, Tuning};
use core::sync::atomic::{Ordering, compiler_fence};

/// The next weights, prefetched while others are multiplied: where few tokens share them, a product waits for memory,
/// which must not be idle meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Ahead<const P: usize> {
    at: [*const u8; P],
    /// Bytes of a group of each panel.
    bytes: usize,
}

impl<const P: usize> Ahead<P> {
    /// Nothing.
    pub(crate) const NONE: Self = Self {
        at: [core::ptr::null(); P],
        bytes: 0,
    };

    /// What follows group `g` of `P` panels from row `row` on: their next group, or the first of
    /// the next panels. `start` is where a group starts in its panel.
    #[inline(always)]
    pub(crate) fn new(
        args: &Matmul<'_>,
        row: usize,
        g: usize,
        start: impl Fn(usize) -> usize,
    ) -> Self {
        let panel_bytes = args.layout.panel_bytes();
        let n_groups = args.layout.n_cols().div_ceil(GROUP);
        let panel = args
            .panels
            .as_ptr()
            .wrapping_add(row / PANEL_ROWS * panel_bytes);
        let next = match g + 1 < n_groups {
            true => start(g + 1),
            false => P * panel_bytes + start(0),
        };
        let mut at = [panel.wrapping_add(next); P];
        for (p, at) in at.iter_mut().enumerate() {
            *at = at.wrapping_add(p * panel_bytes);
        }
        let bytes = panel_bytes / n_groups;
        Self { at, bytes }
    }

    /// Prefetches part `i` of `n`.
    #[inline(always)]
    pub(crate) fn part(&self, i: usize, n: usize) {
        if self.bytes > 0 {
            self.prefetch(i, n);
        }
    }

    /// Lines of a group of each panel.
    pub(crate) const fn n_lines(&self) -> usize {
        self.bytes.div_ceil(LINE_BYTES)
    }

    /// Prefetches `n` lines of each panel from line `first` on (past its last line, the memory after it) into the
    /// second-level cache: the first-level one would lose them before they are needed.
    #[inline(always)]
    pub(crate) fn lines(&self, first: usize, n: usize) {
        let at = self.at.map(|at| at.wrapping_add(first * LINE_BYTES));
        for line in 0..n {
            for at in at {
                prefetch_line_to_l2(at.wrapping_add(line * LINE_BYTES));
            }
        }
    }

    /// Not in each of the many tiles: unrolled there it was a fifth of their code.
    #[inline(never)]
    fn prefetch(&self, i: usize, n: usize) {
        let bytes = self.bytes.div_ceil(n).next_multiple_of(LINE_BYTES);
        for at in self.at {
            prefetch(at.wrapping_add(i * bytes), bytes);
        }
    }
}

/// How a product with few tokens, which waits for memory, prefetches the next weights.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    ahead: Distances,
}

impl Stream {
    /// For `n_tokens` tokens on this CPU, and `bytes` in a step.
    pub(crate) fn new(n_tokens: usize, bytes: usize, prefetch: Prefetch) -> Self {
        let weights = &Tuning::detect().weights;
        Self {
            ahead: weights.distances(n_tokens, bytes, prefetch),
        }
    }

    /// [`Self::prefetch`] for half `half`, 0 or 1, of the `bytes`. Compilers move no load across it: they
    /// would load both halves at once.
    #[inline(always)]
    pub(crate) fn prefetch_half(self, p: *const u8, bytes: usize, half: usize) {
        let first = bytes / 2 / LINE_BYTES * LINE_BYTES;
        match half {
            0 => self.prefetch(p, first),
            _ => self.prefetch(p.wrapping_add(first), bytes - first),
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Prefetches the memory that is the set distances ahead of the `bytes` from `p` on, which are read next.
    #[inline(always)]
    pub(crate) fn prefetch(self, p: *const u8, bytes: usize) {
        if let Some(distance) = self.ahead.to_l2 {
            // From zero on: the compiler knows `bytes`, so that no loop is left.
            let p = p.wrapping_add(distance);
            for at in (0..bytes).step_by(LINE_BYTES) {
                prefetch_line_to_l2(p.wrapping_add(at));
            }
        }
        if let Some(distance) = self.ahead.to_l1 {
            prefetch(p.wrapping_add(distance), bytes);
        }
    }
}
