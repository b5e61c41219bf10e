//! The weights that a product reads next, prefetched while it multiplies others.

use crate::args::{Matmul, Prefetch};
use crate::contract::GROUP;
use crate::cpu::Maker;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::prefetch::{prefetch, prefetch_line_to_l2};
use core::sync::atomic::{Ordering, compiler_fence};

/// The weights that come next, asked for while others are multiplied: where few tokens share
/// them, memory is what a product waits for, and it must not stand still meanwhile.
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

    /// Asks for part `i` of `n`.
    #[inline(always)]
    pub(crate) fn part(&self, i: usize, n: usize) {
        if self.bytes > 0 {
            self.ask(i, n);
        }
    }

    /// Lines of a group of each panel.
    pub(crate) const fn n_lines(&self) -> usize {
        self.bytes.div_ceil(LINE_BYTES)
    }

    /// Asks for `n` lines of each panel from line `first` on, or for what is behind its last one,
    /// into the second-level cache: until they are needed the first-level one would lose them.
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
    fn ask(&self, i: usize, n: usize) {
        let bytes = self.bytes.div_ceil(n).next_multiple_of(LINE_BYTES);
        for at in self.at {
            prefetch(at.wrapping_add(i * bytes), bytes);
        }
    }
}

/// How a product with few tokens, which waits for memory, asks for the weights that come.
///
/// Zen 4's first-level cache waits for two dozen lines at most, too few for what memory takes to
/// answer, while its prefetchers fetch into the second level. One token's loads come fast enough
/// for them to keep up if they see what is next: small steps want two lines ahead, since lines
/// farther on take the room of nearer ones. Steps of Q8_0, over 512 bytes, and the products of more
/// tokens, whose loads come slowly, want pages further on in the second level.
///
/// One token near on Zen 4, two threads, 128 bytes ahead against 512 and against none, in turn: Q4_K 1.0
/// to 1.2 and 1.0 times as fast, Q4_0 1.0 to 1.15 and 1.0, Q5_0 1.1 to 1.15 and 1.0, Q6_K 1.1 and
/// 1.0, Q5_K 1.0, Q3_K 0.92 to 1.0. Q8_0's 6144 and 64 bytes against 512: 1.06 to 1.35 times. Four
/// tokens: 6144 bytes 1.1 to 1.5 times as fast as 64, 1.0 to 1.05 times as fast as 8192.
///
/// How memory answers changes on shared machines, from second to second. Where it is slow, 6144
/// bytes are up to 1.6 times as fast for one token of small steps, too; where it is fast, 0.85
/// to 1.0 times (Q8_0: 0.97). So [`Prefetch`] says which.
///
/// Zen 5, two threads, 300 MB of weights each, in turn, parts of what a loop that only reads gets: one
/// token 6144 bytes ahead into the first level, and 64 into the first and 4096 into the second. Where
/// memory gives 80 GB/s, Q4_K 0.95 and 0.80, Q6_K 0.97 and 0.91, Q4_0 0.92 and 0.87, Q8_0 0.91 and 0.89;
/// where it gives 50, and answers so late that more lines are needed than the first level waits for,
/// 0.97 and 0.97, 1.02 and 1.03, 1.01 and 1.03, 0.98 and 1.02. Each line that is asked for takes the
/// turn of a load: four tokens ask for each once, 12288 bytes ahead, where memory is fast, 6144 where it
/// is slow, Q4_K 1.08, Q4_0 1.03, Q6_K 1.07 times as fast so; fast, Q6_K 0.91. Four of Q8_0 take both
/// levels: 6144 and 12288 bytes where memory is fast, 64 and 4096 where it is slow, 1.06 to 1.09 times
/// as fast so; fast, 0.87.
///
/// What is asked for nine lines at a time comes later than what is asked for four at a time between
/// loads ([`Self::ask_half`]): one token of Q4_K 0.85 where memory is fast, Q6_K 0.95, Q8_0 0.89.
///
/// Intel's second level waits for three times as many lines as its first. Emerald Rapids, two
/// threads, 12288 bytes into the second level and 3072 into the first against 4096 bytes into the
/// first alone, in turn: one token of Q4_0 1.14 to 1.2 times as fast, of Q4_K_M 1.1 to 1.15, of Q8_0 1.0 to
/// 1.09, of a model in the caches 0.9 times; four tokens 1.03 to 1.1 times. None: 0.72.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// Bytes ahead that lines are asked for into the first-level cache.
    to_l1: Option<usize>,
    /// Likewise, into the second.
    to_l2: Option<usize>,
}

impl Stream {
    /// For `n_tokens` tokens on this CPU, and `bytes` in a step.
    pub(crate) fn new(n_tokens: usize, bytes: usize, prefetch: Prefetch) -> Self {
        let (to_l1, to_l2) = match (Maker::detect(), n_tokens, prefetch) {
            (Maker::AmdBeforeZen5, 1, _) if bytes > 512 => (Some(LINE_BYTES), Some(6144)),
            (Maker::AmdBeforeZen5, 1, Prefetch::Near) => (Some(128), None),
            (Maker::AmdBeforeZen5, ..) => (None, Some(6144)),
            (Maker::Amd, 1, Prefetch::Near) => (Some(6144), None),
            (Maker::Amd, _, Prefetch::Near) if bytes > 512 => (Some(6144), Some(12288)),
            (Maker::Amd, _, Prefetch::Near) => (Some(12288), None),
            (Maker::Amd, n, Prefetch::Far) if n == 1 || bytes > 512 => {
                (Some(LINE_BYTES), Some(4096))
            }
            (Maker::Amd, _, Prefetch::Far) => (Some(6144), None),
            (Maker::Other, 1, Prefetch::Near) => (Some(4096), None),
            (Maker::Other, ..) => (Some(3072), Some(12288)),
        };
        Self { to_l1, to_l2 }
    }

    /// [`Self::ask`] for half `half`, 0 or 1, of the `bytes`. Compilers move no load across it: they
    /// would load both halves at once.
    #[inline(always)]
    pub(crate) fn ask_half(self, p: *const u8, bytes: usize, half: usize) {
        let first = bytes / 2 / LINE_BYTES * LINE_BYTES;
        match half {
            0 => self.ask(p, first),
            _ => self.ask(p.wrapping_add(first), bytes - first),
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Asks for what lies so far behind the `bytes` from `p` on, which are read next.
    #[inline(always)]
    pub(crate) fn ask(self, p: *const u8, bytes: usize) {
        if let Some(distance) = self.to_l2 {
            for at in (distance..distance + bytes).step_by(LINE_BYTES) {
                prefetch_line_to_l2(p.wrapping_add(at));
            }
        }
        if let Some(distance) = self.to_l1 {
            prefetch(p.wrapping_add(distance), bytes);
        }
    }
}
